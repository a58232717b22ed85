"""The picture of a run shows each ratio as it is, beside what is asked for."""

from __future__ import annotations

from xml.etree import ElementTree as Xml

from benchmarks.plot import WANTED, svg


def test_every_ratio_is_a_bar_with_its_figure() -> None:
    figures = {work: {"ratio": 7.5 + number} for number, work in enumerate(WANTED)}
    picture = Xml.fromstring(svg(figures))  # noqa: S314 - made here
    texts = [text.text for text in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert {"7.5", "8.5", "9.5"} <= set(texts)
    assert len(list(picture.iter("{http://www.w3.org/2000/svg}line"))) == len(WANTED)
