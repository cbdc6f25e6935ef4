import itertools
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
from drawn_figures import NASTY, assert_legible, cell, drawn, spec_of, speed, spread, visible_words

from scalerlt.analysis.drawing import legible, width_of, wrapped
from scalerlt.analysis.figures import save
from scalerlt.analysis.reading import CellResult
from scalerlt.analysis.venues import INCHES
from scalerlt.records.record import Metric

STATES = ["measured", "oom", "unsupported", "not_run", "measured", "preempted", "measured", "skipped", "measured"]


def grid(batches: list[str], precisions: list[str]) -> list[CellResult]:
    """A cell per pair, of every state."""
    cells = []
    for number, (batch, precision) in enumerate(itertools.product(batches, precisions)):
        state = STATES[number % len(STATES)]
        metrics = speed(1000.0 + 37 * number, **spread(900 + 37 * number, 1100 + 37 * number))
        cells.append(cell({"batch": batch, "precision": precision}, metrics if state == "measured" else {}, state))
    return cells


@pytest.mark.parametrize(
    ("batches", "precisions"),
    [(NASTY[:1], NASTY), (NASTY[:3], NASTY[2:4]), (NASTY[14:18], NASTY[12:19]), (NASTY, NASTY[:3]), (NASTY, NASTY[:1])],
    ids=["1x20", "3x2", "4x7", "20x3", "20x1"],
)
@pytest.mark.filterwarnings("error")
def test_bars_of_any_names_are_legible(batches: list[str], precisions: list[str]) -> None:
    [picture] = drawn(spec_of("throughput", venue="acl"), grid(batches, precisions))
    assert_legible(picture.figure)
    assert picture.figure.get_figwidth() in INCHES["acl"].values()
    words = " ".join(text.get_text() for text, _ in visible_words(picture.figure)).replace("\n", "")
    for name in (*batches, *precisions):
        assert (legible(name) or '""').replace(" ", "") in words.replace(" ", ""), name


@pytest.mark.parametrize("venue", sorted(INCHES))
def test_every_venue_has_figures_of_its_width(venue: str) -> None:
    cells = grid(["small", "medium", "large"], ["fp32", "bf16"])
    for width in ("column", "page"):
        [picture] = drawn(spec_of("throughput", venue=venue, width=width), cells)
        assert picture.figure.get_figwidth() == INCHES[venue][width]  # type: ignore[index]
        assert_legible(picture.figure)


@pytest.mark.filterwarnings("error")
def test_lines_over_twenty_numbers_are_legible() -> None:
    for numbers in ([2**n for n in range(20)], list(range(100, 300, 10)), [0, 1, 1_000_000]):
        cells = [
            cell(
                {"precision": precision, "batch.rollout_concurrency": number},
                speed(10.0 + 7 * number) if (number + len(precision)) % 3 else {},
                "measured" if (number + len(precision)) % 3 else "oom",
            )
            for number in numbers
            for precision in NASTY[10:18]
        ]
        [picture] = drawn(spec_of("throughput_concurrency", venue="acl"), cells)
        assert_legible(picture.figure)


@pytest.mark.filterwarnings("error")
def test_a_tradeoff_of_any_names_is_legible() -> None:
    cells = []
    for number, (checkpoint, precision) in enumerate(itertools.product(NASTY, NASTY[10:18])):
        measured = number % 3 != 0
        metrics = {
            "live_peak_bytes": Metric(value=2**20 * (number + 1), unit="B"),
            "actor_update_seconds": Metric(value=100 / (number + 1), unit="s"),
            "gate": Metric(value=["PASS", "FAIL", "NOT_RESOLVED"][number % 3]),
        }
        axes = {"experiment": "actor_update", "checkpoint": checkpoint, "precision": precision}
        cells.append(cell(axes, metrics if measured else {}, "measured" if measured else "killed"))
    [picture] = drawn(spec_of("time_memory", venue="acl"), cells)
    assert_legible(picture.figure)


