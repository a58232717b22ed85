"""What a command says when it fails.

Rules kept here:

* Every failure is told as a `RekeyError`: what happened, what was kept, what to do next, and an exit code.
* An exception that nobody foresaw is a fault of rekey. Its type and place are shown, its text never: it may
  quote keys. `--debug` adds the places it came through, without source lines and values.
"""

from __future__ import annotations

import errno
import traceback
from collections.abc import Iterator
from pathlib import Path

from rekey.errors import ExitCode, Interrupted, MachineFailed, RekeyError, ServiceError

_PACKAGE = Path(__file__).parent.parent


class FaultOfRekey(RekeyError):
    """The program did something its authors did not foresee."""

    exit_code = ExitCode.SERVICE


def as_rekey_error(error: BaseException) -> RekeyError:
    """Return what is told of any exception that ended a command."""
    known = _known(error)
    if known is not None:
        if isinstance(known, ServiceError) and not known.kept:
            # The tables layer knows of one request only; what the command keeps is the same for all of them.
            known.kept = "everything up to the last checkpoint; nothing is half done"
        return known
    if isinstance(error, KeyboardInterrupt):
        return Interrupted(
            "stopped by a signal",
            kept="everything that was there before",
            hint="run the same command again",
        )
    if isinstance(error, MemoryError):
        return MachineFailed(
            "this machine has no memory left",
            kept="everything up to the last checkpoint",
            hint="lower [limits] window_rows and concurrency, then run the same command again",
        )
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.EIO):
        return MachineFailed(
            f"this machine failed: {errno.errorcode[error.errno]}",
            kept="everything up to the last checkpoint",
            hint="mend that (space on the disk, quota, open files), then run the same command again",
        )
    return FaultOfRekey(
        f"{type(error).__name__} at {_place(error)}: this is a fault of rekey",
        kept="everything up to the last checkpoint",
        hint="run the same command again with --debug and report what it prints; it holds no keys",
    )


def _known(error: BaseException) -> RekeyError | None:
    """Return the error of ours in an exception, which may be a group of several."""
    if isinstance(error, RekeyError):
        return error
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            found = _known(inner)
            if found is not None:
                return found
    return None


def _place(error: BaseException) -> str:
    """Return file and line of the innermost frame of rekey."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if Path(frame.filename).is_relative_to(_PACKAGE)]
    if not (ours or frames):
        return "an unknown place"
    frame = (ours or frames)[-1]
    return f"{_short(frame.filename)}:{frame.lineno}"


def places(error: BaseException) -> str:
    """Return where an exception, and what caused it, came through: types, files, lines and functions."""
    return "\n".join(_places(error, set()))


def _places(error: BaseException, seen: set[int]) -> Iterator[str]:
    if id(error) in seen:
        return
    seen.add(id(error))
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is not None:
        yield from _places(cause, seen)
        yield "which led to"
    yield type(error).__name__
    for frame in traceback.extract_tb(error.__traceback__):
        yield f"  {_short(frame.filename)}:{frame.lineno} in {frame.name}"
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _places(inner, seen)


def _short(filename: str) -> str:
    path = Path(filename)
    return str(path.relative_to(_PACKAGE.parent)) if path.is_relative_to(_PACKAGE) else path.name
