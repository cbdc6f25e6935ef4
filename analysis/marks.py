"""The words that stand in a table or a figure where there is no number, and what each of them means.

The verdicts and states of a cell, the status of a single metric, and the verdicts of a gate. They appear in the
outputs exactly as they are written here; the meaning is the footnote when nobody recorded a better reason.
"""

from scalerlt.records.record import Verdict

MEASURED = str(Verdict.MEASURED)

STATES: dict[str, str] = {
    "unsupported": "this combination cannot run there",
    "oom": "out of memory",
    "timeout": "stopped at its time limit",
    "killed": "killed from outside",
    "failed": "ended with an error",
    "lost": "its process ended without leaving a record",
    "preempted": "preempted, and not continued",
    "skipped": "ruled out by the sweep",
    "running": "still running when the tables were built",
    "not_run": "planned, never started",
    "not_measured": "this figure was not measured",
}
"""Meaning of every state that is not `measured`, in the order in which they are listed."""

GATES: dict[str, str] = {
    "PASS": "within the tolerance fixed before the run",
    "FAIL": "outside the tolerance fixed before the run",
    "NOT_RESOLVED": "the measurements do not decide the gate",
}
"""Meaning of every gate verdict."""

COMPARISONS: dict[str, str] = {
    "baseline": "what the other rows are compared with",
    "BETTER": "the interval of the difference is above 0",
    "NON_INFERIOR": "the interval of the difference is above the margin",
    "UNCERTAIN": "the interval of the difference does not decide",
    "DEGRADED": "the interval of the difference is below the margin",
}
"""Meaning of what stands where rows are compared."""


def footnote(word: str, reason: str | None, count: int = 1, of: int = 1, what: str = "cohorts") -> str:
    """The footnote of a mark: the word and why; with how many of the cohorts, where there are several."""
    several = f"{count} of {of} {what} " if of > 1 else ""
    why = reason or {**STATES, **GATES, **COMPARISONS}.get(word, "")
    return f"{several}{word}: {why}"
