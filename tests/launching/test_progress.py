"""What a queue shows, with and without a terminal; the clock is the test's."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from scalerlt.launching import progress
from scalerlt.launching.progress import display
from scalerlt.planning.cost import Cost
from scalerlt.records.record import Record, Verdict
from scalerlt.worker.supervisor import Glimpse


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def record(verdict: Verdict, reason: str | None = None) -> Record:
    return Record(
        sweep="s",
        cell_id="c",
        axes={},
        attempt=1,
        verdict=verdict,
        reason=reason,
        started="2026-01-01T00:00:00+00:00",
        ended="2026-01-01T00:00:00+00:00",
    )


def glimpse(phase: str | None = "time", done: int | None = 3, what: str = "steps", total: int = 10) -> Glimpse:
    return Glimpse(Path("attempt-001"), 0.0, phase, done, None if done is None else total, what, 0)


def play(clock: Clock, *, terminal: bool) -> str:
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=150, markup=False, highlight=False, soft_wrap=True)
    with display(console) as shown:
        shown.begin(12)
        shown.starting("cell-a")
        for _ in range(40):
            shown.glimpse(glimpse())
            clock.now += 0.5
        shown.finished("cell-a", record(Verdict.MEASURED))
        shown.starting("cell-b")
        for _ in range(80):
            shown.glimpse(glimpse())
            clock.now += 0.5
        shown.finished("cell-b", record(Verdict.OOM, "MemoryError"))
        shown.passed_over("cell-c", "measured")
    return file.getvalue()


def test_without_a_terminal_there_are_plain_lines(clock: Clock) -> None:
    assert play(clock, terminal=False).splitlines() == [
        "[ 1/12] cell-a measured in 20 s (about 3 min 40 s left)",
        "[ 2/12] cell-b: time 3/10 steps, 30 s, at least 5 min 00 s left",
        "[ 2/12] cell-b oom in 40 s: MemoryError (about 5 min 00 s left)",
        "[ 3/12] cell-c measured",
    ]


def test_a_cell_of_hours_gives_few_lines_without_a_terminal(clock: Clock) -> None:
    """One when it ends; before, signs of life that become rarer, each with what is left of it."""
    file = io.StringIO()
    with display(Console(file=file, width=150)) as shown:
        shown.begin(1, {"cell-a": Cost(36000.0, 0.0, "estimated", "")})
        shown.starting("cell-a")
        for second in range(1, 3601):
            clock.now += 1
            shown.glimpse(glimpse(done=second // 36 or None, total=100))
        shown.finished("cell-a", record(Verdict.MEASURED))
    lines = file.getvalue().splitlines()
    assert [line.partition(", ")[2] for line in lines[:4]] == [
        "30 s, about 9 h 59 min left",
        "1 min 30 s, about 58 min 30 s left",
        "3 min 30 s, about 56 min 30 s left",
        "7 min 30 s, about 52 min 30 s left",
    ]
    assert len(lines) == 10
    assert lines[-1] == "[1/1] cell-a measured in 1 h 00 min"


def test_on_a_terminal_the_bar_is_drawn_once_a_second_and_cleared_away(clock: Clock) -> None:
    shown = play(clock, terminal=True)
    assert "cell-a: time 3/10 steps, 5.0 s" in shown
    assert "cell-b: time 3/10 steps, 10 s, about 3 min 30 s left" in shown
    assert shown.count("cell-b: time") <= 45, "no more than once a second"
    assert shown.endswith("\x1b[2K"), "the bar's line is cleared"


def test_a_cell_that_has_not_come_to_its_journal(clock: Clock) -> None:
    file = io.StringIO()
    with display(Console(file=file, width=150)) as shown:
        shown.begin(1)
        shown.starting("cell-a")
        clock.now += 31
        shown.glimpse(glimpse(phase=None, done=None))
    assert file.getvalue() == "[1/1] cell-a: 31 s\n"
