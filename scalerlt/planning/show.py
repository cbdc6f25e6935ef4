"""`scalerlt plan`: a plan as a table, beside what is already measured."""

from collections import Counter

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from scalerlt.records.plan import Plan, PlannedCell
from scalerlt.records.store import SweepDirectory


def show_plan(plan: Plan, sweep: SweepDirectory) -> None:
    """Print every cell of the plan with its state and the reason for it."""
    console = Console(soft_wrap=True)
    table = Table(title=f"{plan.sweep}: {len(plan.cells)} cells", title_justify="left", box=box.SIMPLE)
    for heading in ("cell", *plan.swept, "state", "reason"):
        table.add_column(heading, no_wrap=heading == "cell")
    states: Counter[str] = Counter()
    for cell in plan.cells:
        state, reason = _state(cell, sweep)
        states[state] += 1
        values = [str(cell.axes.get(key, "")) for key in plan.swept]
        table.add_row(*(Text(text) for text in (cell.cell_id, *values, state, reason)))
    console.print(table)
    console.print(", ".join(f"{count} {state}" for state, count in states.items()))


def _state(cell: PlannedCell, sweep: SweepDirectory) -> tuple[str, str]:
    if cell.state != "planned":
        return cell.state, cell.reason or ""
    directory = sweep.cell(cell.cell_id)
    if (answer := directory.answer()) is not None:
        return answer.verdict.value, f"attempt {answer.attempt}; not run again"
    if any(attempt.is_running for attempt in directory.attempts()):
        return "running", ""
    last = directory.last_record()
    return "to run", f"the last attempt is {last.verdict.value}" if last else ""
