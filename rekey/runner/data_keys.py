"""The data keys of a sealed migration, checked against what the state file knows of them (ADR 0048)."""

from __future__ import annotations

from dataclasses import dataclass

from rekey.core.progress import Progress
from rekey.mapping.sealing import DataKey, SealedKeys, cursors_key, root_fingerprint
from rekey.mapping.store import Keyring
from rekey.protocol.control import ControlRow
from rekey.runner.refusals import refusal
from rekey.state.store import State
from rekey.status.notes import note

ROOT_KEY = "root-key"


@dataclass(frozen=True, slots=True)
class KnownRoot:
    """What a state file knows of the root key of a run. Each run of a migration has a root key of its own."""

    state: State
    script_id: str
    run_id: str

    @property
    def fingerprint(self) -> str:
        """The recorded fingerprint; "" before there is one."""
        events = self.state.audit_events(self.script_id, event=ROOT_KEY)
        recorded = [event.details["fingerprint"] for event in events if event.details["run"] == self.run_id]
        return str(recorded[-1]) if recorded else ""

    def record(self, root: DataKey) -> None:
        now = root_fingerprint(root, self.script_id)
        if now != self.fingerprint:
            self.state.audit(ROOT_KEY, self.script_id, {"fingerprint": now, "run": self.run_id})

    def require(self, root: DataKey) -> None:
        """Refuse a root key that is not the recorded one, whatever proof it comes with; record it if there is
        none. Raises Moved."""
        if self.fingerprint not in ("", root_fingerprint(root, self.script_id)):
            raise refusal("other-root-key", script=self.script_id)
        self.record(root)


async def prove_data_keys(
    keyring: Keyring, row: ControlRow, state: State, progress: Progress, *, is_known: bool, accept: bool
) -> None:
    """Give proofs to data keys that a version before 0.3 wrapped with a public key.

    Args:
        keyring: of the migration; not opened yet.
        row: the migration's control row.
        state: the state file.
        progress: receives a note.
        is_known: the state file knew the run before this command.
        accept: the operator says that data keys without a proof are rekey's own.

    Raises:
        Moved: the root key is not the migration's; or nothing in the state file was sealed with it, and
            `accept` is not given.
        StateUnusable: the checkpoints in the state file were not sealed with the root key.
    """
    script_id, known = keyring.script_id, KnownRoot(state, keyring.script_id, row.run_id)

    def check(root: DataKey) -> None:
        """Raise unless the root key opens the checkpoints in the state file: others cannot have sealed
        them."""
        if known.fingerprint:
            known.require(root)
        state.use_keys(script_id, SealedKeys(script_id, cursors_key(root, row.id_key)))
        # Nothing was sealed yet: any root key would open all of it, so only the operator can tell.
        if not state.require_readable(script_id) and not (known.fingerprint or accept):
            raise refusal("root-key-unproved", script=script_id)

    if not accept and (known.fingerprint or not is_known):
        return
    cohorts = await keyring.prove(check)
    if not cohorts:
        return
    known.record(keyring.root)
    state.audit("data-keys-proved", script_id, {"cohorts": cohorts})
    keys = ", ".join(cohorts)
    note(progress, "keys-proved", {"script": script_id, "keys": keys}, script_id=script_id)
