import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from drawn_figures import cell, drawn, spec_of, speed, spread, visible_words
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.axes import Axes
from scipy import stats

from scalerlt.analysis.estimates import estimate
from scalerlt.analysis.reading import CellResult
from scalerlt.analysis.tradeoff import front
from scalerlt.records.record import Metric

FIVE = [90.0, 110.0, 100.0, 105.0, 97.0]


def cohorts(values: Sequence[float], **axes: str) -> list[CellResult]:
    return [cell({"cohort": number, **axes}, speed(value)) for number, value in enumerate(values)]


def upright(axes: Axes) -> list[tuple[float, float]]:
    """The ends of the upright lines."""
    lines = [(list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines]  # type: ignore[arg-type]
    return [(y[0], y[1]) for x, y in lines if len(x) == 2 and x[0] == x[1]]


def points(axes: Axes) -> list[float]:
    return [y for line in axes.lines if line.get_markerfacecolor() == "white" for y in line.get_ydata()]  # type: ignore[union-attr]


def test_from_five_cohorts_on_there_is_an_interval_and_with_fewer_all_points() -> None:
    [picture] = drawn(spec_of("throughput", estimator="mean"), cohorts(FIVE))
    [axes] = picture.figure.axes
    mean, half = sum(FIVE) / 5, stats.t.ppf(0.975, 4) * stats.tstd(FIVE) / math.sqrt(5)
    assert [bar.get_height() for bar in axes.patches] == [pytest.approx(mean)]  # type: ignore[attr-defined]
    assert upright(axes) == [pytest.approx((mean - half, mean + half))]
    assert points(axes) == []
    assert "n = 5" in picture.caption
    assert "95 % Student t intervals, from 5 cohorts on" in picture.caption

    [picture] = drawn(spec_of("throughput", estimator="mean"), cohorts(FIVE[:4]))
    [axes] = picture.figure.axes
    assert upright(axes) == []
    assert sorted(points(axes)) == sorted(FIVE[:4])
    assert "White points are cohorts." in picture.caption
    assert "Student" not in picture.caption


def test_a_geometric_mean_has_its_interval_on_logarithms() -> None:
    found = estimate(cohorts(FIVE), "tokens_per_second", "geometric_mean")
    logarithms = [math.log(value) for value in FIVE]
    ends = stats.t.interval(0.95, 4, loc=sum(logarithms) / 5, scale=stats.sem(logarithms))
    assert found.value == pytest.approx(stats.gmean(FIVE))
    assert found.interval == pytest.approx([math.exp(end) for end in ends])
    assert estimate(cohorts(FIVE), "tokens_per_second", "median").interval is None
    assert estimate(cohorts(FIVE), "tokens_per_second", "median").value == 100.0


def test_blocks_are_averaged_before_cohorts_and_count_as_no_cohort() -> None:
    cells = [
        cell({"cohort": cohort, "block": block}, speed(value))
        for cohort, pair in enumerate([(1.0, 3.0), (5.0, 5.0), (2.0, 8.0)])
        for block, value in enumerate(pair)
    ]
    found = estimate(cells, "tokens_per_second", "mean")
    assert found.cohorts == (2.0, 5.0, 5.0)
    assert found.value == 4.0
    assert found.interval is None
    assert estimate(cells, "tokens_per_second", "geometric_mean").cohorts == pytest.approx((math.sqrt(3), 5.0, 4.0))


def test_a_cohort_without_a_number_is_counted_at_the_foot_of_its_bar() -> None:
    cells = [*cohorts(FIVE[:2]), cell({"cohort": 2}, state="oom")]
    [picture] = drawn(spec_of("throughput"), cells)
    assert "2 of 3" in [text.get_text() for text, _ in visible_words(picture.figure)]
    assert "how many of its cohorts have a number" in picture.caption


def test_zero_is_drawn_and_named_and_what_is_below_is_not_cut_off() -> None:
    cells = [cell({"batch": batch}, speed(value)) for batch, value in (("a", 0.0), ("b", -4.0), ("c", 8.0))]
    [picture] = drawn(spec_of("throughput", estimator="mean"), cells)
    [axes] = picture.figure.axes
    assert [bar.get_height() for bar in axes.patches] == [0.0, -4.0, 8.0]  # type: ignore[attr-defined]
    assert axes.get_ylim()[0] < -4.0 < 8.0 < axes.get_ylim()[1]
    assert [text.get_text() for text in axes.texts] == ["0"]


def test_constant_cohorts_have_an_interval_of_no_width_and_no_warning(recwarn: pytest.WarningsRecorder) -> None:
    for value in (7.0, 0.1, 0.0):
        for estimator in ("mean", "geometric_mean"):
            found = estimate(cohorts([value] * 6), "tokens_per_second", estimator)  # type: ignore[arg-type]
            assert found.value == pytest.approx(value)
            if value:
                assert found.interval == pytest.approx((value, value))
    assert len(recwarn) == 0


def test_repeats_in_a_process_are_no_interval() -> None:
    [picture] = drawn(spec_of("throughput"), [cell({}, speed(5.0, **spread(4.0, 7.0)))])
    assert upright(picture.figure.axes[0]) == [(4.0, 7.0)]
    assert "no confidence interval" in picture.caption
    five = [cell({"cohort": n}, speed(value, **spread(1.0, 900.0))) for n, value in enumerate(FIVE)]
    [picture] = drawn(spec_of("throughput", estimator="mean"), five)
    [(low, high)] = upright(picture.figure.axes[0])
    assert 80 < low < high < 120
    assert "no confidence interval" not in picture.caption


finite = st.floats(-100, 100).map(lambda value: round(value, 1))


@given(st.lists(st.tuples(finite, finite), max_size=12), st.booleans(), st.booleans())
def test_the_front_is_what_nothing_surpasses(found: list[tuple[float, float]], right: bool, up: bool) -> None:
    def surpasses(one: tuple[float, float], other: tuple[float, float]) -> bool:
        x = one[0] >= other[0] if right else one[0] <= other[0]
        y = one[1] >= other[1] if up else one[1] <= other[1]
        return x and y and one != other

    best = {point for point in found if not any(surpasses(other, point) for other in found)}
    assert front(found, (right, up)) == sorted(best)


def tradeoff(verdicts: dict[str, str]) -> list[CellResult]:
    return [
        cell(
            {"experiment": "actor_update", "checkpoint": name},
            {
                "live_peak_bytes": Metric(value=2**20 * place, unit="B"),
                "actor_update_seconds": Metric(value=float(10 - place), unit="s"),
                **({"gate": Metric(value=verdict)} if verdict else {}),
            },
        )
        for place, (name, verdict) in enumerate(verdicts.items(), 1)
    ]


def test_what_fails_its_gate_is_marked_and_on_no_front() -> None:
    cells = tradeoff({"none": "PASS", "layer": "FAIL", "loop": "NOT_RESOLVED", "every": "PASS", "odd": ""})
    cells.append(cell({"experiment": "actor_update", "checkpoint": "never"}, state="unsupported"))
    [picture] = drawn(spec_of("time_memory"), cells)
    [axes] = picture.figure.axes
    crosses = [line.get_xdata()[0] for line in axes.lines if line.get_marker() == "x"]  # type: ignore[index]
    assert crosses == [2.0]
    rings = [line.get_xdata()[0] for line in axes.lines if line.get_markerfacecolor() == "none"]  # type: ignore[index]
    assert rings == [3.0, 5.0]  # a gate that nobody judged is not resolved
    [line] = [line for line in axes.lines if line.get_linewidth() > 3]
    assert list(zip(line.get_xdata(), line.get_ydata(), strict=True)) == [(1, 9), (4, 9), (4, 6)]  # type: ignore[arg-type]
    words = [text.get_text() for text, _ in visible_words(picture.figure)]
    assert {"gate FAIL", "gate NOT_RESOLVED", "front (gate PASS)", "no number", "unsupported"} <= set(words)


def test_higher_is_better_where_the_definition_says_so() -> None:
    columns = [
        {"metric": "live_peak_bytes", "header": "memory", "better": "lower"},
        {"metric": "actor_update_seconds", "header": "speed", "better": "higher"},
    ]
    cells = tradeoff({"none": "PASS", "layer": "PASS"})
    [picture] = drawn(spec_of("time_memory", columns=columns), cells)
    [line] = [line for line in picture.figure.axes[0].lines if line.get_linewidth() > 3]
    assert list(zip(line.get_xdata(), line.get_ydata(), strict=True)) == [(1, 9)]  # type: ignore[arg-type]


def concurrency(values: dict[int, float | str], precision: str = "fp32") -> list[CellResult]:
    return [
        cell(
            {"precision": precision, "batch.rollout_concurrency": number},
            {} if isinstance(value, str) else speed(value),
            value if isinstance(value, str) else "measured",
        )
        for number, value in values.items()
    ]


def test_a_line_is_broken_where_there_is_no_number_and_the_strip_says_why() -> None:
    cells = concurrency({16: 9.0, 1: 3.0, 4: "oom", 64: 11.0, 256: "timeout"})
    cells += concurrency({1: 4.0, 16: 8.0}, "bf16")
    [picture] = drawn(spec_of("throughput_concurrency"), cells)
    panel, strip = picture.figure.axes
    assert panel.get_xscale() == strip.get_xscale() == "log"
    first, second = panel.lines[0], panel.lines[1]
    assert list(first.get_xdata()) == [1, 4, 16, 64, 256]  # type: ignore[arg-type]
    assert [value if value == value else None for value in first.get_ydata()] == [3, None, 9, 11, None]  # type: ignore[union-attr]
    assert list(second.get_xdata()) == [1, 16]  # type: ignore[arg-type]
    marks = {line.get_xdata()[0]: line.get_marker() for line in strip.lines if len(line.get_xdata()) == 1}  # type: ignore[index, arg-type]
    assert marks == {4.0: "x", 256.0: "+"}
    [legend] = [legend for legend in picture.figure.legends if legend.get_title().get_text() == "no number"]
    named = dict(zip([text.get_text() for text in legend.get_texts()], legend.legend_handles, strict=True))
    assert {word: handle.get_marker() for word, handle in named.items()} == {"oom": "x", "timeout": "+"}  # type: ignore[union-attr]
    ticks = [label.get_text() for label in strip.get_xticklabels()]
    assert ticks == ["1", "4", "16", "64", "256"]
    assert panel.get_xlim() == strip.get_xlim()


def test_a_line_takes_two_numbers() -> None:
    spec = spec_of("throughput_concurrency")
    assert drawn(spec, concurrency({16: 9.0})) == []
    assert drawn(spec, concurrency({16: "oom", 32: "oom"})) == []
    assert len(drawn(spec, concurrency({16: 9.0, 32: "oom"}))) == 1


def test_what_has_no_place_along_the_line_is_counted() -> None:
    cells = [*concurrency({16: 9.0, 32: 5.0}), cell({"batch.rollout_concurrency": None}, speed(3.0))]
    [picture] = drawn(spec_of("throughput_concurrency"), cells)
    assert "Not shown, for batch.rollout_concurrency is no number there: 1 of 3." in picture.caption
    assert [len(line.get_xdata()) for line in picture.figure.axes[0].lines] == [2]  # type: ignore[arg-type]


def test_schedules_are_points_and_only_numbers_are_joined_by_a_line() -> None:
    names = ("none", "layer", "loop", "segments", "prefix", "joint", "streamed", "packed_shared", "auto")
    [picture] = drawn(spec_of("time_memory"), tradeoff(dict.fromkeys(names, "PASS")))
    [axes] = picture.figure.axes
    points = [line for line in axes.lines if line.get_marker() not in ("None", None, "")]
    assert len({(line.get_marker(), line.get_fillstyle()) for line in points}) == len(points) == len(names)
    assert [line.get_linewidth() for line in axes.lines if line not in points] == [3.5]  # the front alone
    words = [text.get_text() for text, _ in visible_words(picture.figure)]
    assert set(names) <= set(words)
    by_number = [
        replace(one, axes={**one.axes, "x.size": place}) for place, one in enumerate(tradeoff({"none": "PASS"}) * 3)
    ]
    [picture] = drawn(spec_of("time_memory", x="x.size"), by_number)
    joined = [line for line in picture.figure.axes[0].lines if line.get_marker() in ("None", None, "")]
    assert any(len(line.get_xdata()) == 3 and line.get_linewidth() < 3 for line in joined)  # type: ignore[arg-type]
