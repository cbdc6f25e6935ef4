"""report.html: one self-contained page with tables, figures, the plan, and the records behind each number.

It asks for nothing beyond itself: figures, style, script and records are part of it, and its content security policy
allows no request and no other script. Every text of a record is data: escaped in the markup, or put in as text by the
script.
"""

import base64
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from string import Template

from scalerlt.analysis.embedded import embed
from scalerlt.analysis.evidence import KINDS
from scalerlt.analysis.figures import Picture
from scalerlt.analysis.formatting import Scale
from scalerlt.analysis.marks import COMPARISONS, GATES, MEASURED, STATES
from scalerlt.analysis.notes import IN_ALL_CELLS, configurations, origins, warnings
from scalerlt.analysis.reading import CellResult, SweepResults
from scalerlt.analysis.report_markdown import WHAT_N_IS
from scalerlt.analysis.rows import Entry, is_number
from scalerlt.analysis.table_spec import Column
from scalerlt.analysis.tables import Line, Table, cohorts_text, entry_text, headers, label_text, scales_of
from scalerlt.records.base import Scalar

ROWS = 1000
"""Of a table on the page; longer ones are whole in their files."""
IMAGE_BYTES = 9_000_000
"""Of all figures of a page together; further ones are named only."""
PIXELS = 125
"""Of a figure's inch on the page."""
PROBLEMS_AT_ONCE = 5
IN_THE_PLAN = "unmeasured"
"""The table whose rows the plan of the page shows."""


@dataclass
class _Links:
    """The records behind each number: every distinct set of cells once."""

    places: Mapping[str, int]
    """The cell, by its place, of each record file that counts."""
    numbers: dict[tuple[int, ...], int] = field(default_factory=dict)

    def number(self, files: Iterable[str]) -> int | None:
        """The number of a set of records; None for no record."""
        cells = tuple(sorted({self.places[file] for file in files if file in self.places}))
        return self.numbers.setdefault(cells, len(self.numbers)) if cells else None


def render_html(
    sweep: SweepResults,
    tables: Sequence[Table],
    pictures: Sequence[Picture],
    images: Mapping[str, bytes],
    gates: Sequence[str],
) -> str:
    """The page.

    Args:
        images: each picture's PNG, by its name.
        gates: lines that tell the tolerances.
    """
    links = _Links({cell.file: place for place, cell in enumerate(sweep.cells) if cell.file is not None})
    shown = [(number, table) for number, table in enumerate(tables, 1) if table.name != IN_THE_PLAN]
    figures = _figures(pictures, images, links)
    blocks = [_table(number, table, links) for number, table in shown]
    metrics = {column.metric for table in tables for column in table.columns} | {"gate"}
    embedded = embed(sweep.cells, sweep.swept, metrics, [list(cells) for cells in links.numbers])
    body = [
        _head(sweep, embedded.cut),
        _section("configurations", "Configurations", _configurations(sweep.cells)),
        _section("figures", "Figures", figures) if pictures else "",
        _section("tables", "Tables", "".join(blocks)),
        _section("plan", "Plan", _plan(sweep.cells)),
        _section("gates", "Gates", _list(gates, named=False)),
        _section("words", "Words", _list([f"{word}: {meaning}" for word, meaning in _words().items()], named=True)),
    ]
    style, script = (_asset(f"page.{ending}") for ending in ("css", "js"))
    return Template(_asset("page.html")).substitute(
        title=escape(f"{sweep.name}: report"),
        style=style,
        style_hash=_csp_hash(style),
        script=script,
        script_hash=_csp_hash(script),
        contents=_contents(tables, pictures),
        body="\n".join(body),
        records=embedded.text,
    )


def _head(sweep: SweepResults, cut: str | None) -> str:
    counts = Counter(cell.state for cell in sweep.cells)
    states = [state for state in (MEASURED, *STATES) if counts[state]]
    total = max(len(sweep.cells), 1)
    x, bars = 0.0, []
    for state in states:
        width = 1000 * counts[state] / total
        title = escape(f"{state}: {counts[state]}")
        place = f'x="{x:.2f}" y="0" width="{width:.2f}" height="12"'
        bars.append(f'<rect class="fill-{state}" {place}><title>{title}</title></rect>')
        x += width
    legend = "".join(
        f'<li><button type="button" data-state="{state}" title="{escape(STATES.get(state, "there are numbers"))}">'
        f'<span class="dot s-{state}"></span><b>{counts[state]:,}</b> {state}</button></li>'
        for state in states
    )
    facts = "".join(f"<dt>{escape(title)}</dt><dd>{escape(text)}</dd>" for title, text in origins(sweep).items())
    return (
        f'<header id="top"><h1>{escape(sweep.name)}</h1>'
        f'<p class="lead">{len(sweep.cells):,} planned cells, {len(sweep.records):,} records that count. '
        "A number opens the records that it is made of.</p>"
        f'<svg class="bar" viewBox="0 0 1000 12" preserveAspectRatio="none" role="img" aria-label="Cells by state">'
        f'{"".join(bars)}</svg><ul class="legend">{legend}</ul>{_warnings(sweep, cut)}'
        f'<dl class="facts">{facts}</dl></header>'
    )


