"""Tables as LaTeX: booktabs rules, numbers aligned by siunitx, footnotes below the table.

Nothing is off the page: a long table is several in parts, a table of many columns lies on its side, and what is still
too wide or too high is set smaller by adjustbox.
"""

import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from scalerlt.analysis.formatting import Scale, one_line
from scalerlt.analysis.latex_text import escape_latex
from scalerlt.analysis.rows import Entry
from scalerlt.analysis.table_spec import Column
from scalerlt.analysis.tables import (
    Line,
    Table,
    after_number,
    cohorts_text,
    headers,
    label_text,
    number_text,
    scales_of,
)

PACKAGES = ("booktabs", "siunitx", "adjustbox", "rotating")
WIDE = 36
"""Characters from which on a text is set in lines instead of in one."""
LINES = 36
"""A table of more lines of rows and footnotes is set in parts."""
NOTE_WIDTH = 90
"""Characters of a line of a footnote, about."""
MANY = 9
"""A table of more columns lies on its side."""
HEADER_WIDTH = 10
"""Characters of a line of a header above numbers."""

_NUMBER = re.compile(r"(-?)(\d+)(?:\.(\d+))?(?:e(-?)(\d+))?")


def preamble() -> str:
    """What a document says before it can take the tables in."""
    lines = [rf"\usepackage{{{package}}}" for package in PACKAGES]
    return "\n".join(["% What the tables beside this file need.", *lines]) + "\n"


def to_latex(table: Table) -> str:
    """The table as a floating `table` with its caption, label and footnotes, or as several; ending in a newline."""
    scales = scales_of(table)
    parts = _parts(table.lines)
    label = table.label or f"tab:{table.name}"
    if len(parts) == 1:
        return _float(table, scales, table.caption, label)
    return "\n".join(
        _float(
            replace(table, lines=tuple(lines)),
            scales,
            f"{table.caption} (Part {number} of {len(parts)}.)",
            label if number == 1 else f"{label}:{number}",
        )
        for number, lines in enumerate(parts, 1)
    )


def _parts(lines: Sequence[Line]) -> list[list[Line]]:
    """The rows, divided so that those of a part and their footnotes are about a page at most."""
    parts: list[list[Line]] = [[]]
    noted: set[str] = set()
    height = 0
    for line in lines:
        notes = {*line.notes, *(note for place in line.entries for note in place.notes)}
        texts = [label_text(label) for label in line.labels]
        row = 1 + max((len(text) for text in texts), default=0) // WIDE
        added = row + _lines_of(notes - noted)
        if parts[-1] and height + added > LINES:
            parts.append([])
            noted, height, added = set(), 0, row + _lines_of(notes)
        parts[-1].append(line)
        noted |= notes
        height += added
    return parts


