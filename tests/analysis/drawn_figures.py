"""Cells that stand in no file, the figures of them, and what can be read on those."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from scalerlt.analysis.drawing import SMALL, fixed_style
from scalerlt.analysis.figure_spec import Figures, load_figures
from scalerlt.analysis.figures import Picture, pictures
from scalerlt.analysis.reading import CellResult
from scalerlt.records.base import Scalar
from scalerlt.records.record import Metric, Spread

NASTY = [
    "$x_{1$",
    "$\\alpha$ and $",
    "_hidden",
    "__init__",
    "50%_q & more",
    "a\\b{c}^2~#",
    "NA",
    "1e5",
    "µ ± — × Δα",
    "模型-7B",
    "שלום",
    "🚀 fast",
    "line\nbreak\tand tab",
    "",
    "<img src=x>",
    "meta-llama/Llama-3.1-405B-Instruct-FP8-dynamic-per-token-activation-scaling-2026-11-29",
    "x" * 150,
    "a_fairly_long_name_of_a_thing_with_many_parts_in_it",
    "é́ combining",
    "last",
]
"""Twenty values that an axis may have."""


def spec_of(name: str, **changes: Any) -> Figures:
    """A shipped definition, changed."""
    [spec] = [spec for spec in load_figures() if spec.name == name]
    return type(spec).model_validate({**spec.model_dump(), **changes})


def cell(
    axes: Mapping[str, Scalar], metrics: Mapping[str, Metric] | None = None, state: str = "measured"
) -> CellResult:
    """A cell of the experiment `rollout_throughput`, unless its axes say otherwise."""
    full = {"experiment": "rollout_throughput", "precision": "fp32", "batch": "small", "seed": 0, "cohort": 0, **axes}
    name = "-".join(map(str, full.values()))
    return CellResult("trial", name, full, state, metrics=metrics or {})


def speed(value: float, **more: Any) -> dict[str, Metric]:
    return {"tokens_per_second": Metric(value=value, unit="token/s", **more)}


def spread(low: float, high: float) -> dict[str, Any]:
    return {"n": 3, "spread": Spread(minimum=low, maximum=high, standard_deviation=0.1)}


def drawn(spec: Figures, cells: Sequence[CellResult], swept: Sequence[str] = ()) -> list[Picture]:
    return pictures([spec], cells, swept)


def visible_words(figure: Figure) -> Iterator[tuple[Text, Bbox]]:
    """The words that are drawn and where, frames around them included."""
    with fixed_style():
        figure.draw_without_rendering()
    unseen = set()
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            unseen |= {id(tick.label1) for tick in axis.get_major_ticks() if not low <= tick.get_loc() <= high}
            unseen |= {id(tick.label2) for tick in axis.get_major_ticks()}
    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        if text.get_visible() and text.get_text().strip() and id(text) not in unseen:
            frame = text.get_bbox_patch()
            yield text, text.get_window_extent() if frame is None else frame.get_window_extent()


def assert_legible(figure: Figure) -> None:
    """No word is cut off, none overlaps another, none is too small, none is taken for mathematics."""
    boxes: list[tuple[str, Bbox]] = []
    for text, box in visible_words(figure):
        word = text.get_text()
        assert text.get_fontsize() >= SMALL, word
        assert not text.get_parse_math(), word
        assert -1 <= box.x0 <= box.x1 <= figure.bbox.width + 1, f"{word!r} is cut off: {box} of {figure.bbox}"
        assert -1 <= box.y0 <= box.y1 <= figure.bbox.height + 1, f"{word!r} is cut off: {box} of {figure.bbox}"
        for other, before in boxes:
            across = min(box.x1, before.x1) - max(box.x0, before.x0)
            up = min(box.y1, before.y1) - max(box.y0, before.y0)
            assert min(across, up) <= 1, f"{word!r} lies on {other!r}"
        boxes.append((word, box))
