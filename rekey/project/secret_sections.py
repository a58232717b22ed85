"""The sections of `rekey.toml` that say where secrets and the wrapping key are.

Rules kept here:

* They say where a secret is, never what it is: what looks pasted is refused, and not repeated.
* Each is in exactly one place.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rekey.project import keyvault
from rekey.project.secrets_source import SecretKind, SecretSource
from rekey.project.sections import Section

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
PASTED_CHARACTERS = 24
_SECRET_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")


@dataclass(frozen=True, slots=True)
class Sealing:
    """Where the wrapping key of sealed mappings is, and the one before it; None where none is configured."""

    key: SecretSource | None = None
    previous: SecretSource | None = None


def is_variable(text: str) -> bool:
    """Tell whether this can be a variable's name. A long run without `_` is rather a pasted secret (hex,
    say), which a later message would echo as a name."""
    return _VARIABLE.fullmatch(text) is not None and (len(text) < PASTED_CHARACTERS or "_" in text)


def read_secrets(section: Section) -> dict[str, SecretSource]:
    """Return where each secret is, by name. Raises ConfigurationError."""
    return {name: _secret(section, name) for name in section.content}


def _secret(secrets: Section, name: str) -> SecretSource:
    if not _SECRET_NAME.fullmatch(name):
        secrets.fail(name, "is not a name", "use letters, digits, `_` and `-`")
    return _where(secrets.section(name), vault_holds="secret")


def read_sealing(document: Section) -> Sealing:
    """Return where the wrapping key is. Raises ConfigurationError."""
    section = document.section("sealing")
    if not section.content:
        return Sealing()
    previous = section.section("previous")
    section.content = {name: value for name, value in section.content.items() if name != "previous"}
    return Sealing(
        _where(section, vault_holds="key"),
        _where(previous, vault_holds="key") if previous.content else None,
    )


def _where(section: Section, *, vault_holds: str) -> SecretSource:
    """Read where a secret is, or a key that may also stay in Key Vault."""
    kinds: Iterable[SecretKind] = SecretKind
    section.allow(*kinds)
    given = [kind for kind in kinds if kind in section.content]
    if len(given) != 1:
        section.fail("", "must have exactly one of env, file, key_vault", 'write for example env = "NAME"')
    kind = given[0]
    where = section.text(kind) or ""
    if kind is SecretKind.ENV and not is_variable(where):
        section.fail(
            "env",
            "is not the name of an environment variable",
            "write the variable's name, not the secret; a secret that was pasted here is no longer one",
        )
    if kind is SecretKind.FILE:
        where = str(Path(os.path.normpath(section.path.parent / Path(where).expanduser())))
    if kind is SecretKind.KEY_VAULT:
        try:
            keyvault.split_url(where, f"{vault_holds}s")
        except ValueError:
            section.fail(
                "key_vault",
                f"is not the https URL of a Key Vault {vault_holds}",
                f'write key_vault = "https://VAULT.vault.azure.net/{vault_holds}s/NAME"',
            )
    return SecretSource(kind, where)
