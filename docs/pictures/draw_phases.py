"""Draw docs/pictures/phases.svg from the table in `rekey/phases.py`: `make pictures`.

Order, gates, control row and rollback come from that table; only the words in the boxes stand here. A test
compares the committed picture with what this draws.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby, pairwise
from pathlib import Path
from xml.sax.saxutils import escape

from rekey.phases import GATED, LEAVES, MOVES, ORDER, REVERSIBLE, ControlPhase, Phase

PICTURE = Path(__file__).with_name("phases.svg")

DOES: dict[Phase, tuple[str, ...]] = {
    Phase.PREPARE: ("makes target and", "mapping tables"),
    Phase.DUAL_WRITE: ("clients follow, or", "a watermark is set"),
    Phase.BACKFILL: ("copies every row,", "sweeps deletes"),
    Phase.RECONCILE: ("catches up,", "compares every row"),
    Phase.CUTOVER: ("freeze, last check,", "authority moves"),
    Phase.COMPLETE: ("ends rollback,", "retention begins"),
    Phase.RETIRE: ("deletes the source", "table"),
}
COMMANDS: dict[Phase, tuple[str, ...]] = {
    Phase.CUTOVER: ("rekey apply", "--to cutover"),
    Phase.COMPLETE: ("rekey apply", "--to complete"),
    Phase.RETIRE: ("rekey retire",),
}
AUTHORITY: dict[ControlPhase, str] = {
    ControlPhase.SOURCE: "the source decides; the application uses it",
    ControlPhase.DUAL_WRITE: "the source decides; the application uses it",
    ControlPhase.CUTOVER: "the target decides",
    ControlPhase.COMPLETE: "the target decides",
    ControlPhase.RETIRED: "the target decides",
}

BOX, GAP, LEFT = 132, 18, 20
WIDTH = 2 * LEFT + len(ORDER) * BOX + (len(ORDER) - 1) * GAP
HEIGHT = 262
TOP, BOTTOM = 52, 118
BAND = 30
STYLE = """
  text { font-family: system-ui, "Segoe UI", Helvetica, Arial, sans-serif; font-size: 13px; fill: #1f2933 }
  .name { font-weight: 600; font-size: 15px }
  .small { font-size: 12px; fill: #52606d }
  .code { font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: 12px }
  .page { fill: #ffffff; stroke: #d9e2ec }
  .phase { fill: #e6f1fb; stroke: #2b6cb0 }
  .gated { fill: #fff4e0; stroke: #b7791f }
  .band { fill: #f0f4f8; stroke: #9fb3c8 }
  .freeze { fill: #d9e2ec; stroke: #52606d }
  .line { stroke: #52606d; fill: none; stroke-width: 1.5 }
  .gate { stroke: #b7791f; stroke-width: 2; stroke-dasharray: 4 3 }
  .back { stroke: #9b2c2c; fill: none; stroke-width: 1.5 }
"""


def left_of(phase: Phase) -> int:
    """Return the x of a phase's left edge."""
    return LEFT + ORDER.index(phase) * (BOX + GAP)


def text(x: float, y: float, words: str, *, style: str = "", anchor: str = "middle") -> str:
    """Return a line of text."""
    kind = f' class="{style}"' if style else ""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{kind}>{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, style: str) -> str:
    """Return a box with round corners."""
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" class="{style}"/>'


def spans(of: dict[ControlPhase, str] | None = None) -> Iterator[tuple[str, int, int]]:
    """Yield runs of phases that leave the same control phase behind: its name, or the words that `of` has for
    it, and the left and right edge of the run."""
    for said, group in groupby(ORDER, lambda phase: of[LEAVES[phase]] if of else str(LEAVES[phase])):
        phases = list(group)
        yield said, left_of(phases[0]), left_of(phases[-1]) + BOX


def passages() -> Iterator[tuple[ControlPhase, float]]:
    """Yield control phases that are passed between two phases, each with the x of the border between them."""
    for before, after in pairwise(ORDER):
        start, end = LEAVES[before], LEAVES[after]
        if start != end and end not in MOVES[start]:
            for between in MOVES[start]:
                if end in MOVES[between]:
                    yield between, left_of(after) - GAP / 2


def phases() -> Iterator[str]:
    """Yield the boxes, the arrows between them, the gates, and the commands above."""
    for phase in ORDER:
        x, middle = left_of(phase), left_of(phase) + BOX / 2
        gated = phase in GATED
        if phase is not ORDER[0]:
            yield f'<path d="M{x - GAP} 85 H{x - 3}" class="line" marker-end="url(#forward)"/>'
        if gated:
            yield f'<path d="M{x - GAP / 2:g} 24 V{BOTTOM + 8}" class="gate"/>'
            for number, line in enumerate(reversed(COMMANDS[phase])):
                yield text(middle, 42 - 15 * number, line, style="code")
        yield box(x, TOP, BOX, BOTTOM - TOP, "gated" if gated else "phase")
        yield text(middle, TOP + 22, str(phase), style="name")
        for number, line in enumerate(DOES[phase]):
            yield text(middle, TOP + 40 + 16 * number, line, style="small")
    free = [phase for phase in ORDER if phase not in GATED]
    start, end = left_of(free[0]), left_of(free[-1]) + BOX
    yield text((start + end) / 2, 27, "rekey apply", style="code")
    yield f'<path d="M{start} 42 V36 H{end} V42" class="line"/>'
    first = next(phase for phase in ORDER if phase in GATED)
    yield text(left_of(first) - GAP / 2, 18, "gate", style="small")


def bands() -> Iterator[str]:
    """Yield the control row with its passages, the authority, and rollback."""
    y = BOTTOM + 34
    yield text(LEFT, y - 8, "control row, which the clients follow", style="small", anchor="start")
    for name, start, end in spans():
        yield box(start, y, end - start, BAND, "band")
        yield text((start + end) / 2, y + 20, name, style="code")
    for passed, x in passages():
        yield box(x - 32, y + 3, 64, BAND - 6, "freeze")
        yield text(x, y + 20, str(passed), style="code")
    for who, start, end in spans(AUTHORITY):
        yield text((start + end) / 2, y + BAND + 18, who, style="small")
    back = [phase for phase in ORDER if phase in REVERSIBLE]
    start, end = left_of(back[0]), left_of(back[-1]) + BOX
    y += BAND + 32
    yield f'<path d="M{end - 20} {y} v8 H{start + 20} v-6" class="back" marker-end="url(#backward)"/>'
    words = "rekey rollback: back from any of these phases; what was written since is copied back"
    yield text((start + end) / 2, y + 26, words, style="small")
    yield text((end + WIDTH - LEFT) / 2 + GAP / 2, y + 26, "no rollback", style="small")


def draw() -> str:
    """Return the picture."""
    title = f"The phases of a migration: {', '.join(ORDER)}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
            f"<title>{escape(title)}</title>",
            f"<style>{STYLE}</style>",
            "<defs>",
            *(
                f'<marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"'
                f' orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="{colour}"/></marker>'
                for name, colour in (("forward", "#52606d"), ("backward", "#9b2c2c"))
            ),
            "</defs>",
            box(0.5, 0.5, WIDTH - 1, HEIGHT - 1, "page"),
            *phases(),
            *bands(),
            "</svg>\n",
        ]
    )


if __name__ == "__main__":
    PICTURE.write_text(draw(), "utf-8")
