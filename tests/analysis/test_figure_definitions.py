from pathlib import Path
from typing import Any

import pytest
import yaml
from drawn_figures import cell, drawn, speed
from synthetic_runs import SyntheticSweep, cell_axes, planned

from scalerlt.analysis.figure_spec import KINDS, load_figures
from scalerlt.analysis.figures import pictures, save
from scalerlt.analysis.reading import read_runs
from scalerlt.errors import UserError
from scalerlt.records.record import Metric

MINE: dict[str, Any] = {
    "name": "mine",
    "kind": "bars",
    "experiment": "rollout_throughput",
    "caption": "Prompts.",
    "x": "batch",
    "series": "precision",
    "columns": [{"metric": "prompt_tokens", "header": "prompt tokens"}],
}


def write(directory: Path, definition: dict[str, Any] | str, name: str = "mine.yaml") -> Path:
    (directory / "figures").mkdir(parents=True, exist_ok=True)
    text = definition if isinstance(definition, str) else yaml.safe_dump(definition, allow_unicode=True)
    (directory / "figures" / name).write_text(text, encoding="utf-8")
    return directory


def fault(directory: Path, definition: dict[str, Any] | str, name: str = "mine.yaml") -> str:
    with pytest.raises(UserError) as error:
        load_figures([write(directory, definition, name)])
    assert str(directory / "figures" / name) in str(error.value)
    return str(error.value)


def test_the_shipped_figures_are_files_and_every_kind_is_shown() -> None:
    specs = load_figures()
    names = ["throughput", "throughput_concurrency", "memory", "time_memory", "reward", "reward_tokens"]
    names += ["reward_seconds", "mismatch", "time_by_phase", "exit_depths"]
    assert [spec.name for spec in specs][: len(names)] == names
    assert {spec.kind for spec in specs} == set(KINDS)
    assert len({spec.label for spec in specs}) == len(specs)


def test_a_figure_is_added_by_a_file_alone(tmp_path: Path) -> None:
    sweep = SyntheticSweep(tmp_path / "runs" / "trial")
    cells = [cell_axes("rollout_throughput", precision, "small") for precision in ("fp32", "bf16")]
    sweep.plan([planned(axes) for axes in cells])
    for axes in cells:
        sweep.record(axes)
    specs = load_figures([write(tmp_path / "specs", MINE)])
    assert len(specs) == len(load_figures()) + 1
    read = read_runs(sweep.path).sweeps[0]
    [picture] = [one for one in pictures(specs, read.cells, read.swept) if one.name == "mine"]
    bars = [bar.get_height() for bar in picture.figure.axes[0].patches]  # type: ignore[attr-defined]
    assert bars == [20 * 16, 20 * 16]
    assert picture.label == "fig:mine"
    assert picture.caption.startswith("Prompts. ")
    assert [path.name for path in save(picture, tmp_path)] == ["mine.pdf", "mine.png"]
    assert sorted(picture.sources) == sorted(read.records)


def test_a_figure_of_ones_own_takes_the_place_of_a_shipped_one(tmp_path: Path) -> None:
    own = {**MINE, "name": "throughput", "order": 10}
    specs = load_figures([write(tmp_path, own, "throughput.yaml")])
    assert len(specs) == len(load_figures())
    assert specs[0].caption == "Prompts."


def test_a_figure_of_some_sweeps_only() -> None:
    spec = next(spec for spec in load_figures() if spec.name == "throughput")
    cells = [cell({}, speed(3.0))]
    assert len(drawn(spec, cells)) == 1
    assert len(drawn(spec.model_copy(update={"sweeps": ("trial",)}), cells)) == 1
    assert drawn(spec.model_copy(update={"sweeps": ("other",)}), cells) == []
    assert drawn(spec.model_copy(update={"experiment": ("actor_update",)}), cells) == []
    assert len(drawn(spec.model_copy(update={"experiment": ("actor_update", "rollout_throughput")}), cells)) == 1


def test_other_units_for_one_metric_are_an_error_that_names_both() -> None:
    spec = next(spec for spec in load_figures() if spec.name == "throughput")
    cells = [
        cell({"batch": batch}, {"tokens_per_second": Metric(value=1, unit=unit)})
        for batch, unit in (("a", "token/s"), ("b", "token/h"))
    ]
    with pytest.raises(UserError, match=r"'token/h' .*'token/s'"):
        drawn(spec, cells)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kind": "bar"}, "kind is 'bar'; did you mean bars?"),
        ({"kind": None}, "kind is None; there are bars, lines, tradeoff, curves, depths, phases"),
        ({"serie": "x"}, "serie is no key; did you mean series?"),
        ({"columns": [{"metric": "a", "header": "b", "heder": 1}]}, "columns.0.heder is no key; did you mean header?"),
        ({"columns": [{"metric": "a"}]}, "columns.0.header is missing"),
        ({"columns": []}, "columns is []; "),
        ({"columns": [{"metric": 5, "header": "b"}]}, "columns.0.metric is 5; "),
        ({"estimator": "avg"}, "estimator is 'avg'; there are median, mean, geometric_mean"),
        ({"estimator": "geo_mean"}, "estimator is 'geo_mean'; did you mean geometric_mean?"),
        ({"width": "wide"}, "width is 'wide'; there are column, page"),
        ({"venue": "nips"}, "venue is 'nips'; "),
        ({"caption": ""}, "caption is ''; "),
        ({"name": "other"}, "name is 'other'; it must be that of the file, 'mine'"),
        ({"name": 1}, "name is 1; it must be that of the file, 'mine'"),
        ({"kind": "tradeoff"}, "columns is "),
        ({"kind": "curves"}, "rows is missing"),
    ],
)
def test_a_fault_is_told_with_its_file_its_key_and_what_would_be_right(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    assert said in fault(tmp_path, {**MINE, **change})


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    said = fault(tmp_path, {**MINE, "serie": "x", "width": "wide", "estimator": 5})
    assert said.count("mine.yaml") == 3


def test_a_file_that_is_no_definition(tmp_path: Path) -> None:
    assert "line 2" in fault(tmp_path, "name: mine\n  kind: [bars\n")
    assert "the key kind stands twice" in fault(tmp_path, "name: mine\nkind: bars\nkind: lines\n")
    assert "must hold keys and values" in fault(tmp_path, "- mine\n")
    assert "must hold keys and values" in fault(tmp_path, "")
    (tmp_path / "figures" / "mine.yaml").write_bytes(b"name: \xff\n")
    with pytest.raises(UserError, match=r"mine\.yaml: cannot be read"):
        load_figures([tmp_path])


def test_a_name_that_would_be_passed_over_and_a_directory_that_is_none(tmp_path: Path) -> None:
    assert "ends in .yaml" in fault(tmp_path, MINE, "mine.yml")
    with pytest.raises(UserError, match="nowhere is not a directory"):
        load_figures([tmp_path / "nowhere"])
    (tmp_path / "tables-only").mkdir()
    assert load_figures([tmp_path / "tables-only"]) == load_figures()


def test_the_example_of_the_documentation_is_a_definition(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "analysis.md").read_text(encoding="utf-8")
    example = text.partition("## Adding a figure\n")[2].partition("```yaml\n")[2].partition("```")[0]
    [spec] = [spec for spec in load_figures([write(tmp_path, example, "prompt_lengths.yaml")]) if spec.order == 100]
    [picture] = drawn(spec, [cell({}, {"prompt_tokens": Metric(value=3, unit="token")})])
    assert picture.name == "prompt_lengths"
