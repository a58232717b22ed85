"""A bundle on disk: a BagIt bag (RFC 8493, the format of archives) with the signed statement next to its
manifests. Only plain files with known names belong to it."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import warnings
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import bagit

from rekey.errors import reason_of
from rekey.evidence import contents, timestamp
from rekey.evidence.keys import Signer
from rekey.evidence.refusals import refusal
from rekey.evidence.statement import Envelope, Statement, parsed, signed

_PAYLOAD = "data/"
STATEMENT = "statement.dsse.json"
TIMESTAMP = "statement.dsse.json.tsr"
TIMESTAMP_SIGNATURE = "statement.dsse.json.tsr.sig"
# Files that the statement does not cover.
BESIDES = frozenset({STATEMENT, TIMESTAMP, TIMESTAMP_SIGNATURE})
_BAG = {"bagit.txt", "bag-info.txt", "manifest-sha256.txt", "tagmanifest-sha256.txt"}
ALWAYS = frozenset(_BAG | {_PAYLOAD + name for name in contents.ALWAYS})
# Files that the statement may cover. It must cover those of `ALWAYS`.
KNOWN = ALWAYS | {_PAYLOAD + contents.PLAN, _PAYLOAD + contents.LIVE}

# Every path of a bundle, including its folders.
_PATHS = frozenset(
    str(path) for name in KNOWN | BESIDES for path in (PurePosixPath(name), *PurePosixPath(name).parents)
)
# Maximum bytes of a file of the audit log, of other payload, and of any other file. Parsed JSON can take 22
# times the memory of its text.
_MOST_LOG_BYTES, _MOST_PAYLOAD_BYTES, _MOST_BYTES = 1 << 28, 1 << 26, 1 << 20
# How many paths outside a bundle are examined, and their maximum length.
_MOST_STRANGE, _LONGEST = 1_000, 1_000

# Python 3.13 deprecates calls in bagit; its results are the same.
_ignoring_old_calls = partial(warnings.catch_warnings, action="ignore", category=DeprecationWarning)

logging.getLogger("bagit").setLevel(logging.CRITICAL + 1)


def require_free(folder: Path) -> None:
    """Refuse a folder that is not empty. Raises Refused."""
    if folder.is_symlink() or (folder.exists() and not (folder.is_dir() and not any(folder.iterdir()))):
        raise refusal("folder-in-use", folder=folder)


def write(
    folder: Path,
    files: Mapping[str, bytes],
    info: Mapping[str, str],
    predicate: Mapping[str, Any],
    *,
    signer: Signer | None,
    authority: str | None,
) -> Envelope:
    """Write a bundle atomically and return its statement.

    Args:
        folder: the bundle's folder; must not exist, or be empty.
        files: contents by path below `data/`.
        info: the entries of `bag-info.txt`.
        predicate: the statement's predicate.
        signer: signs the statement and the time stamp; None leaves them unsigned.
        authority: URL of a time stamp authority; None: no time stamp.

    Raises:
        Refused: the folder is not empty.
        ConfigurationError, MachineFailed: it cannot be written.
        RekeyError: the key or the authority failed.
    """
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    try:
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        for name, data in files.items():
            path = unfinished / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        with _ignoring_old_calls():
            bagit.make_bag(str(unfinished), dict(info), checksums=["sha256"])
        envelope = signed(Statement(digests(unfinished), predicate), signer)
        (unfinished / STATEMENT).write_bytes(envelope.data)
        if authority is not None:
            answer = timestamp.ask(authority, envelope.data)
            (unfinished / TIMESTAMP).write_bytes(answer)
            if signer is not None:
                (unfinished / TIMESTAMP_SIGNATURE).write_bytes(signer.sign(answer))
        require_free(folder)
        if folder.exists():
            folder.rmdir()
        unfinished.rename(folder)
    except (PermissionError, NotADirectoryError):
        raise refusal("folder-not-written", folder=folder) from None
    except (OSError, bagit.BagError) as error:
        raise refusal("bundle-not-written", folder=folder, reason=reason_of(error)) from None
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return envelope


def digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every file of a bundle that the statement covers, by path."""
    stated = [name for name in names(folder) if name not in BESIDES]
    digests_by_name = {}
    for name in stated:
        with (folder / name).open("rb") as file:
            digests_by_name[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return digests_by_name


def read(path: Path) -> bytes:
    """Return a file of a bundle that is not payload, truncated at its maximum size."""
    with path.open("rb") as file:
        return file.read(_MOST_BYTES)


def require_folder(folder: Path) -> None:
    """Raise ConfigurationError when there is no such folder."""
    if not folder.is_dir():
        raise refusal("no-folder", folder=folder)


def require_bundle(folder: Path) -> None:
    """Raise ConfigurationError when there is no such folder, or nothing of a bundle in it."""
    require_folder(folder)
    if not any((folder / name).exists() for name in (STATEMENT, "bagit.txt", _PAYLOAD)):
        raise refusal("no-bundle", folder=folder, statement=STATEMENT)


def is_unsigned(folder: Path) -> bool:
    """Tell whether a bundle has an unsigned statement."""
    with suppress(OSError, ValueError):
        return not parsed(read(folder / STATEMENT)).is_signed
    return False


def statement_sha256(folder: Path) -> str:
    """Return the SHA-256 of a bundle's statement, "" without one. Raises ConfigurationError."""
    require_folder(folder)
    path = folder / STATEMENT
    return hashlib.sha256(read(path)).hexdigest() if path.is_file() else ""


def payload(folder: Path) -> dict[str, bytes]:
    """Return the contents of the files below `data/`, by path below it."""
    inside = [name for name in names(folder) if name.startswith(_PAYLOAD) and name in KNOWN]
    return {name.removeprefix(_PAYLOAD): (folder / name).read_bytes() for name in inside}


def names(folder: Path) -> list[str]:
    """Return the sorted paths of all plain files in a folder that are not too large."""
    return sorted(name for name in _paths(folder)[0] if _is_plain(folder, name))


def strange(folder: Path) -> list[str]:
    """Return the paths that a bundle must not contain: links, devices, empty folders, too large files."""
    return sorted(name for name in _paths(folder)[0] if not _belongs(folder, name))


def overflows(folder: Path) -> bool:
    """Tell whether a folder contains so much that is not of a bundle that not all of it was examined."""
    return _paths(folder)[1]


def _is_plain(folder: Path, name: str) -> bool:
    path, most = folder / name, _MOST_BYTES
    if name in KNOWN and name.startswith(_PAYLOAD):
        most = _MOST_LOG_BYTES if name.startswith(f"{_PAYLOAD}audit/") else _MOST_PAYLOAD_BYTES
    with suppress(PermissionError):  # in an unreadable folder
        return not path.is_symlink() and path.is_file() and path.stat().st_size <= most
    return False


def _belongs(folder: Path, name: str) -> bool:
    path = folder / name
    with suppress(PermissionError):
        if path.is_dir() and not path.is_symlink():
            return any(path.iterdir())
    return _is_plain(folder, name)


def _paths(folder: Path) -> tuple[list[str], bool]:
    """Return the paths below a folder, and whether some outside the bundle were left out. Iterative, and
    follows no link, so that a hostile bundle of any depth can be read."""
    paths, strangers, more = list[str](), 0, False
    waiting = [""]
    while waiting:
        above = waiting.pop()
        try:
            with os.scandir(folder / above) as entries:
                for entry in entries:
                    name = above + entry.name
                    if name not in _PATHS:
                        strangers += 1
                        if strangers > _MOST_STRANGE or len(name) > _LONGEST:
                            more = True
                            continue
                    paths.append(name)
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(f"{name}/")
        except PermissionError:
            more = True
    return paths, more


def bag_problem(folder: Path) -> str:
    """Return why a folder is no valid bag, "" if it is valid."""
    try:
        with _ignoring_old_calls():
            bagit.Bag(str(folder)).validate()
    except (bagit.BagError, OSError, ValueError) as error:
        # bagit's message only names files of the bundle
        return str(error) or type(error).__name__
    return ""
