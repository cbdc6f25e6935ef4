"""`scalerlt status` for people and for programs: a table, a document, or the logs of what went wrong; once or again."""

import json
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleDimensions, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from scalerlt.launching.jobs import Jobs
from scalerlt.launching.recovery import NO_SLURM
from scalerlt.launching.status import (
    BAD,
    UNDER_WAY,
    CellStatus,
    SweepStatus,
    duration,
    of_cells,
    status_of_sweeps,
    totals,
)
from scalerlt.records.base import finite, now, open_file

LOG_LINES = 10
LOG_BYTES = 2**16
IDLE_LOOKS = 2
"""A job that Slurm puts back into its queue is for a moment in no state that would be waited for."""


def show_status(
    runs: Path, jobs: Jobs = NO_SLURM, *, failed: bool = False, as_json: bool = False, faults: Iterable[str] = ()
) -> int:
    """Print the state of each cell, the totals, and the logs of those that ended badly.

    Args:
        jobs: what Slurm says.
        failed: only cells that ended badly, each with the last lines of its log.
        as_json: one JSON document (see `to_plain`).
        faults: what could not be learnt, for the document.

    Returns:
        1 when some cells ended without an answer, else 0.
    """
    seen = status_of_sweeps(runs, jobs)
    if as_json:
        print(json.dumps(finite(to_plain(seen, failed=failed, faults=faults)), indent=1, ensure_ascii=False))
        return _exit_code(seen)
    console = _console()
    for fault in (fault for sweep in seen for fault in sweep.faults):
        console.print(f"passed over: {fault}", soft_wrap=True)
    (_print_failed if failed else _print_whole)(console, runs, seen)
    return _exit_code(seen)


def watch(runs: Path, jobs: Jobs, seconds: float, *, failed: bool = False) -> int:
    """Show the states again and again, in place on a terminal, until nothing runs and nothing is queued."""
    console = _console()
    print_states = _print_failed if failed else _print_whole
    idle = 0
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while True:
            seen = status_of_sweeps(runs, jobs)
            idle = 0 if any(cell.state in UNDER_WAY for cell in _cells(seen)) else idle + 1
            if idle >= (IDLE_LOOKS if jobs.knows_any else 1):
                break
            if console.is_terminal:
                live.update(_screen(seen, console.size, failed=failed), refresh=True)
            else:
                console.print(f"{now()[:19]}Z")
                print_states(console, runs, seen)
                console.print()
            time.sleep(seconds)
    return show_status(runs, jobs, failed=failed)


def to_plain(seen: list[SweepStatus], *, failed: bool = False, faults: Iterable[str] = ()) -> dict[str, Any]:
    """The states as one document of plain data; its keys stay as they are as long as `schema_version` does."""
    sweeps = []
    for sweep in seen:
        cells = [cell for cell in sweep.cells if cell.is_bad or not failed]
        sweeps.append(
            {
                "sweep": sweep.name,
                "path": str(sweep.path),
                "totals": _totals(sweep.cells),
                "cells": [_plain_cell(cell, with_log=failed) for cell in cells],
                "faults": sweep.faults,
            }
        )
    return {
        "schema_version": 1,
        "moment": now(),
        "totals": _totals(_cells(seen)),
        "sweeps": sweeps,
        "faults": list(faults),
    }


def table(cells: Iterable[CellStatus], width: int | None = None) -> Table:
    """The states as a table for the terminal; columns in which nothing stands are left out.

    Args:
        width: of a terminal that people read: what has to fit into it are the last words of long names, and reasons;
            the sweep is not named in each row where there is one; None: all of it, in one line per cell.
    """
    listed = list(cells)
    rows = [_row(cell) for cell in listed]
    columns = [name for name in _COLUMNS if name in _ALWAYS or any(row[name] for row in rows)]
    widths = {name: max([len(name), *(len(row[name]) for row in rows)]) for name in columns}
    if width is not None:
        if len({cell.sweep for cell in listed}) == 1:
            columns.remove("sweep")
        widths |= {name: min(widths[name], most) for name, most in _MOST.items() if name in columns}
        others = sum(2 + widths[name] for name in columns if name != "cell")
        widths["cell"] = min(widths["cell"], max(width - others, _LEAST["cell"]))
        rows = [{**row, "cell": _ending(row["cell"], widths["cell"])} for row in rows]
    shown = Table(box=None, pad_edge=False)
    for name in columns:
        least = min(widths[name], _LEAST.get(name, widths[name]))
        shown.add_column(
            name,
            no_wrap=name != "reason",
            min_width=least,
            max_width=_MOST["sweep"] if width and name == "sweep" else None,
        )
    for row in rows:
        shown.add_row(*(Text(row[name]) for name in columns))
    return shown


def _ending(name: str, room: int) -> str:
    """As many of a name's last words as there is room for: names begin alike, and end with what no other has."""
    if len(name) <= room:
        return name
    start = len(name) - room + 1
    word = name.find("-", start - 1) + 1
    return f"…{name[word or start :]}"


def last_lines(log: Path | None, count: int = LOG_LINES) -> list[str]:
    """The last lines of a log, without what would move a terminal's cursor; empty when it cannot be read."""
    if log is None:
        return []
    try:
        with open_file(log) as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - LOG_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    lines = [line.rpartition("\r")[2] if "\r" in line.rstrip("\r") else line for line in text.split("\n")]
    clean = ["".join(char if char.isprintable() else " " for char in line).rstrip() for line in lines]
    return [line for line in clean if line][-count:]


