"""What pages for people share: the frame, the style, tables. Pure.

Rules kept here:

* A page is one file: no script, nothing loaded. A content security policy forbids both.
* Every text is escaped by whoever puts it into markup, with `escape`; what is taken as markup is called so.
* It reads in light and in dark surroundings, and prints on A4 in light: tables repeat their heads, nothing is
  cut in two that can stay whole.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from rekey.errors import visible

POLICY = "default-src 'none'; style-src 'unsafe-inline'"

_LIGHT = (
    "--paper:#ffffff;--card:#f6f8fa;--ink:#1b1f24;--soft:#57606a;--line:#d0d7de;--good:#1a6b35;--bad:#b3261e;"
    "--mild:#8a5a00;--dark:#1f4e79;--light:#9dc3e6;--before:#8b98a8;--after:#0b6bcb"
)
_DARK = (
    "--paper:#12161c;--card:#1b2129;--ink:#e6eaef;--soft:#9aa6b2;--line:#333c47;--good:#5fc47e;--bad:#ff8a80;"
    "--mild:#e3b341;--dark:#79b8f2;--light:#36587a;--before:#7c8896;--after:#58a6ff"
)
_STYLE = """
:root{color-scheme:light dark;LIGHT}
@media (prefers-color-scheme:dark){:root{DARK}}
*{box-sizing:border-box}
body{margin:2rem auto;padding:0 1.25rem;max-width:62rem;font:16px/1.5 system-ui,sans-serif;color:var(--ink);
background:var(--paper)}
h1{font-size:1.6rem;line-height:1.25;margin:0 0 .25rem}
h2{font-size:1.15rem;margin:2.2rem 0 .6rem;border-bottom:1px solid var(--line);padding-bottom:.25rem}
h3{font-size:1rem;margin:1.4rem 0 .3rem}
p{margin:.4rem 0 .8rem}.soft{color:var(--soft)}
.verdict{border-left:.35rem solid var(--good);padding:.4rem 1rem;margin:1rem 0;background:var(--card)}
.verdict.bad{border-color:var(--bad)}.verdict strong{display:block}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(9rem,1fr));gap:.75rem;margin:1.2rem 0}
.tile{background:var(--card);border:1px solid var(--line);border-radius:.5rem;padding:.6rem .9rem}
.tile b{display:block;font-size:1.3rem;line-height:1.3;font-variant-numeric:tabular-nums}
.tile span{color:var(--soft);font-size:.85rem}
.side{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,26rem),1fr));gap:1rem}
figure{margin:.6rem 0;padding:.8rem;border:1px solid var(--line);border-radius:.5rem;background:var(--card);
overflow-x:auto}figure svg.wide{min-width:34rem}
figcaption{font-weight:600;margin-bottom:.3rem}figcaption span{font-weight:400;color:var(--soft)}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:.9rem;font-variant-numeric:tabular-nums}
th,td{text-align:left;vertical-align:top;padding:.3rem .9rem .3rem 0;border-bottom:1px solid var(--line)}
th{color:var(--soft);font-weight:600}td.number,th.number{text-align:right;white-space:nowrap}
th:last-child,td:last-child{padding-right:0}.when{white-space:nowrap}tr.sum td{font-weight:600}
code{font:.85em/1.4 ui-monospace,monospace;overflow-wrap:anywhere}
.good{color:var(--good)}.bad{color:var(--bad);font-weight:600}.mild{color:var(--mild);font-weight:600}
svg{display:block;width:100%;height:auto;font:12px system-ui,sans-serif}svg text{fill:var(--ink)}
svg text.soft{fill:var(--soft)}svg .grid{stroke:var(--line);stroke-width:1}
svg .dark{fill:var(--dark)}svg .light{fill:var(--light)}svg .warn{fill:var(--bad)}
svg .before{fill:var(--before)}svg .after{fill:var(--after)}svg .cell{fill:var(--line)}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.2rem 1.2rem;margin:0}
dt{color:var(--soft)}dd{margin:0;min-width:0}
@page{size:A4;margin:16mm}
@media print{:root{color-scheme:light;LIGHT}
body{margin:0;max-width:none;padding:0;font-size:10pt;print-color-adjust:exact;-webkit-print-color-adjust:exact}
.scroll,figure{overflow:visible}figure svg.wide{min-width:0}
h1,h2,h3{break-after:avoid}tr,svg,figure,.verdict,.tile{break-inside:avoid}
thead{display:table-header-group}code{font-size:.78em}}
""".replace("LIGHT", _LIGHT).replace("DARK", _DARK)


def escape(text: str) -> str:
    """Return a text as markup, with controls spelled out: a page, too, would let them turn a line around."""
    return html.escape(visible(text))


def page(title: str, parts: Iterable[str]) -> str:
    """Return a page.

    Args:
        title: of the page, as text.
        parts: its body, as markup; empty ones are left out.
    """
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n"
        f"<body>{''.join(part for part in parts if part)}</body></html>\n"
    )


def verdict(good: bool, strong: str, text: str) -> str:
    """Return a statement that opens a page, both as text."""
    kind = "verdict" if good else "verdict bad"
    return f'<div class="{kind}"><strong>{escape(strong)}</strong>{escape(text)}</div>'


def tiles(figures: Iterable[tuple[str, str]]) -> str:
    """Return headline figures: each with what it is, both as text."""
    listed = "".join(
        f'<div class="tile"><b>{escape(figure)}</b><span>{escape(what)}</span></div>'
        for figure, what in figures
    )
    return f'<div class="tiles">{listed}</div>'


def table(
    head: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = (), *, total: bool = False
) -> str:
    """Return a table.

    Args:
        head: the columns' names, as text.
        rows: cells, as markup.
        numbers: columns that hold numbers.
        total: the last row sums up the others.
    """

    def row(cells: Sequence[str], kind: str, *, of: str = "") -> str:
        made = "".join(
            f'<{kind} class="number">{cell}</{kind}>' if at in numbers else f"<{kind}>{cell}</{kind}>"
            for at, cell in enumerate(cells)
        )
        return f"<tr{of}>{made}</tr>"

    listed = list(rows)
    last = len(listed) - 1
    body = "".join(
        row(cells, "td", of=' class="sum"' if total and at == last else "") for at, cells in enumerate(listed)
    )
    heads = row([escape(cell) for cell in head], "th")
    return f'<div class="scroll"><table><thead>{heads}</thead><tbody>{body}</tbody></table></div>'


def figure(plot: str, caption: str, remark: str = "") -> str:
    """Return a plot with its caption and a remark, both as text; nothing without a plot."""
    if not plot:
        return ""
    more = f" <span>{escape(remark)}</span>" if remark else ""
    return f"<figure><figcaption>{escape(caption)}{more}</figcaption>{plot}</figure>"


def when(moment: str) -> str:
    """Return a moment, as it was kept, on one line."""
    return f'<span class="when">{escape(moment)}</span>'


def mark(good: bool, text: str) -> str:
    """Return a text that is shown as good or bad."""
    return f'<span class="{"good" if good else "bad"}">{escape(text)}</span>'
