"""What the real wandb, offline, has in its own file: of attempts that were preempted, went on, or began anew."""

import json
import math
import os
from pathlib import Path
from typing import NamedTuple

import pytest
from tracking.mirrored_cells import leave_attempt, mirror, mirrored_cell
from tracking.wandb_file import OfflineRun, offline_runs

from scalerlt.records.cell import FrozenCell
from scalerlt.records.record import Metric, Verdict
from scalerlt.worker import mirror as supervisors_end
from scalerlt.worker.fork_server import ForkServer
from scalerlt.worker.supervisor import Supervisor

pytest.importorskip("wandb", reason="wandb is not installed: the dev extra has it")

AXES = {
    "experiment": "gsm8k_reward",
    "rollout": "last_exited",
    "seed": 3,
    "batch.group_size": 8,
    "batch.microbatch_tokens": 512,
    "task": "a/b c\n" + "é" * 300,
    "task.file": None,
}
METRICS = {
    "accuracy": Metric(value=0.75, unit="fraction"),
    "gap": Metric(value=math.nan, unit="nat"),
    "live_peak_bytes": Metric(status="not_measured", reason="no profiler here"),
    "bandwidth": Metric(status="unsupported"),
}


class Cell(NamedTuple):
    """Three attempts at one cell: preempted, gone on, begun anew."""

    cell_file: Path
    attempts: list[Path]
    runs: list[OfflineRun]


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Cell:
    sweep = tmp_path_factory.mktemp("runs") / ("sweep/of:all" * 20).replace("/", "_")
    overrides = ["+batch.group_size=8", "tracker=wandb"]
    cell_file = mirrored_cell(sweep, "measures", axes=AXES, overrides=overrides)
    attempts = [
        leave_attempt(cell_file, [1, 2, 3, 4, 5, 6], Verdict.PREEMPTED, evaluations=[0, 4]),
        leave_attempt(cell_file, [5, 6, 7], continues=1, evaluations=[7], metrics=METRICS),
        leave_attempt(cell_file, [1], Verdict.KILLED),
    ]
    with pytest.MonkeyPatch.context() as patch:
        # what a shell that is itself in a run of wandb has set
        for name in ("RUN_ID", "RUN_GROUP", "NAME", "TAGS", "DIR", "RESUME", "SERVICE", "JOB_TYPE"):
            patch.setenv(f"WANDB_{name}", "of-another-run")
        assert mirror(*attempts, variables=dict(os.environ)) == [[{"ready": True, "notes": []}]] * 3
    runs = [offline_runs(attempt) for attempt in attempts]
    assert [len(found) for found in runs] == [1, 1, 1]
    return Cell(cell_file, attempts, [found[0] for found in runs])


def test_rows_are_those_of_the_series_with_their_attempt(cell: Cell) -> None:
    rows = [row for row in cell.runs[0].rows if "reward" in row]
    columns = ("step", "samples", "tokens", "seconds", "reward", "attempt")
    expected = [(step, 8 * step, 64 * step, 0.5 * step, step / 10, 1) for step in range(1, 7)]
    assert [tuple(row[column] for column in columns) for row in rows] == expected
    assert all(math.isnan(row["odd"]) for row in rows)
    assert [row["attempt"] for row in cell.runs[1].rows] == [2, 2, 2, 2]


def test_the_x_axis_is_the_step_and_samples_tokens_and_seconds_are_axes_too(cell: Cell) -> None:
    assert cell.runs[0].axes == {"step": "", "samples": "", "tokens": "", "seconds": "", "*": "step"}


def test_names_say_what_the_run_is_within_the_limits(cell: Cell) -> None:
    run = cell.runs[0].run
    assert run.project == "scalerlt" and run.display_name == "measures" and run.job_type == "gsm8k_reward"
    assert len(run.run_group) <= 128 and run.run_group.startswith("sweep_of:allsweep_of:all")
    tags = list(run.tags)
    assert {"experiment=gsm8k_reward", "rollout=last_exited", "seed=3", "batch.group_size=8"} < set(tags)
    assert not any(tag.startswith(("batch.microbatch_tokens", "task.file")) for tag in tags), "nobody overrode these"
    (task,) = [tag for tag in tags if tag.startswith("task=")]
    assert task.startswith("task=a/b c é") and len(task) <= 64


