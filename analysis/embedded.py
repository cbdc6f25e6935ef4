"""The records of a sweep as the page holds them: every cell with its figures, small enough for a browser.

Texts stand once and are named by number. Where all figures of all records would be too much, first those go that no
table shows, then the records of the last cells; the page says which.
"""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from scalerlt.analysis.marks import MEASURED
from scalerlt.analysis.reading import CellResult
from scalerlt.analysis.rows import REPETITION, row_axes
from scalerlt.analysis.tables import label_text
from scalerlt.records.base import Scalar, finite
from scalerlt.records.record import Metric, Record

BUDGET = 14_000_000
"""Characters of all cells together; a page of 30 MB still opens at once."""
EXACT_IN_A_BROWSER = 2**53


@dataclass(frozen=True)
class Embedded:
    """What goes into the page.

    Attributes:
        text: a JSON object that is safe inside a `script` element.
        cut: what had to be left out, in a sentence, or None.
    """

    text: str
    cut: str | None


class _Texts:
    """Gives every distinct value a number."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}

    def number(self, value: Any) -> int:
        return self._numbers.setdefault(value, len(self._numbers))

    def all(self) -> list[Any]:
        return list(self._numbers)


def embed(
    cells: Sequence[CellResult], swept: Sequence[str], shown: Collection[str], sources: Sequence[Sequence[int]]
) -> Embedded:
    """The cells as one JSON object.

    Args:
        swept: keys that the plans name as varying: the first columns of the plan.
        shown: metrics that the tables show, which stay when others have to go.
        sources: for each link of the page the cells (by place) whose records it opens.
    """
    texts, kinds = _Texts(), _Texts()
    axes = sorted({key for cell in cells for key in cell.axes})
    values = {key: [_text(cell.axes, key) for cell in cells] for key in axes}
    shared = {key: found[0] for key, found in values.items() if len(set(found)) == 1}
    varying = [key for key in axes if key not in shared]

    def rows(metrics: Collection[str] | None, spreads: bool) -> list[str]:
        return [
            _packed(
                [
                    cell.cell_id,
                    texts.number(cell.state),
                    texts.number(cell.reason),
                    cell.attempts,
                    [texts.number(values[key][place]) for key in varying],
                    _record(cell.record, texts),
                    [
                        _figure(name, metric, kinds, spreads)
                        for name, metric in cell.metrics.items()
                        if metrics is None or name in metrics
                    ],
                ]
            )
            for place, cell in enumerate(cells)
        ]

    found, cut = rows(None, True), None
    if _size(found) > BUDGET:
        found, cut = rows(shown, True), "of each record only the figures that a table shows are part of this page"
    if _size(found) > BUDGET:
        found = rows(shown, False)
        cut = "of each record only the figures that a table shows are part of this page, without their spread"
    if (size := _size(found)) > BUDGET:
        keep = len(found) * BUDGET // size
        found = [*found[:keep], *rows((), False)[keep:]]
        cut = f"only the first {keep} of {len(found)} records have their figures on this page"
    plan = [*row_axes(cells, (), swept), *(key for key in REPETITION if key in varying)]
    head = {
        "shared": shared,
        "axes": varying,
        "planAxes": [key for key in plan if key in varying],
        "kinds": [[texts.number(word) for word in kind] for kind in kinds.all()],
        "texts": texts.all(),
        "sources": sources,
    }
    text = f'{_packed(head)[:-1]},"cells":[{",".join(found)}]}}'
    return Embedded(_inside_script(text), cut)


def _record(record: Record | None, texts: _Texts) -> list[Any] | int:
    if record is None:
        return 0
    provenance, environment = record.provenance, record.environment
    gpus = environment.get("gpus")
    return [
        record.attempt,
        texts.number(record.started),
        texts.number(record.ended),
        texts.number(record.start),
        record.overhead_seconds,
        texts.number(_said(environment.get("host"))),
        texts.number(_said(environment.get("cpu"))),
        texts.number(_said([gpu.get("name") for gpu in gpus if isinstance(gpu, dict)]) if gpus else None),
        texts.number(_said(provenance.get("git_revision"))),
        int(bool(provenance.get("git_dirty"))),
        texts.number("\n".join(record.notes) or None),
        texts.number(None if record.failure is None else f"{record.failure.type}: {record.failure.message}"),
        texts.number(record.bundle),
    ]


def _figure(name: str, metric: Metric, kinds: _Texts, spreads: bool) -> list[Any]:
    kind = kinds.number((name, metric.unit, metric.scope, metric.method, metric.status, metric.reason))
    figure = [kind, _value(metric)]
    if metric.n is not None or metric.spread is not None:
        figure.append(metric.n)
    if metric.spread is not None and spreads:
        figure += [metric.spread.minimum, metric.spread.maximum, metric.spread.standard_deviation]
    return figure


def _value(metric: Metric) -> Scalar:
    value = metric.value if metric.status == MEASURED else None
    if isinstance(value, int) and abs(value) > EXACT_IN_A_BROWSER:
        return str(value)
    return value


def _text(axes: Any, key: str) -> str | None:
    return label_text(axes[key]) if key in axes else None


def _said(value: Any) -> str | None:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return None if value is None else str(value)


def _size(rows: Sequence[str]) -> int:
    return sum(map(len, rows))


def _packed(value: Any) -> str:
    try:
        return _encode(value)
    except ValueError:  # a figure that is not finite, which JSON has only as a word
        return _encode(finite(value))


_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_ESCAPES = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}


def _inside_script(text: str) -> str:
    """JSON in which no text can end the script element that holds it."""
    return text.translate(_ESCAPES)
