"""What `scalerlt plan` says of a plan beyond its cells: states, margins, memory; for people and as JSON."""

import io
import json
import math
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from scalerlt.cli import main
from scalerlt.planning import launcher, progress
from scalerlt.planning.forecast import Forecast, forecast
from scalerlt.planning.hydra_bridge import compose
from scalerlt.planning.plan import make_plan
from scalerlt.planning.resolve import resolve_all
from scalerlt.planning.show import duration, size
from scalerlt.power import detectable_margin, detectable_ratio
from scalerlt.schema.machine import Machine

CPU = Machine(gpus=0, gpu_reason="none here", cpus=2)


def seen(runs: Path, *overrides: str) -> Forecast:
    request = compose([*overrides, f"runs_dir={runs}"])
    cells = resolve_all(request.cells, CPU)
    return forecast(make_plan(request, cells, {}), cells, request, lambda attempts: {})


@pytest.mark.parametrize("n", [2, 3, 5, 30, 250])
def test_a_detectable_ratio_is_found_with_its_power(n: int) -> None:
    """Against scipy's noncentral t distribution: the chance that the two-sided test finds the ratio is 80 %."""
    ratio = detectable_ratio(n, deviation=0.05)
    assert ratio is not None
    shift = math.log(ratio) / 0.05 * math.sqrt(n)
    found = stats.nct.sf(stats.t.ppf(0.975, n - 1), n - 1, shift)
    assert found == pytest.approx(0.8, abs=1e-4)


def test_one_cohort_detects_nothing() -> None:
    assert detectable_ratio(1, deviation=0.05) is None
    assert detectable_ratio(0, deviation=0.05) is None
    assert detectable_ratio(5, deviation=0.0) == 1.0
    assert detectable_ratio(3, deviation=1e6) == detectable_ratio(2, deviation=1e308) == math.inf
    with pytest.raises(ValueError, match="standard deviation"):
        detectable_ratio(5, deviation=float("nan"))


def test_margins_count_the_cohorts_that_all_arms_have(tmp_path: Path) -> None:
    plan = seen(tmp_path, "experiment=rollout_throughput", "precision=fp32,bf16", "batch=small,medium", "seed=range(3)")
    found = {(margin.key, margin.arms): margin for margin in plan.margins}
    assert set(found) == {("precision", ("fp32", "bf16")), ("batch", ("small", "medium"))}
    margin = found["precision", ("fp32", "bf16")]
    assert (margin.kind, margin.n, margin.comparisons) == ("ratio", 3, 2)
    assert margin.detectable == detectable_ratio(3, deviation=0.05)
    assert "assumed" in margin.assumption


def test_margins_of_accuracy_count_problems(tmp_path: Path) -> None:
    plan = seen(tmp_path, "experiment=gsm8k_eval", "rollout=dense,last_exited", "experiment.problems=500", "seed=0,1")
    (margin,) = plan.margins
    assert (margin.kind, margin.n, margin.comparisons) == ("accuracy", 500, 1)
    assert margin.detectable == pytest.approx(100 * (detectable_margin(500) or 0))


def test_arms_that_share_no_cohort_have_no_margin(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("union:\n- grid: {precision: fp32, seed: [0, 1]}\n- grid: {precision: bf16, seed: [1, 2, 3]}\n")
    (margin,) = seen(tmp_path, f"+sweeps={file}").margins
    assert (margin.n, margin.detectable) == (1, None)


def test_json_holds_everything_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["plan", "--json", "precision=fp32,mxfp8", "device=cpu", "device.memory_limit=1MiB"]) == 0
    plan: dict[str, Any] = json.loads(capsys.readouterr().out)
    first, second = plan["cells"]
    assert first["now"] == {"state": "to run", "reason": None, "job": None}
    assert first["cost"]["source"] == "estimated" and first["cost"]["gpu_hours"] == 0
    assert first["memory"]["available"] == 2**20 and first["memory"]["fits"] is False
    phases = first["memory"]["phases"]
    assert first["memory"]["needed"] == max(sum(held.values()) for held in phases.values())
    assert {"weights", "kv_cache", "activations"} <= set(phases["prefill"])
    assert second["now"]["state"] == "unsupported" and second["cost"] is None
    assert plan["total"]["states"] == {"to run": 1, "unsupported": 1}
    assert plan["margins"] == []
    assert list(tmp_path.iterdir()) == []


def test_people_see_what_does_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["plan", "experiment=actor_update", "device=cpu", "device.memory_limit=1MiB", "seed=0,1"]) == 0
    shown = capsys.readouterr().out
    assert "does not fit: needs" in shown and "of 1 MiB (device.memory_limit)" in shown
    assert shown.count("does not fit") == 1, "a reason stands once"
    assert "2 cells: 2 to run" in shown
    assert "(2 estimated)" in shown
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["plan", "sweep", "run"])
def test_too_many_gpu_hours_are_refused(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is written. No GPU is needed: the machine that is planned for says that it has one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launcher, "this_machine", lambda: Machine(gpus=1, gpu_reason="", cpus=2))
    errors = io.StringIO()
    monkeypatch.setattr("sys.stderr", errors)
    assert main([command, "device=cuda", "model=ouro_2_6b", "max_gpu_hours=0.001"]) == 2
    assert "max_gpu_hours=0.001: the cell to run needs some" in errors.getvalue()
    assert list(tmp_path.iterdir()) == []


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_for_terminals_and_for_long_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter(range(1000))
    monkeypatch.setattr(progress.time, "monotonic", lambda: float(next(moments)))
    shown = Terminal()
    monkeypatch.setattr("sys.stderr", shown)
    assert list(progress.with_progress(range(5), "composing")) == [0, 1, 2, 3, 4]
    assert "composing: 2 of 5 cells" in shown.getvalue()
    assert "composing: 0 of 5 cells" not in shown.getvalue()
    assert shown.getvalue().endswith("\r\033[K")
    piped = io.StringIO()
    monkeypatch.setattr("sys.stderr", piped)
    assert list(progress.with_progress(range(5), "composing")) == [0, 1, 2, 3, 4]
    assert piped.getvalue() == ""


def test_amounts_for_people() -> None:
    assert [size(count) for count in (0, 1023, 1024, 1536, 50 * 2**20, 3 * 2**40)] == [
        "0 B",
        "1023 B",
        "1 KiB",
        "1.5 KiB",
        "50 MiB",
        "3 TiB",
    ]
    assert [duration(seconds) for seconds in (0.5, 59.6, 600, 5400, 90000)] == [
        "0.5 s",
        "60 s",
        "10 min",
        "1.5 h",
        "25 h",
    ]
