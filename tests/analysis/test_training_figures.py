import math
from pathlib import Path
from statistics import fmean

import pytest
from drawn_figures import assert_legible
from matplotlib.figure import Figure
from synthetic_runs import SyntheticSweep, planned
from synthetic_training import (
    STEPS,
    attempt_directory,
    pictures,
    read,
    series,
    training_axes,
    write_series,
    write_training,
)

from scalerlt.analysis.drawing import fixed_style
from scalerlt.analysis.figure_spec import load_figures
from scalerlt.analysis.reading import SweepResults
from scalerlt.records.record import Verdict

COUNTS = (70, 30, 10, 90)


@pytest.fixture
def sweep(tmp_path: Path) -> SyntheticSweep:
    return SyntheticSweep(tmp_path / "trial")


def lines(figure: Figure, panel: int, width: float) -> list[tuple[list[float], list[float]]]:
    return [
        (list(line.get_xdata()), list(line.get_ydata()))  # type: ignore[arg-type]
        for line in figure.axes[panel].lines
        if line.get_linewidth() == width and len(line.get_xdata()) > 1  # type: ignore[arg-type]
    ]


def test_curves_are_the_seeds_and_from_five_on_their_mean_and_band(reward_gain: SweepResults) -> None:
    [picture] = pictures(reward_gain, "reward_tokens").values()
    reward, accuracy = picture.figure.axes
    assert [axes.get_ylabel() for axes in (reward, accuracy)] == ["training reward", "held-out accuracy"]
    assert len(lines(picture.figure, 0, 0.5)) == 15  # three arms of five seeds
    assert len(lines(picture.figure, 0, 0.9)) == 5  # of one arm four seeds, and a run that was not measured to its end
    assert len(lines(picture.figure, 0, 1.4)) == len(reward.collections) == 3
    crosses = [line for line in reward.lines if line.get_marker() == "x"]
    assert len(crosses) == 1
    runs = [series(training_axes(seed), 0.13 + 0.01 * seed) for seed in range(5)]
    train = [[row for row in run if "reward" in row] for run in runs]
    x, y = lines(picture.figure, 0, 1.4)[0]
    assert x == pytest.approx([fmean(run[step]["tokens"] for run in train) for step in range(STEPS)])
    assert y == pytest.approx([fmean(run[step]["reward"] for run in train) for step in range(STEPS)])
    assert lines(picture.figure, 0, 0.5)[0][1] == [row["reward"] for row in train[0]]
    last = [run[-1]["accuracy"] for run in runs]
    band = accuracy.collections[0].get_paths()[0].vertices
    ends = sorted({round(float(end), 9) for place, end in band if place == max(band[:, 0])})  # type: ignore[index]
    half = 2.776445105 * math.sqrt(sum((value - fmean(last)) ** 2 for value in last) / 4 / 5)
    assert (ends[0], ends[-1]) == pytest.approx((fmean(last) - half, fmean(last) + half), abs=1e-7)
    assert "95 % Student t interval" in picture.caption
    assert "at each step by itself" in picture.caption


def test_fewer_seeds_have_no_mean_and_no_band(sweep: SyntheticSweep) -> None:
    cells = [training_axes(seed) for seed in range(4)]
    sweep.plan([planned(axes) for axes in cells])
    for axes in cells:
        write_training(sweep, axes, COUNTS)
    [picture] = pictures(read(sweep), "reward").values()
    assert len(lines(picture.figure, 0, 0.9)) == 4
    assert len(picture.figure.axes[0].collections) == 0
    assert picture.figure.legends[0].get_texts()[0].get_text() == "dense (n = 4)"


