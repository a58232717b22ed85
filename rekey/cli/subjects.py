"""What a plan needs to know of a migration: secrets, safe ids, how it was begun.

Rules kept here:

* It reads only.
* A missing secret is a finding of the plan, not an error of the command; a secret that cannot be asked for
  (Key Vault is down) is an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rekey.errors import SecretMissing

if TYPE_CHECKING:
    from rekey.declaration.migration import Declared
    from rekey.plan.subject import Subject
    from rekey.project.config import Config
    from rekey.state.store import State
    from rekey.tables.base import Accounts


async def subject_of(config: Config, declared: Declared, accounts: Accounts, state: State) -> Subject:
    """Return the subject of a plan.

    Raises:
        CredentialRefused, EndpointDown, Unavailable: the restricted store could not be asked.
    """
    from rekey.declaration.mapper import Mapper
    from rekey.declaration.migration import required_secrets
    from rekey.mapping.ids import SafeIds, new_key
    from rekey.migration.opening import fingerprints_of, mapping_of
    from rekey.migration.wrapping import wrapping_for
    from rekey.plan.problems import Started
    from rekey.plan.subject import Subject
    from rekey.project.config import resolve_secret
    from rekey.protocol.control import ControlStore

    found: dict[str, bytes] = {}
    missing: list[str] = []
    for name in required_secrets(declared.migration):
        try:
            found[name] = resolve_secret(config, name)
        except SecretMissing:
            missing.append(name)
    control = await ControlStore(accounts.restricted, declared.script_id).read()
    record = state.migration(declared.script_id)
    started = None
    if control is not None:
        started = Started(str(control.phase), control.digest, control.fingerprints)
    elif record is not None:
        started = Started("source", record.digest, record.secret_fingerprints)
    store, no_wrapping = None, ""
    try:
        wrapping = wrapping_for(config, declared.migration)
        if control is not None:
            store = await mapping_of(accounts, declared, control.id_key, wrapping)
    except SecretMissing as error:
        no_wrapping = error.what
    return Subject(
        declared=declared,
        mapper=None if missing else Mapper(declared.migration, found),
        ids=SafeIds(new_key()) if store is None else store.rows.ids,
        ids_hold=store is not None,
        secret_fingerprints=fingerprints_of(found),
        missing_secrets=tuple(missing),
        no_wrapping_key=no_wrapping,
        started=started,
        owns_row=None if store is None else store.owns,
    )
