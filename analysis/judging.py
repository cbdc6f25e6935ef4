"""The gates' verdicts, joined to the figures of the cells that they judge.

A cell is judged by the gates that were frozen with it. Where those are not the shipped ones, every verdict says so.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import yaml

from scalerlt.analysis.gates import Gates, gates_from, judge, judge_replay, load_gates
from scalerlt.analysis.reading import CellResult
from scalerlt.records.base import read_file
from scalerlt.records.record import Metric
from scalerlt.records.store import CELL_FILE

_FROZEN_GATES = re.compile(r"^  gates:\n(?:    .*\n)+", re.MULTILINE)


def judged(cells: Sequence[CellResult], sweep: Path) -> list[CellResult]:
    """The cells, with the gates' verdicts among the metrics of every actor update and replay that has a record.

    Args:
        sweep: directory of the cells' sweep.
    """
    return [
        replace(cell, metrics={**cell.metrics, **_verdicts(cell, sweep / cell.cell_id / CELL_FILE)})
        if _is_judged(cell)
        else cell
        for cell in cells
    ]


def frozen_gates(cells: Sequence[CellResult], sweep: Path) -> list[str]:
    """The files that hold the gates of the judged cells, relative to the sweep; of a cell that has none, none."""
    files = [f"{cell.cell_id}/{CELL_FILE}" for cell in cells if _is_judged(cell)]
    return [file for file in files if (sweep / file).is_file()]


def _is_judged(cell: CellResult) -> bool:
    if cell.record is None:
        return False
    return cell.axes.get("experiment") == "actor_update" or "replay_tokens" in cell.metrics


def _verdicts(cell: CellResult, frozen: Path) -> dict[str, Metric]:
    gates, said = _gates_of(frozen)
    if cell.axes.get("experiment") == "actor_update":
        verdicts = judge(str(cell.axes.get("precision")), cell.metrics, gates)
    else:
        verdicts = judge_replay(cell.metrics, gates)
    if said is None:
        return verdicts
    return {
        gate: verdict.model_copy(update={"reason": f"{verdict.reason}; {said}" if verdict.reason else said})
        for gate, verdict in verdicts.items()
    }


def _gates_of(frozen: Path) -> tuple[Gates, str | None]:
    """The gates that judge a frozen cell, and what has to be said about them.

    Only its gates are read: to parse ten thousand whole cells would take half a minute.
    """
    try:
        found = _FROZEN_GATES.search(read_file(frozen).decode())
    except (OSError, UnicodeDecodeError):
        found = None
    return (load_gates(), None) if found is None else _parsed(found[0])


@lru_cache(maxsize=64)
def _parsed(text: str) -> tuple[Gates, str | None]:
    try:
        content = yaml.safe_load(text)["gates"]
        own = gates_from(content)
    except (yaml.YAMLError, ValueError):
        return load_gates(), "the gates frozen with the cell cannot be read; judged by the shipped ones"
    if own == load_gates():
        return own, None
    return own, f"judged by the gates frozen with the cell ({content.get('name')}), which are not the shipped ones"
