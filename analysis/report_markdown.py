"""report.md: one page with everything about a sweep, coverage first."""

from collections.abc import Iterable, Sequence

from scalerlt.analysis.evidence import KINDS
from scalerlt.analysis.figures import Picture
from scalerlt.analysis.formatting import escape_markdown
from scalerlt.analysis.marks import GATES, STATES
from scalerlt.analysis.notes import configurations, origins, warnings
from scalerlt.analysis.reading import SweepResults
from scalerlt.analysis.tables import Table, to_markdown

ABOUT_THE_SWEEP = ("coverage", "unmeasured")
WHAT_N_IS = "n is the number of measured cohorts; an entry is their median, and a cohort's time that of its repeats"


def render_markdown(
    sweep: SweepResults, tables: Sequence[Table], pictures: Sequence[Picture], gates: Sequence[str]
) -> str:
    """The page's text. Links are relative to the report's directory. `gates` are lines that tell the tolerances."""
    numbered = [(table.name, _table(number, table)) for number, table in enumerate(tables, 1)]
    parts = [f"# {escape_markdown(sweep.name)}\n"]
    parts += [text for name, text in numbered if name in ABOUT_THE_SWEEP]
    parts.append("## Configurations\n\n" + _items(configurations(sweep.cells)))
    parts += [_figure(number, picture) for number, picture in enumerate(pictures, 1)]
    parts += [text for name, text in numbered if name not in ABOUT_THE_SWEEP]
    parts.append("## Gates\n\n" + _items(gates))
    parts.append("## Notes\n\n" + _items(_notes(sweep)))
    words = {**STATES, **GATES, **KINDS}
    parts.append("## Words\n\n" + _items(f"{word}: {meaning}" for word, meaning in words.items()))
    return "\n".join(parts)


def _table(number: int, table: Table) -> str:
    links = f"[Markdown](tables/{table.name}.md), [CSV](tables/{table.name}.csv)"
    return f"## Table {number}: {escape_markdown(table.name)}\n\n{to_markdown(table)}\n{links}\n"


def _figure(number: int, picture: Picture) -> str:
    image = f"![Figure {number}: {escape_markdown(picture.name)}](figures/{picture.name}.png)"
    link = f"[PDF](figures/{picture.name}.pdf)"
    title = f"## Figure {number}: {escape_markdown(picture.name)}"
    return f"{title}\n\n{image}\n\n{escape_markdown(picture.caption)}\n\n{link}\n"


def _notes(sweep: SweepResults) -> list[str]:
    return [
        WHAT_N_IS,
        *(f"{title}: {text}" for title, text in origins(sweep).items()),
        *warnings(sweep),
        *(f"passed over: {problem}" for problem in sweep.problems),
    ]


def _items(lines: Iterable[str]) -> str:
    return "".join(f"- {escape_markdown(line)}\n" for line in lines)