def _warnings(sweep: SweepResults, cut: str | None) -> str:
    lines = [escape(line[0].upper() + line[1:]) for line in [*warnings(sweep), *([cut] if cut else [])]]
    passed_over = [f"<li>{escape(problem)}</li>" for problem in sweep.problems]
    if passed_over:
        number = len(passed_over)
        title = f"{number} file{'s were' if number > 1 else ' was'} passed over"
        is_open = " open" if number <= PROBLEMS_AT_ONCE else ""
        lines.append(f"<details{is_open}><summary>{title}</summary><ul>{''.join(passed_over)}</ul></details>")
    if not lines:
        return ""
    items = "".join(f"<li>{line}</li>" for line in lines)
    return f'<section class="warnings" id="warnings"><h2>Before you read the numbers</h2><ul>{items}</ul></section>'


def _configurations(cells: Sequence[CellResult]) -> str:
    lines = configurations(cells)
    shared = [line for line in lines if IN_ALL_CELLS in line.partition(":")[0]]
    varying = _list((line for line in lines if line not in shared), named=True)
    common = f'<details class="shared"><summary>What all cells share</summary>{_list(shared, named=True)}</details>'
    return varying + (common if shared else "")


def _figures(pictures: Sequence[Picture], images: Mapping[str, bytes], links: _Links) -> str:
    blocks, left = [], IMAGE_BYTES
    for number, picture in enumerate(pictures, 1):
        image, (width, height) = images[picture.name], picture.figure.get_size_inches()
        left -= len(image)
        sheet = f'<p class="cut">Not on this page: see figures/{escape(picture.name)}.png.</p>'
        if left >= 0:
            encoded = base64.b64encode(image).decode("ascii")
            source = f'width="{width * PIXELS:.0f}" src="data:image/png;base64,{encoded}"'
            sheet = f'<div class="sheet"><img alt="{escape(picture.name)}" {source}></div>'
        wide = ' class="wide"' if width > 1.5 * height and width > 5 else ""
        opened = links.number(picture.sources)
        records = "" if opened is None else f" {_link(opened, 'Records', title=picture.name)}"
        title = f'<h3><span class="number">Figure {number}</span>{escape(picture.name)}</h3>'
        caption = f"<figcaption>{title}{escape(picture.caption)}{records}</figcaption>"
        blocks.append(f'<figure id="figure-{escape(picture.name)}"{wide}>{sheet}{caption}</figure>')
    return f'<div class="figures">{"".join(blocks)}</div>'


def _table(number: int, table: Table, links: _Links) -> str:
    scales = scales_of(table)
    notes: dict[str, int] = {}

    def marks(found: Iterable[str]) -> str:
        refs = []
        for note in found:
            place = notes.setdefault(note, len(notes) + 1)
            refs.append(f'<a href="#{escape(table.name)}-{place}" title="{escape(note)}">{place}</a>')
        return f"<sup>{' '.join(refs)}</sup>" if refs else ""

    rows = [_row(table, line, scales, links, marks) for line in table.lines[:ROWS]]
    name = escape(table.name)
    footnotes = "".join(f'<li id="{name}-{place}">{escape(note)}</li>' for note, place in notes.items())
    cut = f"The first {ROWS:,} of {len(table.lines):,} rows; all are in tables/{name}.csv."
    return (
        f'<div class="block" id="table-{name}"><span class="file">tables/{name}.csv</span>'
        f'<h3><span class="number">Table {number}</span>{name}</h3><p class="caption">{escape(table.caption)}</p>'
        f'<div class="scroll" tabindex="0"><table class="data" data-labels="{len(table.names)}">'
        f"<thead>{_table_head(table, scales)}</thead>"
        f"<tbody>{''.join(rows)}</tbody></table></div>"
        + (f'<p class="cut">{cut}</p>' if len(table.lines) > ROWS else "")
        + (f'<ol class="notes">{footnotes}</ol>' if footnotes else "")
        + "</div>"
    )


def _table_head(table: Table, scales: Sequence[Scale]) -> str:
    first = len(table.names) + table.counted
    last = first + len(table.columns)
    cells = []
    for place, title in enumerate(headers(table, scales)):
        metric = f' data-m="{escape(table.columns[place - first].metric)}"' if first <= place < last else ""
        numeric = ' class="num"' if len(table.names) <= place < last else ""
        cells.append(f'<th scope="col"{numeric}{metric}><button type="button">{escape(title)}</button></th>')
    return f"<tr>{''.join(cells)}</tr>"