def _lines_of(notes: Iterable[str]) -> int:
    return sum(1 + len(note) // NOTE_WIDTH for note in notes)


def _float(table: Table, scales: Sequence[Scale], caption: str, label: str) -> str:
    notes: dict[str, int] = {}
    shown = [_row(table, scales, number, notes) for number in range(len(table.lines))]
    columns = [_Place.column([row[place] for row in shown]) for place in range(len(headers(table, scales)))]
    head = [_header(text, column) for text, column in zip(headers(table, scales), columns, strict=True)]
    body = [" & ".join(place.latex(column) for place, column in zip(row, columns, strict=True)) for row in shown]
    size, gap = (
        ("small", 6) if len(columns) <= 6 else ("footnotesize", 4) if len(columns) <= MANY else ("scriptsize", 2)
    )
    name, height = ("sidewaystable", "textwidth") if len(columns) > MANY else ("table", "textheight")
    items = [rf"  \item[{number}] {escape_latex(note)}" for note, number in notes.items()]
    lines = [
        *(f"% needs \\usepackage{{{package}}}" for package in PACKAGES),
        rf"\begin{{{name}}}",
        rf"  \begin{{adjustbox}}{{max totalheight=0.95\{height}, center}}",
        r"  \begin{minipage}{\linewidth}",
        r"  \centering",
        rf"  \caption{{{escape_latex(caption)}}}",
        rf"  \label{{{label}}}",
        rf"  \{size}\setlength{{\tabcolsep}}{{{gap}pt}}",
        r"  \begin{adjustbox}{max width=\linewidth}",
        r"  \begin{tabular}{",
        *(f"    {column.format}" for column in columns),
        r"  }",
        r"    \toprule",
        f"    {' & '.join(head)} \\\\",
        r"    \midrule",
        *(f"    {row} \\\\" for row in body),
        r"    \bottomrule",
        r"  \end{tabular}",
        r"  \end{adjustbox}",
        *([rf"  \begin{{list}}{{}}{{{_NOTES}}}\footnotesize", *items, r"  \end{list}"] if items else []),
        r"  \end{minipage}",
        r"  \end{adjustbox}",
        rf"\end{{{name}}}",
    ]
    return "\n".join(lines) + "\n"


_NOTES = r"\leftmargin 2em \labelwidth 1.5em \labelsep .5em \itemsep 0pt \parsep 0pt \topsep 4pt"
"""The lengths of the list of footnotes."""


@dataclass(frozen=True)
class _Column:
    """How one column is set: the argument of tabular, and whether it aligns numbers."""

    format: str
    numbers: bool = False


@dataclass(frozen=True)
class _Place:
    """One place of the table: a number with what follows it, or a text; and the numbers of its footnotes."""

    text: str
    after: str = ""
    marks: tuple[int, ...] = ()
    figure: bool = False

    @property
    def number(self) -> re.Match[str] | None:
        """The parts of the number as it is written, where it is one that digits show."""
        return _NUMBER.fullmatch(self.text.replace(",", "")) if self.figure else None

    @property
    def tail(self) -> str:
        """What follows the number or text."""
        after = f"{'~' if self.after.startswith(' ') else ''}{escape_latex(self.after)}"
        return after + (rf"\textsuperscript{{{','.join(map(str, self.marks))}}}" if self.marks else "")

    def latex(self, column: _Column) -> str:
        if (number := self.number) is not None:
            return f"{number[0]} {{{self.tail}}}" if self.tail else number[0]
        text = escape_latex(self.text) + self.tail
        return f"{{{text}}}" if column.numbers else text

    @staticmethod
    def column(places: Sequence["_Place"]) -> _Column:
        """How a column of these places is set."""
        found = [number for place in places if (number := place.number) is not None]
        if found:
            return _Column(_aligned(found, [place for place in places if place.number is not None]), numbers=True)
        if max((len(place.text) for place in places), default=0) > WIDE:
            return _Column(r">{\raggedright\arraybackslash}p{0.35\linewidth}")
        return _Column("c" if any(place.figure for place in places) else "l")


def _aligned(numbers: Sequence[re.Match[str]], places: Sequence[_Place]) -> str:
    """siunitx's column for these numbers: room for their digits, and for what follows them."""
    sign = "-" if any(number[1] for number in numbers) else ""
    whole = max(len(number[2]) for number in numbers)
    decimals = max(len(number[3] or "") for number in numbers)
    layout = f"{sign}{whole}.{decimals}"
    if exponents := [number for number in numbers if number[5]]:
        digits = max(len(number[5]) for number in exponents)
        layout += f"e{'-' if any(number[4] for number in exponents) else ''}{digits}"
    longest = max((place.tail for place in places), key=len)
    room = f",table-align-text-after=false,table-space-text-post={{{longest}}}" if longest else ""
    return f"S[table-format={layout}{room}]"


def _row(table: Table, scales: Sequence[Scale], number: int, notes: dict[str, int]) -> list[_Place]:
    line = table.lines[number]

    def marks(found: Iterable[str]) -> tuple[int, ...]:
        return tuple(dict.fromkeys(notes.setdefault(note, len(notes) + 1) for note in found))

    places = [_Place(label_text(label)) for label in line.labels]
    if table.counted:
        places.append(_Place(cohorts_text(line.cohorts or (0, 0)), marks=marks(line.notes)))
    for column, scale, place in zip(table.columns, scales, line.entries, strict=True):
        places.append(_figure(place, column, scale, marks(place.notes)))
    return [*places, _Place(line.evidence or "")] if table.counted else places


def _figure(place: Entry, column: Column, scale: Scale, marks: tuple[int, ...]) -> _Place:
    return _Place(number_text(place, column, scale), after_number(place, column, scale), marks, figure=True)


def _header(text: str, column: _Column) -> str:
    """The header, word below word above numbers, so that a column is no wider than what stands in it."""
    if not column.numbers and column.format != "c":
        return escape_latex(text)
    words = one_line(text).split(" ")
    lines = textwrap.wrap(" ".join(words), max(HEADER_WIDTH, *map(len, words)), break_on_hyphens=False)
    stack = r"\\".join(rf"\strut {escape_latex(line)}" for line in lines)
    return rf"{{\shortstack{{{stack}}}}}"