@pytest.mark.filterwarnings("error")
def test_headers_of_any_length_are_legible() -> None:
    columns = [{"metric": "tokens_per_second", "header": name or "nothing"} for name in NASTY[::3]]
    [picture] = drawn(spec_of("throughput", columns=columns), grid(["small", "large"], ["fp32", "bf16"]))
    assert_legible(picture.figure)


@pytest.mark.parametrize("value", [0.0, -3.0, 1e-12, 1e12, 1e99, 5e-324, 1e308, 10**400, float("nan"), float("-inf")])
@pytest.mark.filterwarnings("error")
def test_numbers_of_any_size_are_drawn_or_named(value: float) -> None:
    for name, axis, estimator in (
        ("throughput", "batch", "mean"),
        ("throughput_concurrency", "batch.rollout_concurrency", "geometric_mean"),
    ):
        numbers = {1: value, 2: 5.0, 4: 0.25}
        cells = [cell({axis: place}, speed(number)) for place, number in numbers.items()]
        [picture] = drawn(spec_of(name, estimator=estimator), cells)
        assert_legible(picture.figure)
        words = [text.get_text() for text, _ in visible_words(picture.figure)]
        if not -1e100 <= value <= 1e100:
            assert any(word in ("NaN", "inf", "-inf", "1.000e308") for word in words), words


def test_a_character_without_a_glyph_is_its_code_point_and_no_warning(tmp_path: Path) -> None:
    assert legible("模a") == "U+6A21 a"
    assert legible("a\u0000\u202eb") == "aU+0000 U+202E b"
    assert legible("µ ± — × Δα é") == "µ ± — × Δα é"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        [picture] = drawn(spec_of("throughput"), grid(["模型"], ["型"]))
        save(picture, tmp_path)


def test_a_name_is_wrapped_behind_its_marks_and_broken_only_where_it_must_be() -> None:
    lines = wrapped("one_two-three/four five", width_of("one_two-") + 0.01)
    assert "".join(lines).replace(" ", "") == "one_two-three/fourfive"
    assert lines[0] == "one_two-"
    assert all(width_of(line) <= width_of("one_two-") + 0.01 for line in lines)
    assert len(wrapped("x" * 100, 0.5)) > 5
    assert wrapped("x" * 100, 0.5, anywhere=False) == ["x" * 100]
    assert wrapped("", 1.0) == [""]


@pytest.mark.parametrize("name", ["reward", "mismatch", "exit_depths", "time_by_phase"])
@pytest.mark.filterwarnings("error")
def test_training_of_any_names_is_legible(name: str) -> None:
    cells = []
    for number, (rollout, algorithm) in enumerate(zip(NASTY[::2], NASTY[::-2], strict=True)):
        axes = {
            "experiment": "gsm8k_reward",
            "rollout": rollout,
            "algorithm": algorithm,
            "experiment.rewards": "graded",
        }
        rows = [
            {
                "step": step,
                "reward": 0.1 * step,
                "loop/exit_depth_hist_4": 5,
                "loop/exit_depth_hist_12": step,
                "train_rollout_logprob_abs_diff": 10.0 ** -(step + number),
            }
            for step in range(5)
        ]
        rows.append({"step": 4, "accuracy": 0.5})
        shares = {f"time_share/{phase}": Metric(value=0.1) for phase in NASTY[number % 2 :: 2] if phase}
        one = cell(axes, shares, "killed" if number % 4 == 3 else "measured")
        cells.append(replace(one, series=tuple(rows)))
    found = drawn(spec_of(name, venue="acl"), cells)
    assert len(found) in (8, 10)  # at most five configurations in each: here one, and two were never measured
    for picture in found[::3]:
        assert_legible(picture.figure)
    [picture] = drawn(spec_of(name, venue="acl"), [cells[number] for number in (0, 2, 7, 8, 9)])
    assert_legible(picture.figure)
