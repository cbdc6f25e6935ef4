"""What users of Hydra's multirun complain of, each with its small input: none of it happens here.

The numbers are those of the issues in the repository facebookresearch/hydra.
"""

import multiprocessing
from pathlib import Path

import pytest
import yaml

from scalerlt import cli
from scalerlt.errors import RequestErrors
from scalerlt.planning.hydra_bridge import CONF, compose
from scalerlt.planning.plan import freeze, make_plan
from scalerlt.planning.resolve import resolve_all
from scalerlt.records.cell import FrozenCell
from scalerlt.records.plan import Plan
from scalerlt.records.store import CellDirectory, SweepDirectory
from scalerlt.schema.machine import Machine

CPU = Machine(gpus=0, gpu_reason="none here", cpus=2)


def preset(directory: Path, group: str, text: str, of: str) -> Path:
    """A user's own option `mine` of a config group: a shipped one, and more."""
    values = yaml.safe_load((CONF / group / f"{of}.yaml").read_text()) | {"name": "mine"}
    file = directory / group / "mine.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(f"{text}\n{yaml.safe_dump({key: values[key] for key in values if f'{key}:' not in text})}")
    return directory


@pytest.mark.parametrize(
    ("group", "of", "text", "said"),
    [
        # 2919: the sweep of a preset vanishes
        ("batch", "small", "group_size: choice(2,4)", "batch/mine: group_size=choice(2,4) is a sweep in a config file"),
        ("batch", "small", "group_size: range(1,5)", "batch/mine: group_size=range(1,5) is a sweep in a config file"),
        ("rollout", "dense", "engine: {name: glob(*)}", "rollout/mine: engine.name=glob(*) is a sweep"),
        ("batch", "small", "group_size: [2, 4]", "batch.group_size=[2, 4]: input should be a valid integer"),
        ("batch", "small", "group_size: 2,4", "batch.group_size='2,4': input should be a valid integer"),
        ("rollout", "dense", "defaults: [{engine: [native, other]}]", "names several options of engine"),
        (
            "batch",
            "small",
            "hydra: {sweeper: {params: {seed: '0,1'}}}",
            "batch/mine: Hydra's own settings are the same",
        ),
        # 2946: the launcher of a preset is ignored
        ("batch", "small", "hydra: {launcher: {infer_oom: false}}", "batch/mine: Hydra's own settings are the same"),
    ],
)
def test_a_sweep_or_a_launcher_inside_a_preset_is_an_error(
    tmp_path: Path, group: str, of: str, text: str, said: str
) -> None:
    """Whether the preset is chosen for all cells or swept: every other case is swept here."""
    directory = preset(tmp_path / "conf", group, text, of)
    override = f"{group}={of},mine" if len(text) % 2 else f"{group}=mine"
    with pytest.raises(RequestErrors) as caught:
        resolve_all(compose([override], str(directory)).cells, CPU)
    assert said in "\n".join(caught.value.problems)


def test_what_only_looks_like_a_sweep_stays_a_text(tmp_path: Path) -> None:
    text = "a range(3) of (choices), a,b"
    directory = preset(tmp_path / "conf", "prompt", f"template: '{text} {{question}}'", "question_answer")
    assert compose(["prompt=mine"], str(directory)).cells[0].config["prompt"]["template"].startswith(text)


def test_a_sweep_in_a_swept_preset_is_found_in_a_sweep_file_too(tmp_path: Path) -> None:
    directory = preset(tmp_path / "conf", "batch", "group_size: choice(2,4)", "small")
    (tmp_path / "mine.yaml").write_text("grid: {batch: [small, mine]}")
    with pytest.raises(RequestErrors, match=r"batch/mine: group_size=choice\(2,4\) is a sweep in a config file"):
        compose([f"+sweeps={tmp_path / 'mine.yaml'}"], str(directory))


def test_24_cells_are_shown_before_they_run_with_what_is_ruled_out_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """2759."""
    (tmp_path / "sweeps").mkdir()
    (tmp_path / "sweeps" / "mine.yaml").write_text(
        "grid: {precision: [fp32, bf16], batch: [small, medium], checkpoint: [none, layer], seed: range(3)}\n"
        "rules: [{skip: {precision: bf16, batch: medium}, reason: too large}]\n"
    )
    monkeypatch.chdir(tmp_path)
    assert cli.main(["plan", "mine"]) == 0
    shown = capsys.readouterr().out
    rows = [line for line in shown.splitlines() if line.startswith("rollout_throughput-")]
    assert len(rows) == 24
    assert sum("skipped" in row for row in rows) == 6
    assert "too large" in shown and "24 cells: 18 to run, 6 skipped" in shown
    assert [path.name for path in tmp_path.iterdir()] == ["sweeps"]


def test_a_warning_is_printed_by_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("grid: {seed: [0, 1]}\nrules: [{skip: {seed: 1}, reason: r}]")
    assert cli.main(["plan", "./mine.yaml", "seed=0"]) == 0
    assert capsys.readouterr().err == "warning: sweep mine: the rule of `skip: seed=1` matches no cell\n"


