import math
from pathlib import Path

import pytest
from drawn_figures import assert_legible
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from synthetic_runs import SyntheticSweep, cell_axes, planned, quickstart_cells

from scalerlt.analysis.figure_spec import load_figures
from scalerlt.analysis.figures import Picture
from scalerlt.analysis.figures import pictures as draw
from scalerlt.analysis.reading import read_runs
from scalerlt.analysis.venues import INCHES
from scalerlt.records.record import Metric, Verdict

SPECS = {spec.name: spec for spec in load_figures()}


def pictures(path: Path, name: str) -> dict[str, Picture]:
    sweep = read_runs(path).sweeps[0]
    return {picture.name: picture for picture in draw([SPECS[name]], sweep.cells, sweep.swept)}


def words(figure: Figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def heights(figure: Figure, panel: int = 0) -> list[float]:
    return [bar.get_height() for bar in figure.axes[panel].patches]  # type: ignore[attr-defined]


@pytest.fixture
def sweep(tmp_path: Path) -> SyntheticSweep:
    return SyntheticSweep(tmp_path / "trial")


def test_bars_are_the_numbers_and_marks_are_the_rest(quickstart: Path) -> None:
    [picture] = pictures(quickstart, "throughput").values()
    cells = {
        (cell.axes["batch"], cell.axes["precision"]): cell
        for cell in read_runs(quickstart).cells
        if cell.axes["experiment"] == "rollout_throughput"
    }
    points = [(batch, precision) for batch in ("small", "medium", "large") for precision in ("fp32", "bf16")]
    assert heights(picture.figure) == [
        cells[point].metrics["tokens_per_second"].value for point in points if cells[point].state == "measured"
    ]
    assert words(picture.figure) == ["skipped", "timeout"]
    [axes] = picture.figure.axes
    positions = [bar.get_x() + bar.get_width() / 2 for bar in axes.patches]  # type: ignore[attr-defined]
    places = [text.xy[0] for text in axes.texts]  # type: ignore[attr-defined]
    assert positions == sorted(positions)
    assert [round(place) for place in places] == [2, 2]  # at the batch `large`, each in its series' place
    assert places[0] < 2 < places[1]
    assert axes.get_ylim()[0] == 0
    assert "no confidence interval" in picture.caption
    assert "Marked places have no number" in picture.caption


def test_thin_lines_span_the_repeats(quickstart: Path) -> None:
    [picture] = pictures(quickstart, "throughput").values()
    spreads = [
        cell.metrics["tokens_per_second"].spread
        for cell in read_runs(quickstart).cells
        if "tokens_per_second" in cell.metrics
    ]
    ends = sorted(tuple(line.get_ydata()) for line in picture.figure.axes[0].lines)  # type: ignore[arg-type]
    assert ends == sorted((spread.minimum, spread.maximum) for spread in spreads if spread is not None)


def test_memory_has_a_figure_per_batch_and_a_panel_per_kind(quickstart: Path) -> None:
    found = pictures(quickstart, "memory")
    assert list(found) == ["memory-small", "memory-medium"]
    small = found["memory-small"].figure
    assert [axes.get_ylabel() for axes in small.axes] == ["saved (MiB)", "live peak (MiB)"]
    assert words(small) == ["unsupported", "failed", "unsupported", "oom", "killed", "unsupported"] * 2
    saved = {
        (cell.axes["checkpoint"], cell.axes["precision"]): cell.metrics["saved_bytes"].value
        for cell in read_runs(quickstart).cells
        if cell.axes["batch"] == "small" and "saved_bytes" in cell.metrics
    }
    expected = [saved[point] / 2**20 for point in (("none", "fp32"), ("none", "bf16"), ("layer", "fp32"))]  # type: ignore[operator]
    assert heights(small) == pytest.approx(expected)
    assert "Shown: batch small." in found["memory-small"].caption


def test_the_tradeoff_shows_points_and_lists_what_has_none(quickstart: Path) -> None:
    figure = pictures(quickstart, "time_memory")["time_memory-small"].figure
    # without the gates' verdicts, which the report adds, every point has a ring
    points = [line for line in figure.axes[0].lines if line.get_marker() not in ("None", None, "")]
    assert sorted(line.get_marker() for line in points if line.get_markerfacecolor() != "none") == ["o", "o", "s"]
    assert len([line for line in points if line.get_markerfacecolor() == "none"]) == 3
    legends = [legend for legend in figure.legends if legend.get_title().get_text() == "no number"]
    assert len(legends) == 1
    texts = [text.get_text() for text in legends[0].get_texts()]
    assert sorted(texts) == ["failed", "killed", "oom", "unsupported", "unsupported", "unsupported"]


def test_a_series_keeps_its_colour_in_all_figures(quickstart: Path) -> None:
    [throughput] = pictures(quickstart, "throughput").values()
    memory = pictures(quickstart, "memory")["memory-small"]

    def colours(figure: Figure) -> dict[str, object]:
        legend: Legend = figure.legends[0]
        return {
            text.get_text(): handle.get_facecolor()  # type: ignore[union-attr]
            for text, handle in zip(legend.get_texts(), legend.legend_handles, strict=True)
        }

    first, second = colours(throughput.figure), colours(memory.figure)
    assert {name: second[name] for name in first} == first


def test_a_measured_nan_keeps_its_place_and_its_name(sweep: SyntheticSweep) -> None:
    cells = [cell_axes("actor_update", precision, "small", "layer") for precision in ("fp32", "bf16")]
    sweep.plan([planned(axes) for axes in cells])
    sweep.record(cells[0])
    sweep.record(cells[1], edit=lambda metrics: metrics.update(live_peak_bytes=Metric(value=math.nan, unit="B")))
    [memory] = pictures(sweep.path, "memory").values()
    assert [text.get_text() for text in memory.figure.axes[1].texts] == ["NaN"]
    assert len(heights(memory.figure, 0)) == 2
    [tradeoff] = pictures(sweep.path, "time_memory").values()
    assert [text.get_text() for text in tradeoff.figure.legends[-1].get_texts()] == ["NaN"]


def test_no_number_no_figure(sweep: SyntheticSweep) -> None:
    cells = [axes for axes in quickstart_cells() if axes["precision"] == "fp32"]
    sweep.plan([planned(axes) for axes in cells])
    for axes in cells:
        sweep.record(axes, Verdict.OOM)
    for name in SPECS:
        assert pictures(sweep.path, name) == {}


def test_other_axes_make_other_figures_with_other_names(sweep: SyntheticSweep) -> None:
    cells = [
        cell_axes("actor_update", "fp32", "small", "none", **{"x.path": path})
        for path in ("a/b", "a b", "A_B", "$x_{1$")
    ]
    sweep.plan([planned(axes) for axes in cells])
    for axes in cells:
        sweep.record(axes)
    found = pictures(sweep.path, "memory")
    assert list(found) == ["memory-a_b", "memory-a_b-2", "memory-A_B-3", "memory-x_1"]


def test_many_categories_take_the_width_of_a_page(sweep: SyntheticSweep) -> None:
    cells = [
        cell_axes("rollout_throughput", precision, "small", **{"batch.rollout_concurrency": size})
        for size in (1, 2, 4, 8, 16, 32, 64, 128, 256)
        for precision in ("fp32", "bf16")
    ]
    sweep.plan([planned(axes) for axes in cells], swept=["batch.rollout_concurrency", "precision"])
    for axes in cells:
        sweep.record({**axes})
    [picture] = pictures(sweep.path, "throughput").values()
    assert picture.figure.get_figwidth() == INCHES["icml"]["page"]
    labels = [label.get_text() for label in picture.figure.axes[0].get_xticklabels()]
    assert labels == [f"{size}" for size in (1, 2, 4, 8, 16, 32, 64, 128, 256)]


def test_no_words_overlap_or_leave_the_figure(quickstart: Path) -> None:
    for name in SPECS:
        for picture in pictures(quickstart, name).values():
            assert_legible(picture.figure)
