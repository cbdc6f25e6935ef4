"""report.md: one page with everything about a sweep, coverage first."""

from collections import Counter
from collections.abc import Iterable, Sequence

from scalerlt.analysis.figures import Picture
from scalerlt.analysis.formatting import escape_markdown
from scalerlt.analysis.marks import GATES, STATES
from scalerlt.analysis.reading import CellResult, SweepResults
from scalerlt.analysis.tables import Table, label_text, to_markdown

ABOUT_THE_SWEEP = ("coverage", "unmeasured")


def render_page(sweep: SweepResults, tables: Sequence[Table], pictures: Sequence[Picture], gates: Sequence[str]) -> str:
    """The page's text. Links are relative to the report's directory. `gates` are lines that tell the tolerances."""
    numbered = [(table.name, _table(number, table)) for number, table in enumerate(tables, 1)]
    parts = [f"# {escape_markdown(sweep.name)}\n"]
    parts += [text for name, text in numbered if name in ABOUT_THE_SWEEP]
    parts.append("## Configurations\n\n" + _items(_configurations(sweep.cells)))
    parts += [_figure(number, picture) for number, picture in enumerate(pictures, 1)]
    parts += [text for name, text in numbered if name not in ABOUT_THE_SWEEP]
    parts.append("## Gates\n\n" + _items(gates))
    parts.append("## Notes\n\n" + _items(_notes(sweep)))
    parts.append("## Words\n\n" + _items(f"{word}: {meaning}" for word, meaning in {**STATES, **GATES}.items()))
    return "\n".join(parts)


def _table(number: int, table: Table) -> str:
    links = f"[Markdown](tables/{table.name}.md), [CSV](tables/{table.name}.csv)"
    return f"## Table {number}: {escape_markdown(table.name)}\n\n{to_markdown(table)}\n{links}\n"


def _figure(number: int, picture: Picture) -> str:
    image = f"![Figure {number}: {escape_markdown(picture.name)}](figures/{picture.name}.png)"
    link = f"[PDF](figures/{picture.name}.pdf)"
    title = f"## Figure {number}: {escape_markdown(picture.name)}"
    return f"{title}\n\n{image}\n\n{escape_markdown(picture.caption)}\n\n{link}\n"


def _configurations(cells: Sequence[CellResult]) -> list[str]:
    """What varies, with the values that each option of a config group stands for, and what all cells share."""
    values: dict[str, list[str]] = {}
    for key in sorted({key for cell in cells for key in cell.axes}):
        values[key] = list(dict.fromkeys(label_text(cell.axes.get(key)) for cell in cells))
    lines = []
    told: set[str] = set()
    for group in (key for key, found in values.items() if "." not in key and len(found) > 1):
        meanings = _meanings(cells, group, [key for key in values if key.startswith(f"{group}.")])
        told |= {key for meaning in meanings.values() for key in meaning}
        options = []
        for option, meaning in meanings.items():
            text = ", ".join(f"{key.removeprefix(f'{group}.')} {value}" for key, value in meaning.items())
            options.append(f"{option} ({text})" if text else option)
        lines.append(f"{group}: {'; '.join(options)}")
    lines += [
        f"{key}: {', '.join(found)}"
        for key, found in values.items()
        if "." in key and len(found) > 1 and key not in told
    ]
    held = [key for key, found in values.items() if len(found) == 1]
    for title, keys in (
        ("in all cells", [key for key in held if "." not in key]),
        ("and in all cells", [key for key in held if "." in key]),
    ):
        lines += [f"{title}: {', '.join(f'{key} {values[key][0]}' for key in keys)}"] if keys else []
    return lines


def _meanings(cells: Sequence[CellResult], group: str, keys: Sequence[str]) -> dict[str, dict[str, str]]:
    """For each option of a group the values it stands for, of those keys that it determines and that vary with it."""
    found: dict[str, dict[str, set[str]]] = {}
    for cell in cells:
        option = found.setdefault(label_text(cell.axes.get(group)), {key: set() for key in keys})
        for key in keys:
            option[key].add(label_text(cell.axes.get(key)))
    telling = [
        key
        for key in keys
        if all(len(option[key]) == 1 for option in found.values())
        and len({next(iter(option[key])) for option in found.values()}) > 1
    ]
    return {name: {key: next(iter(option[key])) for key in telling} for name, option in found.items()}


def _notes(sweep: SweepResults) -> list[str]:
    """What a reader of the numbers should know: what they are, their origin, warnings, and what was passed over."""
    records = [cell.record for cell in sweep.cells if cell.record is not None]
    hosts = Counter(str(record.environment.get("host", "unknown")) for record in records)
    revisions = Counter(str(record.provenance.get("git_revision") or "unknown") for record in records)
    dirty = sum(bool(record.provenance.get("git_dirty")) for record in records)
    warnings = Counter(note for record in records for note in record.notes)
    processors = Counter(str(record.environment.get("cpu", "unknown")) for record in records)
    torch = Counter(str(record.provenance.get("packages", {}).get("torch", "unknown")) for record in records)
    lines = ["n is the number of measured cohorts; an entry is their median, and a cohort's time that of its repeats"]
    if records:
        origins = {"hosts": hosts, "processors": processors, "revisions": revisions, "torch": torch}
        lines += [f"{name}: {_counted(counter)}" for name, counter in origins.items()]
    if len(hosts) > 1:
        lines.append("the cells ran on different hosts: their times do not compare")
    if len(revisions) > 1:
        lines.append("the cells ran different revisions of the code")
    if dirty:
        lines.append(f"{dirty} of {len(records)} records are of code with uncommitted changes")
    lines += [f"{count} of {len(records)} records: {note}" for note, count in sorted(warnings.items())]
    lines += [f"passed over: {problem}" for problem in sweep.problems]
    return lines


def _counted(counter: Counter[str]) -> str:
    return ", ".join(f"{name} ({count})" for name, count in sorted(counter.items()))


def _items(lines: Iterable[str]) -> str:
    return "".join(f"- {escape_markdown(line)}\n" for line in lines)
