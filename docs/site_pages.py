"""The hook of mkdocs that makes the site (`make site`) from the documents as they are in the repository.

Rules kept here:

* Pages keep their places: a link that leads somewhere on GitHub leads to the same in the site.
* A file or folder that a page links to and that is no page is shown on a page of its own.
* The page of a command is made from its help, like its man page; nothing is written by hand.
* Anchors are those that GitHub gives.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from html import escape
from inspect import cleandoc
from pathlib import Path
from typing import Any

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from docs.man_pages import contexts, options, short_help

ROOT = Path(__file__).parent.parent
COMMANDS = "docs/reference/commands.md"
SECTIONS = {
    "Tutorial": ("docs/tutorial/*.md", "migrations/*.md"),
    "Guides": ("docs/guides/*.md",),
    "Recipes": ("docs/recipes/*.md",),
    "Reference": ("docs/reference/*.md",),
    "Commands": (),
    "Runbooks": ("runbooks/*.md",),
    "Advice on keys": ("docs/advice/*.md",),
    "Internals": ("docs/internals/*.md",),
    "Project": ("*.md", "benchmarks/*.md"),
    "Decisions": ("docs/adr/*.md",),
}
INDEX = "docs/README.md"
FIRST = ("README.md", INDEX)
_BLOCK = re.compile(r"^```(\S*)[^\n]*\n.*?^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s#]+)(#[^)\s]*)?\)")
_ROW = re.compile(r"^\| (`rekey ([a-z -]+?)(?: [A-Z\[][^`]*)?`) \|", re.MULTILINE)


def anchor_of(heading: str, _separator: str = "-") -> str:
    """Return the anchor that GitHub gives to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def pages() -> dict[str, list[str]]:
    """Return the documents of each section of the navigation, by path: the page of its folder first, then in
    the order in which the index names them."""
    index = (ROOT / INDEX).read_text("utf-8")
    found = {}
    for section, patterns in SECTIONS.items():
        paths = [path for pattern in patterns for path in sorted(ROOT.glob(pattern))]
        names = [path.relative_to(ROOT).as_posix() for path in paths]
        names.sort(key=lambda one: ("README" not in one, index.find(f"({os.path.relpath(one, 'docs')})")))
        found[section] = [one for one in names if one not in FIRST]
    return found


def command_pages() -> dict[str, str]:
    """Return the pages of all commands, by path."""
    return {
        f"commands/{context.command_path.replace(' ', '-')}.md": command_page(context)
        for context in contexts()
    }


def command_page(context: click.Context) -> str:
    """Return the page of a command."""
    command = context.command
    usage = " ".join((context.command_path, *command.collect_usage_pieces(context)))
    parts = [f"# {context.command_path}\n", f"```sh\n{usage}\n```\n", *_paragraphs(command.help or "")]
    records = [
        f"<dt><code>{escape(name)}</code></dt><dd>{_html(does)}</dd>" for name, does in options(context)
    ]
    parts += ["## Options\n", f"<dl>{''.join(records)}</dl>\n"]
    if isinstance(command, click.Group):
        below = [
            f"<dt><a href='{context.command_path.replace(' ', '-')}-{name}.html'>{name}</a></dt>"
            f"<dd>{_html(short_help(command.get_command(context, name)))}</dd>"
            for name in command.list_commands(context)
        ]
        parts += ["## Commands\n", f"<dl>{''.join(below)}</dl>\n"]
    return "\n".join([*parts, *_paragraphs(command.epilog or "")])


def _paragraphs(text: str) -> Iterator[str]:
    """Yield the paragraphs of a help text; those marked with `\\b` keep their lines."""
    for one in re.split(r"\n\s*\n", cleandoc(text)):
        kept = one.removeprefix("\b\n")
        yield (
            f"<p>{_html(one)}</p>\n" if kept == one else f"<pre><code>{escape(kept.rstrip())}</code></pre>\n"
        )


def _html(text: str) -> str:
    return re.sub("`([^`]+)`", r"<code>\1</code>", escape(text, quote=False))


def shown(name: str) -> str:
    """Return the path of the page that shows a file or folder of the repository which is no page."""
    return f"{name.rstrip('/')}/index.md" if (ROOT / name).is_dir() else f"{name}.md"


def page_of_files(name: str) -> str:
    """Return the page that shows a file, or the files of a folder."""
    path = ROOT / name
    files = sorted(one for one in path.rglob("*") if one.is_file()) if path.is_dir() else [path]
    texts = [f"# {name}\n"]
    for one in files:
        inside = f"## {one.relative_to(path).as_posix()}\n\n" if path.is_dir() else ""
        texts.append(f"{inside}~~~~~~~~\n{one.read_text('utf-8')}\n~~~~~~~~\n")
    return "\n".join(texts)


def linked(name: str) -> Iterator[str]:
    """Yield what a page links to in the repository, by path; a folder ends with `/`."""
    for link, _ in _LINK.findall(_BLOCK.sub("", (ROOT / name).read_text("utf-8"))):
        if not link.startswith("https://"):
            target = os.path.normpath((Path(name).parent / link).as_posix())
            if (ROOT / target).exists():  # mkdocs tells what does not
                yield target + "/" * link.endswith("/")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Set anchors and navigation."""
    config.mdx_configs["toc"] = {"slugify": anchor_of}
    found = pages() | {"Commands": list(command_pages())}
    config.nav = [*FIRST, *({section: names} for section, names in found.items())]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the documents, the pages of commands, and what documents link to."""
    documents = [*FIRST, *(name for names in pages().values() for name in names)]
    more: dict[str, Mapping[str, Any]] = {name: {"abs_src_path": str(ROOT / name)} for name in documents}
    more |= {name: {"content": text} for name, text in command_pages().items()}
    for name in sorted({one for document in documents for one in linked(document)} - set(documents)):
        is_picture = name.endswith(".svg")
        where = name if is_picture else shown(name)
        more[where] = {"abs_src_path": str(ROOT / name)} if is_picture else {"content": page_of_files(name)}
    for name, source in more.items():
        added = File.generated(config, name, **source)
        if name not in documents and not name.startswith("commands/"):
            added.inclusion = added.inclusion.NOT_IN_NAV
        files.append(added)
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Write a document as mkdocs reads it: links to files lead to the pages that show them, fences have a
    language alone, and the page of all commands links each."""
    name = page.file.src_uri
    here = Path(name).parent
    above = "../" * len(here.parts)

    def moved(found: re.Match[str]) -> str:
        link, anchor = found[1], found[2] or ""
        target = os.path.normpath((here / link).as_posix())
        is_page = link.startswith("https://") or link.endswith((".md", ".svg"))
        return f"]({link if is_page else os.path.relpath(shown(target), here)}{anchor})"

    def of_command(found: re.Match[str]) -> str:
        return f"| [{found[1]}]({above}commands/rekey-{found[2].replace(' ', '-')}.md) |"

    if name.startswith("commands/") or not (ROOT / name).is_file():
        return markdown
    parts, end = [], 0
    for block in _BLOCK.finditer(markdown):
        parts += [_LINK.sub(moved, markdown[end : block.start()])]
        parts += [re.sub(r"^```(\S*)[^\n]*", r"```\1", block[0], count=1)]
        end = block.end()
    text = "".join([*parts, _LINK.sub(moved, markdown[end:])])
    return _ROW.sub(of_command, text) if name == COMMANDS else text
