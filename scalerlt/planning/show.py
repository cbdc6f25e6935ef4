"""`scalerlt plan`: every cell of a plan with its state, beside what is already measured."""

from collections import Counter

from scalerlt.records.plan import Plan, PlannedCell
from scalerlt.records.store import SweepDirectory

IN_THE_NAME = (
    *("experiment", "model", "precision", "batch", "checkpoint", "rollout", "logprob"),
    *("seed", "cohort", "block"),
)
"""Keys that a cell's id tells already."""


def show_plan(plan: Plan, sweep: SweepDirectory) -> None:
    """Print one line per cell, the reasons once each below, and the totals."""
    keys = [key for key in plan.swept if key not in IN_THE_NAME]
    reasons: dict[str, int] = {}
    states: Counter[str] = Counter()
    rows = [("cell", *keys, "state", "")]
    for cell in plan.cells:
        state, reason = _state(cell, sweep)
        states[state] += 1
        number = reasons.setdefault(reason, len(reasons) + 1) if reason else None
        values = (str(cell.axes.get(key, "")) for key in keys)
        rows.append((cell.cell_id, *values, state, f"[{number}]" if number else ""))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(f"{text:{width}}" for text, width in zip(row, widths, strict=True)).rstrip())
    print()
    for reason, number in reasons.items():
        print(f"[{number}] {reason}")
    counted = ", ".join(f"{count} {state}" for state, count in states.items())
    print(f"{plan.sweep}: {len(plan.cells)} cells: {counted}")


def _state(cell: PlannedCell, sweep: SweepDirectory) -> tuple[str, str]:
    if cell.state != "planned":
        return cell.state, cell.reason or ""
    directory = sweep.cell(cell.cell_id)
    if (answer := directory.answer()) is not None:
        return answer.verdict.value, "not run again"
    if any(attempt.is_running for attempt in directory.attempts()):
        return "running", ""
    last = directory.last_record()
    return "to run", f"the last attempt is {last.verdict.value}" if last else ""
