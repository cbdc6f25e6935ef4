"""What a reader of a sweep's numbers should know: where they come from, what varies, and what to be careful about."""

from collections import Counter
from collections.abc import Iterable, Sequence
from operator import itemgetter

from scalerlt.analysis.evidence import gpus_of, processor_of, revision_of
from scalerlt.analysis.marks import MEASURED
from scalerlt.analysis.reading import CellResult, SweepResults
from scalerlt.analysis.rows import REPETITION
from scalerlt.analysis.tables import label_text
from scalerlt.records.record import Record

IN_ALL_CELLS = "in all cells"
RULED_OUT = ("skipped", "unsupported")


def origins(sweep: SweepResults) -> dict[str, str]:
    """Hosts, processors, GPUs, revisions and torch versions of the records that count, each with how many records."""
    records = _records(sweep)
    found = {
        "hosts": [_host(record) for record in records],
        "processors": [processor_of(record) for record in records],
        "GPUs": [name for record in records for name in gpus_of(record)],
        "revisions": [revision_of(record) for record in records],
        "torch": [str(record.provenance.get("packages", {}).get("torch", "unknown")) for record in records],
    }
    return {title: _counted(values) for title, values in found.items() if values}


def warnings(sweep: SweepResults) -> list[str]:
    """What may make the numbers less than they seem, one sentence each, without the files that were passed over."""
    records = _records(sweep)
    return [
        *_mixed(records),
        *_cohorts(sweep.cells),
        *_unfinished(sweep.cells),
        *(
            f"{count} of {len(records)} records: {note}"
            for note, count in sorted(Counter(note for record in records for note in record.notes).items())
        ),
    ]


def configurations(cells: Sequence[CellResult]) -> list[str]:
    """What varies, with the values that each option of a config group stands for, and what all cells share."""
    columns = {
        key: [label_text(cell.axes.get(key)) for cell in cells] for key in sorted({k for c in cells for k in c.axes})
    }
    values = {key: list(dict.fromkeys(column)) for key, column in columns.items()}
    lines = []
    told: set[str] = set()
    for group in (key for key, found in values.items() if "." not in key and len(found) > 1):
        meaning = _told_by(columns, group)
        told |= meaning.keys()
        options = []
        for option in values[group]:
            text = ", ".join(f"{key.removeprefix(f'{group}.')} {found[option]}" for key, found in meaning.items())
            options.append(f"{option} ({text})" if text else option)
        lines.append(f"{group}: {'; '.join(options)}")
    lines += [
        f"{key}: {', '.join(found)}"
        for key, found in values.items()
        if "." in key and len(found) > 1 and key not in told
    ]
    held = [key for key, found in values.items() if len(found) == 1]
    for title, keys in (
        (IN_ALL_CELLS, [key for key in held if "." not in key]),
        (f"and {IN_ALL_CELLS}", [key for key in held if "." in key]),
    ):
        lines += [f"{title}: {', '.join(f'{key} {values[key][0]}' for key in keys)}"] if keys else []
    return lines


def _told_by(columns: dict[str, list[str]], group: str) -> dict[str, dict[str, str]]:
    """The keys of a group that its option determines and that vary with it: for each option the value."""
    options = set(columns[group])
    found = {}
    for key in (key for key in columns if key.startswith(f"{group}.")):
        pairs = set(zip(columns[group], columns[key], strict=True))
        if len(pairs) == len(options) and len({value for _, value in pairs}) > 1:
            found[key] = dict(pairs)
    return found


def _mixed(records: Sequence[Record]) -> list[str]:
    """Hardware and code that are not the same for all records."""
    lines = []
    hosts = {_host(record) for record in records}
    hardware = {(processor_of(record), record.environment.get("cpus"), tuple(gpus_of(record))) for record in records}
    if len(hosts) > 1:
        alike = "of one kind" if len(hardware) == 1 else f"of {len(hardware)} kinds"
        lines.append(f"the cells ran on different hosts: their times do not compare ({len(hosts)} hosts, {alike})")
    elif len(hardware) > 1:
        lines.append(f"the cells ran on different hardware: their times do not compare ({len(hardware)} kinds)")
    bundles: dict[str, set[str]] = {}
    for record in records:
        if record.bundle is not None:
            bundles.setdefault(record.bundle, set()).add(_host(record))
    if split := sum(len(found) > 1 for found in bundles.values()):
        lines.append(f"{split} of {len(bundles)} bundles ran on more than one host: their cells are no pairs")
    revisions = Counter(revision_of(record) for record in records)
    if len(revisions) > 1:
        lines.append(f"the cells ran different revisions of the code ({len(revisions)})")
    if dirty := sum(bool(record.provenance.get("git_dirty")) for record in records):
        lines.append(f"{dirty} of {len(records)} records are of code with uncommitted changes")
    return lines


def _cohorts(cells: Sequence[CellResult]) -> list[str]:
    """Configurations of which only some cohorts were measured."""
    planned: dict[tuple[object, ...], list[bool]] = {}
    for cell in cells:
        if cell.state not in RULED_OUT:
            key = tuple(sorted((item for item in cell.axes.items() if item[0] not in REPETITION), key=itemgetter(0)))
            planned.setdefault(key, []).append(cell.state == MEASURED)
    short = [found for found in planned.values() if 0 < sum(found) < len(found)]
    if not short:
        return []
    least = min(short, key=lambda found: (sum(found), -len(found)))
    return [
        f"{len(short)} of {len(planned)} configurations lack measured cohorts (the least: {sum(least)} of {len(least)})"
    ]


def _unfinished(cells: Sequence[CellResult]) -> list[str]:
    states = Counter(cell.state for cell in cells)
    lines = []
    if states["running"]:
        lines.append(f"{states['running']} of {len(cells)} cells were running when this was built")
    if states["not_run"]:
        lines.append(f"{states['not_run']} of {len(cells)} cells were never started")
    return lines


def _records(sweep: SweepResults) -> list[Record]:
    return [cell.record for cell in sweep.cells if cell.record is not None]


def _host(record: Record) -> str:
    return str(record.environment.get("host", "unknown"))


def _counted(values: Iterable[str]) -> str:
    return ", ".join(f"{name} ({count})" for name, count in sorted(Counter(values).items()))