def test_a_value_that_is_missing_or_dangling_in_a_file_is_named_before_anything_starts(tmp_path: Path) -> None:
    """776."""
    for number, value in enumerate(("???", "${nope}", "${batch.group_size}")):
        directory = preset(tmp_path / str(number), "batch", f"group_size: {value}", "small")
        with pytest.raises(RequestErrors, match=r"group_size|nope|refers to itself|recursion"):
            resolve_all(compose(["batch=mine"], str(directory)).cells, CPU)


@pytest.mark.parametrize(
    ("command", "content", "override"),
    [
        ("plan", b"name: [", "batch=broken"),
        ("plan", b"name: \xff", "batch=small,broken"),
        ("plan", b"a: b: c", "batch=glob(*)"),
        ("sweep", b"name: [", "batch=glob(*)"),
        ("sweep", b"name: \xff", "batch=broken"),
        ("sweep", b"a: b: c", "batch=small,broken"),
    ],
)
def test_a_config_file_that_is_no_yaml_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    override: str,
    content: bytes,
    command: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf" / "batch").mkdir(parents=True)
    (tmp_path / "conf" / "batch" / "broken.yaml").write_bytes(content)
    assert cli.main([command, "--config-dir", "conf", override]) == 2
    said = capsys.readouterr().err
    assert "batch/broken: not a readable config file (" in said and len(said.splitlines()) == 1


def test_plans_made_in_the_same_moment_are_all_kept(tmp_path: Path) -> None:
    """1607, 2925: directories named by the second."""
    sweep = SweepDirectory(tmp_path)
    plans = [Plan(sweep="s", created="", overrides=[str(n)], cells=[]) for n in range(16)]
    start = multiprocessing.get_context("fork").Barrier(len(plans))

    def add(plan: Plan) -> None:
        start.wait()
        sweep.add_plan(plan)

    processes = [multiprocessing.get_context("fork").Process(target=add, args=(plan,)) for plan in plans]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    kept = [plan.overrides for _, plan in sweep.plans() if isinstance(plan, Plan)]
    assert sorted(kept) == sorted(plan.overrides for plan in plans)
    assert sorted(path.name for path, _ in sweep.plans()) == [f"{number:03d}.json" for number in range(1, 17)]


def test_what_hydra_resolves_late_is_a_literal_in_the_frozen_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """903."""
    monkeypatch.setenv("SCALERLT_TEST_WORD", "before")
    template = "'${now:%Y} ${oc.env:SCALERLT_TEST_WORD} ${seed} {question}'"
    directory = preset(tmp_path / "conf", "prompt", f"template: {template}", "question_answer")
    request = compose(["prompt=mine", "seed=7"], str(directory))
    cells = resolve_all(request.cells, CPU)
    monkeypatch.setenv("SCALERLT_TEST_WORD", "after")
    sweep, _ = freeze(make_plan(request, cells, {}), cells, tmp_path / "runs")
    frozen = FrozenCell.read(sweep.cells()[0].cell_file).config["prompt"]["template"]
    assert frozen.endswith("before 7 {question}") and "$" not in frozen and frozen[:2] == "20"


def test_two_plans_of_one_name_are_both_kept_and_their_cells_are_one_sweep(tmp_path: Path) -> None:
    """lightning-hydra-template 511."""
    seen: set[str] = set()
    for seeds in ("0,1", "1,2"):
        request = compose([f"seed={seeds}", f"runs_dir={tmp_path}"])
        cells = resolve_all(request.cells, CPU)
        sweep, _ = freeze(make_plan(request, cells, {}), cells, tmp_path)
        seen |= {cell.cell_id for cell in cells}
    assert len(seen) == 3
    assert {cell.path.name for cell in sweep.cells()} == seen
    assert len(list(sweep.plans())) == 2


def test_what_is_settled_keeps_the_settings_that_it_was_frozen_with(tmp_path: Path) -> None:
    def frozen_with(timeout: int, settled: bool) -> tuple[float, list[str]]:
        asked: list[str] = []

        def is_settled(cell: CellDirectory) -> bool:
            asked.append(cell.path.name)
            return settled

        cells = resolve_all(compose([f"resources.timeout_s={timeout}"]).cells, CPU)
        plan = make_plan(compose([f"resources.timeout_s={timeout}"]), cells, {})
        sweep, _ = freeze(plan, cells, tmp_path, is_settled)
        return FrozenCell.read(sweep.cells()[0].cell_file).config["resources"]["timeout_s"], asked

    assert frozen_with(100, settled=True) == (100.0, []), "there was nothing to keep"
    seconds, asked = frozen_with(200, settled=False)
    assert seconds == 200.0 and len(asked) == 1
    seconds, asked = frozen_with(300, settled=True)
    assert seconds == 200.0 and len(asked) == 1
