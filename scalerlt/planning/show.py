"""`scalerlt plan` for people: a line per cell, each reason once below, totals and margins."""

from scalerlt.planning.capacity import MemoryPlan
from scalerlt.planning.cost import Cost, Total
from scalerlt.planning.forecast import CellForecast, Forecast
from scalerlt.planning.margins import Margin

IN_THE_NAME = (
    *("experiment", "model", "precision", "batch", "checkpoint", "rollout", "logprob"),
    *("seed", "cohort", "block"),
)
"""Keys that a cell's id tells already."""


def show_plan(seen: Forecast) -> None:
    """Print what is known of a plan before it runs."""
    keys = [key for key in seen.plan.swept if key not in IN_THE_NAME]
    reasons: dict[str, int] = {}
    rows = [("cell", *keys, "state", "time", "from", "memory", "at most", "")]
    for cell in seen.cells:
        axes = cell.planned.axes
        marks = [f"[{reasons.setdefault(reason, len(reasons) + 1)}]" for reason in _reasons(cell)]
        values = (_short(str(axes.get(key.replace("/", "."), ""))) for key in keys)
        state = cell.state if cell.job is None else f"{cell.state} (job {cell.job})"
        rows.append((cell.planned.cell_id, *values, state, *_cost(cell.cost), *_memory(cell.memory), " ".join(marks)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(f"{text:{width}}" for text, width in zip(row, widths, strict=True)).rstrip())
    print()
    for reason, number in reasons.items():
        print(f"[{number}] {reason}")
    for margin in seen.margins:
        print(_margin(margin))
    counted = ", ".join(f"{count} {state}" for state, count in seen.states.items())
    print(f"{seen.plan.sweep}: {_cells(len(seen.cells))}: {counted}")
    if seen.total.cells or seen.total.unknown:
        print(f"cost of what is to run: {_total(seen.total)}")


def _reasons(cell: CellForecast) -> list[str]:
    reasons = [cell.reason] if cell.reason and cell.job is None else []  # a job's is for `status` to tell
    memory = cell.memory
    if memory is not None and memory.fits is False:
        assert memory.available is not None
        reasons.append(
            f"does not fit: needs {size(memory.needed)} of {size(memory.available)} ({memory.limited_by}), "
            f"most of it in phase {memory.peak_phase}: {_largest(memory)}"
        )
    return reasons


def _largest(memory: MemoryPlan) -> str:
    items = sorted(memory.phases[memory.peak_phase].items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {size(count)}" for name, count in items[:3])


def _cost(cost: Cost | None) -> tuple[str, str]:
    if cost is None:
        return "", ""
    if cost.seconds is None:
        return "unknown", ""
    return duration(cost.seconds), cost.source


def _memory(memory: MemoryPlan | None) -> tuple[str, str]:
    """Of the measured step, and of the phase that needs most where that is another."""
    if memory is None:
        return "", ""
    about = "~" if memory.assumed else ""
    most = f"{about}{size(memory.needed)} ({memory.peak_phase})" if memory.needed > memory.step else ""
    return f"{about}{size(memory.step)}", most + (" !" if memory.fits is False else "")


def _total(total: Total) -> str:
    counted = ", ".join(f"{count} {source}" for source, count in total.cells.items())
    parts = [f"{duration(total.seconds)} ({counted})"] if counted else []
    if total.gpu_hours:
        parts.append(f"{total.gpu_hours:.3g} GPU-hours")
    if total.unknown:
        parts.append(f"{_cells(total.unknown)} of unknown cost")
    return ", ".join(parts)


def _margin(margin: Margin) -> str:
    many = f" in {margin.comparisons} comparisons" if margin.comparisons > 1 else ""
    what = f"{margin.experiment} by {margin.key} ({', '.join(margin.arms)}){many}"
    if margin.kind == "accuracy":
        n, unit = f"{margin.n:,} problem{'s' if margin.n != 1 else ''}", f"{margin.detectable or 0:.2g} points"
    else:
        n, unit = f"{margin.n} shared cohort{'s' if margin.n != 1 else ''}", f"a ratio of {margin.detectable or 0:.3g}"
    if margin.detectable is None:
        return f"{what}: {n}: no interval, no verdict"
    return f"{what}: {n} can detect {unit} (80 % power, 95 % two-sided; {margin.assumption})"


def size(count: int) -> str:
    """Bytes for people: 1.5 GiB."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.3g} {unit}" if amount < 999.5 else f"{amount:.0f} {unit}"
        amount /= 1024
    return f"{amount:.3g} TiB"


def duration(seconds: float) -> str:
    """Seconds for people: 40 s, 12 min, 3.5 h."""
    if seconds < 90:
        return f"{seconds:.2g} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.3g} h"


def _cells(count: int) -> str:
    return f"{count} cell{'' if count == 1 else 's'}"


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:39]}…"
