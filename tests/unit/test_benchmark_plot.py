"""The picture of a run shows each ratio as it is, beside what is asked for."""

from __future__ import annotations

from xml.etree import ElementTree as Xml

from benchmarks.plot import WANTED, svg
from benchmarks.shape import Shape


def test_every_ratio_is_a_bar_with_its_figure() -> None:
    figures = {work: {"ratio": 7.5 + number} for number, work in enumerate(WANTED)}
    picture = Xml.fromstring(svg(figures))  # noqa: S314 - made here
    texts = [text.text for text in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert {"7.5", "8.5", "9.5"} <= set(texts)
    assert len(list(picture.iter("{http://www.w3.org/2000/svg}line"))) == len(WANTED)


def test_the_stub_s_source_is_in_key_order_and_half_of_it_in_one_partition_if_asked() -> None:
    for shape in (Shape(1000), Shape(1000, huge=True)):
        keys = [shape.key(number) for number in range(shape.rows)]
        assert keys == sorted(set(keys))
    assert sum(key[0] == "tenant-100-huge" for key in keys) == 500