_COLUMNS = ("sweep", "cell", "state", "attempt", "elapsed", "last metric", "host", "job", "reason")
_MOST, _LEAST = {"sweep": 20, "reason": 40}, {"cell": 14, "reason": 14}
"""Of columns of a terminal: a reason goes on in the next line."""
_ALWAYS = frozenset({"sweep", "cell", "state", "attempt", "elapsed"})


def _row(cell: CellStatus) -> dict[str, str]:
    return {
        "sweep": cell.sweep,
        "cell": cell.cell_id,
        "state": cell.state,
        "attempt": "" if cell.attempt is None else str(cell.attempt),
        "elapsed": "" if cell.elapsed_seconds is None else duration(cell.elapsed_seconds),
        "last metric": cell.headline.text if cell.headline else "",
        "host": cell.host or "",
        "job": cell.job or "",
        "reason": cell.reason or "",
    }


def _plain_cell(cell: CellStatus, *, with_log: bool) -> dict[str, Any]:
    plain = {
        "cell_id": cell.cell_id,
        "state": cell.state,
        "reason": cell.reason,
        "attempt": cell.attempt,
        "elapsed_seconds": cell.elapsed_seconds,
        "metric": asdict(cell.headline) if cell.headline else None,
        "host": cell.host,
        "job": cell.job,
        "log": str(cell.log) if cell.log else None,
        "recorded": not cell.unrecorded,
        "axes": cell.axes,
    }
    return plain | ({"log_lines": last_lines(cell.log)} if with_log else {})


def _print_whole(console: Console, runs: Path, seen: list[SweepStatus]) -> None:
    cells = _cells(seen)
    if not cells:
        console.print(f"{runs}: no cells")
        return
    if console.is_terminal and len(seen) > 1:
        for sweep in seen:
            console.print(f"{sweep.name}:")
            console.print(table(sweep.cells, console.width))
            console.print()
    else:
        console.print(table(cells, console.width if console.is_terminal else None))
        console.print()
    for line in [*_summary(seen), *_logs(cells)]:
        console.print(line, soft_wrap=True)


def _print_failed(console: Console, runs: Path, seen: list[SweepStatus]) -> None:
    bad = [cell for cell in _cells(seen) if cell.is_bad]
    for cell in bad:
        attempt = f", attempt {cell.attempt}" if cell.attempt else ""
        console.print(f"{cell.state} {cell.cell_id}{attempt}: {cell.reason or 'no reason given'}", soft_wrap=True)
        lines = last_lines(cell.log)
        console.print(f"  {cell.log or 'there is no log'}{'' if lines or not cell.log else ': empty'}", soft_wrap=True)
        for line in lines:
            console.print(f"    {line}", soft_wrap=True)
        console.print()
    for line in _summary(seen):
        console.print(line, soft_wrap=True)


def _summary(seen: list[SweepStatus]) -> list[str]:
    cells = _cells(seen)
    lines = [f"{sweep.name}: {_counted(sweep.cells)}" for sweep in seen]
    if len(seen) != 1:
        lines.append(_counted(cells))
    if (unrecorded := sum(cell.unrecorded for cell in cells)) > 0:
        lines.append(
            f"{of_cells(unrecorded)} ended without a record: the next queue writes it, or scalerlt status --reconcile"
        )
    return lines


def _counted(cells: Iterable[CellStatus]) -> str:
    return totals(cell.state for cell in cells)


def _logs(cells: Iterable[CellStatus]) -> list[str]:
    """Where to look for what runs and for what ended badly: below the table, in which a path is too wide."""
    shown = [cell for cell in cells if cell.is_bad or cell.state == "running"]
    return [f"  {cell.state} {_place(cell)}" for cell in sorted(shown, key=_urgency)]


def _place(cell: CellStatus) -> str:
    names_cell = cell.log is not None and cell.log.parents[1].name == cell.cell_id
    return cell.where_to_look if names_cell else f"{cell.cell_id}: {cell.where_to_look}"


def _screen(seen: list[SweepStatus], size: ConsoleDimensions, *, failed: bool) -> Group:
    """As many cells as a terminal has room for, those first that want to be looked at."""
    cells = sorted((cell for cell in _cells(seen) if cell.is_bad or not failed), key=_urgency)
    summary = [Text(line, no_wrap=True, overflow="ellipsis") for line in _summary(seen)]
    room = max(1, size.height - len(summary) - 4)
    logs = [Text(line, no_wrap=True, overflow="ellipsis") for line in _logs(cells)[: max(0, room - len(cells))]]
    rest = [Text(f"... and {len(cells) - room} more")] if len(cells) > room else []
    shown = table(cells[:room], size.width)
    for column in shown.columns:
        column.no_wrap, column.overflow = True, "ellipsis"
    return Group(shown, *rest, Text(), *summary, *logs)


def _urgency(cell: CellStatus) -> int:
    """What runs, then what went wrong, then what is still to come, then the rest."""
    ranked = ("running", *sorted(BAD), "queued", "planned")
    return ranked.index(cell.state) if cell.state in ranked else len(ranked)


def _cells(seen: list[SweepStatus]) -> list[CellStatus]:
    return [cell for sweep in seen for cell in sweep.cells]


def _totals(cells: Iterable[CellStatus]) -> dict[str, int]:
    return dict(sorted(Counter(cell.state for cell in cells).items()))


def _exit_code(seen: list[SweepStatus]) -> int:
    return 1 if any(cell.is_bad for cell in _cells(seen)) else 0


def _console() -> Console:
    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        console.width = 1000  # one line per cell, for programs
    return console
