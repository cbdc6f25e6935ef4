"""How long a queue will still take, by expectation, by how finished cells went, and by a cell's own pace."""

import pytest

from scalerlt.launching.remaining import Left, Remaining
from scalerlt.planning.cost import Cost, Source


def cost(seconds: float | None, source: Source = "measured") -> Cost:
    return Cost(seconds, 0.0, source, "")


def test_what_planning_expects_is_known_before_anything_has_run() -> None:
    remaining = Remaining(3, {"a": cost(10), "b": cost(20, "similar"), "c": cost(30, "estimated")})
    assert remaining.left(0.0) == Left(60.0)
    remaining.start("a", 100.0)
    assert remaining.left(104.0) == Left(56.0)
    assert remaining.left(112.0) == Left(50.0, at_least=True), "it takes longer than expected: nobody knows how much"


def test_without_expectations_the_mean_of_the_finished_cells_holds() -> None:
    remaining = Remaining(3, {})
    remaining.start("a", 0.0)
    assert remaining.left(5.0) is None
    remaining.finish(10.0, measured=True)
    assert remaining.left(10.0) == Left(20.0)
    remaining.start("b", 10.0)
    assert remaining.left(14.0) == Left(16.0)
    remaining.pass_over("c")
    assert remaining.left(14.0) is None


def test_expectations_of_one_kind_are_scaled_by_how_cells_of_that_kind_went() -> None:
    remaining = Remaining(5, {"a": cost(10, "estimated"), "b": cost(10), "c": cost(100, "estimated"), "d": cost(100)})
    remaining.start("a", 0.0)
    remaining.finish(30.0, measured=True)
    remaining.start("b", 30.0)
    remaining.finish(5.0, measured=True)
    expected = 3 * 100 + 0.5 * 100 + (30 + 5) / 2  # estimated, measured, and the cell of which nothing is known
    left = remaining.left(35.0)
    assert left is not None and left.seconds == pytest.approx(expected) and not left.at_least


def test_a_cell_that_takes_longer_than_expected_tells_of_those_like_it() -> None:
    remaining = Remaining(3, {"a": cost(2, "estimated"), "b": cost(4, "estimated"), "c": cost(4)})
    remaining.start("a", 0.0)
    assert remaining.left(1.0) == Left(1.0 + 4.0 + 4.0)
    assert remaining.left(90.0) == Left(45 * 4.0 + 4.0, at_least=True)


def test_a_cell_that_ended_early_says_nothing_of_the_others() -> None:
    remaining = Remaining(2, {"a": cost(100), "b": cost(100)})
    remaining.start("a", 0.0)
    remaining.finish(1.0, measured=False)
    assert remaining.left(1.0) == Left(100.0)


def test_a_long_cell_counts_itself_down() -> None:
    """The one cell of a queue, expected to take nobody knows how long: 200 steps of 3 s."""
    remaining = Remaining(1, {})
    remaining.start("a", 0.0)
    seen = []
    for step in range(200):
        moment = 5.0 + 3.0 * step  # it starts to count after 5 s
        remaining.counts(step if step else None, 200, "steps", moment)
        left = remaining.left(moment)
        if step >= 3:
            assert left is not None
            assert left.seconds == pytest.approx(3.0 * (200 - step), rel=0.01)
            seen.append(left.seconds)
    assert seen == sorted(seen, reverse=True)
    between = remaining.left(5.0 + 3.0 * 199 + 1.0)
    assert between is not None and between.seconds == pytest.approx(2.0, abs=0.1), "it goes down between two steps, too"


def test_a_continued_cell_does_not_begin_at_nothing() -> None:
    remaining = Remaining(1, {})
    remaining.start("a", 0.0)
    remaining.counts(300, 500, "steps", 20.0)
    assert remaining.left(20.0) is None, "its pace is not known yet"
    remaining.counts(310, 500, "steps", 40.0)
    assert remaining.left(40.0) == Left(190 * 2.0)


def test_its_own_pace_is_believed_over_an_estimate_that_was_never_tried() -> None:
    remaining = Remaining(1, {"a": cost(36000, "estimated")})
    remaining.start("a", 0.0)
    for step in (1, 2):
        remaining.counts(step, 10, "steps", 10.0 * step)
    assert remaining.left(20.0) == Left(80.0)


def test_a_phase_of_a_cell_that_was_measured_before_is_not_the_whole_cell() -> None:
    remaining = Remaining(1, {"a": cost(100)})
    remaining.start("a", 0.0)
    remaining.counts(1, 4, "repeats", 5.0)
    early = remaining.left(5.0)
    assert early is not None and 60 < early.seconds < 95, "15 s of this phase, and what comes after it"
    remaining.counts(2, 4, "repeats", 10.0)
    remaining.counts(3, 4, "repeats", 15.0)
    late = remaining.left(15.0)
    assert late is not None and late.seconds < early.seconds / 2


def test_a_pace_that_broke_off_is_not_believed_for_ever() -> None:
    remaining = Remaining(1, {"a": cost(100)})
    remaining.start("a", 0.0)
    for step in (1, 2):
        remaining.counts(step, 4, "repeats", 5.0 * step)
    remaining.counts(None, None, "", 12.0)  # another phase, which does not count
    assert remaining.left(60.0) == Left(40.0)
    remaining.counts(4, 4, "repeats", 61.0)
    assert remaining.left(62.0) == Left(38.0), "what it counted is done, the cell is not"
