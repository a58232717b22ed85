"""Whose key a bundle is checked with.

Rules kept here:

* A key is named by the caller (`--key`), or it is that of the project here, when its own audit log says that
  it exported this very statement. The log is read; no state file is made or changed for that.
* A project that lies in the bundle is not looked at: neither its key, nor its state file, nor its scripts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rekey.errors import ConfigurationError, StateUnusable

if TYPE_CHECKING:
    from rekey.cli.shell import Shell
    from rekey.evidence.keys import PublicKey
    from rekey.project.config import Config

_GIVE_KEY = "--key FILE, the public key that you were given; never one that came with the bundle"


def keys_for(shell: Shell, files: Sequence[Path], folder: Path) -> list[PublicKey]:
    """Return the given keys, else that of the project that exported the bundle.

    Raises:
        ConfigurationError: no key is given, and no project here exported this.
    """
    from rekey.evidence.signing import open_signer, read_public

    if files:
        return [read_public(path) for path in files]
    what = "it is not said whose signature is to be checked"
    if shell.has_project:
        try:
            config = exporter(shell, folder)
        except StateUnusable as error:
            raise ConfigurationError(error.what, hint=_GIVE_KEY) from None
        if config is None:
            what = (
                f"the audit log of the project {shell.config_path} does not say that it exported this bundle,"
                " so its key is not taken for the one that signed it"
            )
        elif (signer := open_signer(config)) is not None:
            origin = f"the project {config.path}, whose audit log says that it exported this"
            return [replace(signer.public, origin=origin)]
    raise ConfigurationError(what, hint=_GIVE_KEY)


def exporter(shell: Shell, folder: Path) -> Config | None:
    """Return the configuration of the project here if its audit log says that it exported a bundle.

    The state file is read, and neither made nor changed. Raises ConfigurationError, and what opening raises.
    """
    from rekey.evidence.bag import statement_sha256
    from rekey.evidence.export import exports_of
    from rekey.project.config import load_config
    from rekey.state.store import State

    sha256 = statement_sha256(folder)
    refuse_within(shell, folder)
    config = load_config(shell.config_path)
    with State.open(config.state, read_only=True) as state:
        return config if exports_of(state, sha256) else None


def refuse_within(shell: Shell, folder: Path) -> None:
    """Refuse a project that lies in a bundle: whoever made the bundle made it."""
    path = shell.config_path
    places = (path.parent.resolve() / path.name, path.resolve())
    if any(place.is_relative_to(folder.resolve()) for place in places):
        raise ConfigurationError(
            f"the project {path} lies in the bundle, and is not looked at",
            hint=f"stand in another folder; {_GIVE_KEY}",
        )