def test_mismatch_is_logarithmic_over_decades_and_leaves_out_what_nobody_has(sweep: SyntheticSweep) -> None:
    cells = [training_axes(0, "last_exited", logprob) for logprob in ("dense", "hybrid")]
    sweep.plan([planned(axes) for axes in cells], swept=["logprob"])
    for axes in cells:
        write_training(sweep, axes, COUNTS)
    [picture] = pictures(read(sweep), "mismatch").values()
    difference, match = picture.figure.axes
    assert difference.get_yscale() == "log"
    with fixed_style():
        picture.figure.canvas.draw()
    assert {"1e-7", "1e-3"} <= {label.get_text() for label in difference.get_yticklabels()}
    assert match.get_yscale() == "linear"
    rows = series(cells[1], 0.1)
    rows[1]["train_rollout_logprob_abs_diff"] = 0.0
    write_series(attempt_directory(sweep, cells[1], 1), rows)
    difference = pictures(read(sweep), "mismatch")["mismatch"].figure.axes[0]
    assert difference.get_yscale() == "symlog"
    assert difference.get_ylim()[0] < 0  # the zero is drawn
    only_dense = SyntheticSweep(sweep.path.parent / "dense")
    only_dense.plan([planned(training_axes())])
    write_training(only_dense, training_axes(), COUNTS)
    [picture] = pictures(read(only_dense), "mismatch").values()
    assert len(picture.figure.axes) == 1


def test_phases_are_stacked_to_a_hundred_percent(reward_gain: SweepResults) -> None:
    [picture] = pictures(reward_gain, "time_by_phase").values()
    panels = picture.figure.axes
    assert [len(axes.patches) for axes in panels] == [6, 6, 6, 0, 6]
    ends = [bar.get_x() + bar.get_width() for bar in panels[0].patches]  # type: ignore[attr-defined]
    assert ends == pytest.approx([0.5, 0.501, 0.55, 0.85, 0.9, 1.0])
    looks = {(bar.get_facecolor(), bar.get_hatch()) for bar in panels[0].patches}
    assert len(looks) == 6
    assert [[text.get_text() for text in axes.texts] for axes in panels] == [[], [], [], ["no number"], []]
    assert panels[3].get_title("left") == "last_exited, dense, graded (5 not run)"


def test_depths_are_shares_of_all_seeds_tokens(reward_gain: SweepResults) -> None:
    [picture] = pictures(reward_gain, "exit_depths").values()
    assert len(picture.figure.axes) == 5
    stairs = picture.figure.axes[4].patches
    tops = [list(step.get_data().values) for step in stairs]  # type: ignore[attr-defined]
    shares = [(60 + step) / (90 + step) for step in range(1, STEPS + 1)]
    assert tops[0] == pytest.approx(shares)
    assert tops[2] == pytest.approx([1.0] * STEPS)
    assert list(stairs[0].get_data().edges) == [step + 0.5 for step in range(STEPS + 1)]  # type: ignore[attr-defined]
    lightness = [sum(step.get_facecolor()[:3]) for step in stairs]
    assert lightness == sorted(lightness, reverse=True)


def test_a_run_that_did_not_end_has_no_part_in_the_depths(sweep: SyntheticSweep) -> None:
    cells = [training_axes(seed, "last_exited") for seed in range(2)]
    sweep.plan([planned(axes) for axes in cells])
    write_training(sweep, cells[0], COUNTS)
    killed = sweep.record(cells[1], Verdict.KILLED).parent
    write_series(killed, [{"step": 1, "loop/exit_depth_hist_4": 1000, "reward": 0.0}])
    [picture] = pictures(read(sweep), "exit_depths").values()
    first = [step.get_data().values[0] for step in picture.figure.axes[0].patches]  # type: ignore[attr-defined]
    assert first == pytest.approx([61 / 91, 81 / 91, 1.0])


def test_too_many_configurations_get_figures_of_their_own(sweep: SyntheticSweep) -> None:
    cells = [
        {**training_axes(0, rollout, logprob), "algorithm.clip_high": clip, "x.clip": clip}
        for rollout in ("dense", "last_exited")
        for logprob in ("dense", "replay", "hybrid")
        for clip in (0.2, 0.3)
    ]
    sweep.plan([planned(axes) for axes in cells], swept=["rollout", "logprob", "algorithm.clip_high", "x.clip"])
    for axes in cells:
        write_training(sweep, axes, COUNTS)
    found = pictures(read(sweep), "reward")
    assert len(found) == 6
    assert "reward-last_exited-hybrid" in found
    assert "Shown: rollout dense, logprob replay." in found["reward-dense-replay"].caption
    assert all(len(picture.figure.legends[0].get_texts()) == 2 for picture in found.values())


def test_no_words_overlap_or_leave_the_figure(reward_gain: SweepResults) -> None:
    for spec in load_figures():
        for picture in pictures(reward_gain, spec.name).values():
            assert_legible(picture.figure)