def _row(
    table: Table, line: Line, scales: Sequence[Scale], links: _Links, marks: Callable[[Iterable[str]], str]
) -> str:
    cells = [f"<td{_sort_value(label)}>{escape(label_text(label))}</td>" for label in line.labels]
    if line.cohorts is not None:
        cells.append(
            f'<td class="num n" data-v="{line.cohorts[0]}">{cohorts_text(line.cohorts)}{marks(line.notes)}</td>'
        )
    for column, scale, place in zip(table.columns, scales, line.entries, strict=True):
        text = _entry(place, column, scale, links)
        cells.append(f'<td class="num"{_sort_value(place.value)}>{text}{marks(place.notes)}</td>')
    if line.evidence is not None:
        cells.append(f"<td>{escape(line.evidence)}</td>")
    return f"<tr>{''.join(cells)}</tr>"


def _entry(place: Entry, column: Column, scale: Scale, links: _Links) -> str:
    text = entry_text(place, column, scale)
    name = text if text in GATES or text in COMPARISONS else ""
    if place.value is None:
        name = f"word s-{text}" if text in STATES else "word"
    if column.form == "count" and column.header in (MEASURED, *STATES) and place.value:
        return f'<button type="button" data-state="{column.header}">{escape(text)}</button>'
    opened = links.number(place.sources)
    if opened is not None:
        return _link(opened, text, name)
    return f'<span class="{name}">{escape(text)}</span>' if name else escape(text)


def _link(number: int, text: str, name: str = "", title: str | None = None) -> str:
    about = "" if title is None else f' data-title="{escape(title)}"'
    name = escape(f"ref {name}".strip())
    return f'<button type="button" class="{name}" data-s="{number}"{about}>{escape(text)}</button>'


def _sort_value(value: Scalar) -> str:
    return f' data-v="{value!r}"' if is_number(value) and value == value else ""


def _plan(cells: Sequence[CellResult]) -> str:
    counts = Counter(cell.state for cell in cells)
    chips = [f'<button type="button" data-state="" aria-pressed="true">all {len(cells):,}</button>'] + [
        f'<button type="button" data-state="{state}" aria-pressed="false"><span class="dot s-{state}"></span>'
        f"{state} {counts[state]:,}</button>"
        for state in (MEASURED, *STATES)
        if counts[state]
    ]
    return (
        '<p class="caption">Every cell of every plan of the sweep, in the order of the plans, with what became of it.'
        '</p><div class="filters"><div class="chips" id="plan-states" role="group" aria-label="State">'
        f'{"".join(chips)}</div><input type="search" id="plan-search" placeholder="Filter by any words" '
        'aria-label="Filter the plan">'
        '<span id="plan-count" aria-live="polite"></span></div><div class="scroll" tabindex="0"><table><thead></thead>'
        '<tbody></tbody></table></div><button type="button" class="more" hidden></button>'
    )


def _contents(tables: Sequence[Table], pictures: Sequence[Picture]) -> str:
    def links(places: Iterable[tuple[str, str]]) -> str:
        return "".join(f'<a href="#{escape(place)}">{escape(text)}</a>' for place, text in places)

    sections = [("top", "Overview"), ("configurations", "Configurations"), ("plan", "Plan"), ("gates", "Gates")]
    places = ["plan" if table.name == IN_THE_PLAN else f"table-{table.name}" for table in tables]
    numbered = [f"{number} {table.name}" for number, table in enumerate(tables, 1)]
    return (
        f"<b>Report</b>{links([*sections, ('words', 'Words')])}"
        f"<b>Tables</b>{links(zip(places, numbered, strict=True))}"
        + (f"<b>Figures</b>{links((f'figure-{one.name}', one.name) for one in pictures)}" if pictures else "")
    )


def _section(name: str, title: str, content: str) -> str:
    return f'<section id="{name}"><h2>{title}</h2>{content}</section>'


def _list(lines: Iterable[str], *, named: bool) -> str:
    """Lines as a list; of `named` ones what stands before the first colon is set off."""
    items = []
    for line in lines:
        name, colon, rest = line.partition(":") if named else ("", "", line)
        items.append(f"<li>{f'<b>{escape(name)}</b>{colon}' if name else ''}{escape(rest)}</li>")
    return f'<ul class="plain">{"".join(items)}</ul>'


def _words() -> dict[str, str]:
    return {"n": WHAT_N_IS.removeprefix("n is "), **STATES, **GATES, **COMPARISONS, **KINDS}


def _asset(name: str) -> str:
    return (files("scalerlt.analysis") / "page" / name).read_text(encoding="utf-8")


def _csp_hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}"