def test_the_configuration_is_the_resolved_one_with_axes_and_provenance(cell: Cell) -> None:
    frozen = FrozenCell.read(cell.cell_file)
    config = cell.runs[0].config
    assert {key: config[key] for key in frozen.config} == frozen.config
    assert config["axes"] == AXES
    assert config["provenance"] == {"git_revision": "abc123", "git_dirty": False}
    assert (config["identity"], config["sweep"]) == (frozen.identity, frozen.sweep)


def test_an_attempt_that_goes_on_keeps_the_run_and_one_from_zero_has_its_own(cell: Cell) -> None:
    first, second, third = (run.run.run_id for run in cell.runs)
    assert first == second != third
    assert [run.folder.parents[2] for run in cell.runs] == cell.attempts


def test_what_a_continued_attempt_has_done_again_is_marked(cell: Cell) -> None:
    assert cell.runs[1].config["superseded_from_step"] == {"attempt-001": 5}
    assert cell.runs[1].config["attempts"] == [1, 2]
    assert cell.runs[0].config["superseded_from_step"] == cell.runs[2].config["superseded_from_step"] == {}


def test_rows_of_a_continued_attempt_are_numbered_behind_those_before(cell: Cell) -> None:
    first, second, third = (run.numbers for run in cell.runs)
    assert first == [0, 1, 2, 3, 4, 5, 6, 7], "six rows and two evaluations"
    assert second == [8, 9, 10, 11]
    assert third == [0]


def test_the_record_stands_in_the_summary_and_what_was_not_measured_has_no_number(cell: Cell) -> None:
    summary = cell.runs[1].summary
    assert (summary["verdict"], summary["accuracy"]) == ("measured", 0.75)
    assert summary["gap"] == "NaN"
    assert summary["status/live_peak_bytes"] == "not_measured: no profiler here"
    assert summary["status/bandwidth"] == "unsupported"
    assert "live_peak_bytes" not in summary and "bandwidth" not in summary


def test_a_preempted_attempt_is_marked_and_the_exit_code_says_whether_there_is_an_answer(cell: Cell) -> None:
    assert [run.preempting for run in cell.runs] == [True, False, False]
    assert [run.exit_code for run in cell.runs] == [1, 0, 1]


def test_a_table_shows_the_same_twenty_problems_at_every_evaluation(cell: Cell) -> None:
    tables = []
    for run in cell.runs[:2]:
        for row in run.rows:
            if "validation_samples._type" in row:
                content = json.loads((run.folder / "files" / row["validation_samples.path"]).read_text())
                tables.append((row["step"], content["columns"], content["data"]))
    assert [step for step, _, _ in tables] == [0, 4, 7]
    for step, columns, data in tables:
        assert columns == ["problem", "question", "gold", "answer", "read", "right", "tokens", "mean_depth"]
        assert [row[0] for row in data] == [f"problem-{number:02d}" for number in range(20)]
        assert data[3] == ["problem-03", f"3 + {step}?", str(3 + step), "#### 3", "3", True, 3, 3.0]
        assert len(data[0][3]) == 2000 and data[0][3].endswith("…")


def test_nothing_is_written_but_in_the_mirrors_folder(cell: Cell) -> None:
    names = {path.name for path in cell.attempts[0].iterdir()}
    assert names == {"lease.json", "environment.json", "series.jsonl", "samples", "record.json", "mirrors"}


def test_two_cells_of_one_process_are_two_runs(
    server: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where wandb.init is called twice in one process, it returns the first run with the first configuration."""
    monkeypatch.setattr(supervisors_end, "PATIENCE_SECONDS", 120.0)  # a machine that tests are run on is busy
    supervisor = Supervisor(server)
    found = []
    for seed in (1, 2):
        cell_file = mirrored_cell(tmp_path / "sweep", "measures", cell_id=f"cell-{seed}", config={"seed": seed})
        record = supervisor.run(cell_file)
        assert record.verdict is Verdict.MEASURED and record.notes == []
        (run,) = offline_runs(cell_file.parent / "attempt-001")
        found.append((run.run.display_name, run.config["seed"], run.summary["answer"], run.exit_code))
        found.append(run.run.run_id)
    assert found[0] == ("cell-1", 1, 42, 0) and found[2] == ("cell-2", 2, 42, 0)
    assert found[1] != found[3]
