"""Tables as LaTeX: booktabs rules, numbers aligned by siunitx, footnotes beside the table by threeparttable."""

import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scalerlt.analysis.formatting import Scale, one_line
from scalerlt.analysis.latex_text import escape_latex
from scalerlt.analysis.rows import Entry
from scalerlt.analysis.table_spec import Column
from scalerlt.analysis.tables import (
    Table,
    after_number,
    cohorts_text,
    headers,
    label_text,
    number_text,
    scales_of,
)

PACKAGES = ("booktabs", "siunitx", "threeparttable")
WIDE = 36
"""Characters from which on a text is set in lines instead of in one."""
HEADER_WIDTH = 10
"""Characters of a line of a header above numbers."""

_NUMBER = re.compile(r"(-?)(\d+)(?:\.(\d+))?(?:e(-?)(\d+))?")


def preamble() -> str:
    """What a document says before it can take the tables in."""
    lines = [rf"\usepackage{{{package}}}" for package in PACKAGES]
    return "\n".join(["% What the tables beside this file need.", *lines]) + "\n"


def to_latex(table: Table) -> str:
    """The table as a floating `table` with its caption, label and footnotes, ending in a newline."""
    scales = scales_of(table)
    notes: dict[str, int] = {}
    shown = [_row(table, scales, number, notes) for number in range(len(table.lines))]
    columns = [_Place.column([row[place] for row in shown]) for place in range(len(headers(table, scales)))]
    head = [_header(text, column) for text, column in zip(headers(table, scales), columns, strict=True)]
    body = [" & ".join(place.latex(column) for place, column in zip(row, columns, strict=True)) for row in shown]
    size, gap = ("small", 6) if len(columns) <= 6 else ("footnotesize", 4) if len(columns) <= 9 else ("scriptsize", 2)
    items = [rf"    \item[{number}] {escape_latex(note)}" for note, number in notes.items()]
    lines = [
        *(f"% needs \\usepackage{{{package}}}" for package in PACKAGES),
        r"\begin{table}",
        r"  \centering",
        rf"  \{size}\setlength{{\tabcolsep}}{{{gap}pt}}",
        r"  \begin{threeparttable}",
        rf"  \caption{{{escape_latex(table.caption)}}}",
        rf"  \label{{{table.label or f'tab:{table.name}'}}}",
        r"  \begin{tabular}{",
        *(f"    {column.format}" for column in columns),
        r"  }",
        r"    \toprule",
        f"    {' & '.join(head)} \\\\",
        r"    \midrule",
        *(f"    {row} \\\\" for row in body),
        r"    \bottomrule",
        r"  \end{tabular}",
        *([r"  \begin{tablenotes}[flushleft]\footnotesize", *items, r"  \end{tablenotes}"] if items else []),
        r"  \end{threeparttable}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


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
        if any(place.figure for place in places):
            return _Column("c")
        if max((len(place.text) for place in places), default=0) > WIDE:
            return _Column(r">{\raggedright\arraybackslash}p{0.35\linewidth}")
        return _Column("l")


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
