"""The command line as a user meets it: real processes, exit codes, and what is written where."""

import importlib.util
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

QUICK = ["model=tiny_ouro", "batch.prompts_per_step=1", "batch.group_size=2", "batch.minibatch_responses=2"]
QUICK += ["experiment.repeats=1", "experiment.warmup=0", "rollout.max_new_tokens=3"]
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="no cell runs without torch")


def scalerlt(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "scalerlt", *arguments],
        cwd=cwd,
        env={**os.environ, "COLUMNS": "200", **environment},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


Warm = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def server() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-P", str(Path(__file__).with_name("command_server.py"))]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    yield process
    with process:
        os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture
def warm(server: subprocess.Popen[str], tmp_path_factory: pytest.TempPathFactory) -> Warm:
    """`scalerlt` in a process of its own as well, forked from one that has imported Hydra and what else it needs."""

    def run(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
        said = tmp_path_factory.mktemp("said")
        request = {
            "arguments": arguments,
            "cwd": str(cwd),
            "environment": {**os.environ, "COLUMNS": "200", **environment},
            "out": str(said / "out"),
            "err": str(said / "err"),
        }
        assert server.stdin is not None and server.stdout is not None
        print(json.dumps(request), file=server.stdin, flush=True)
        code = int(server.stdout.readline())
        return subprocess.CompletedProcess(
            arguments, code, (said / "out").read_text("utf-8"), (said / "err").read_text("utf-8")
        )

    return run


def test_help_answers_at_once_and_names_every_command(tmp_path: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = scalerlt("--help", cwd=tmp_path)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert result.returncode == 0
    for command in ("run", "sweep", "plan", "status", "report", "doctor"):
        assert f"\n  {command}" in result.stdout
    # Half a second; this bound only catches an import of something heavy. How long it has to wait for a CPU is the
    # machine's business.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 5


def test_help_imports_nothing_heavy() -> None:
    heavy = ("torch", "hydra", "pandas", "pydantic", "rich")
    code = f"import sys, scalerlt.cli as c; c.main(['--help']); print([m for m in {heavy} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("command", ["plan", "status", "report", "doctor", "run", "sweep"])
def test_every_command_has_its_own_help(command: str, tmp_path: Path, warm: Warm) -> None:
    result = warm(command, "--help", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "usage: scalerlt" in result.stdout
    if command == "sweep":
        assert "quickstart" in result.stdout
    if command in ("run", "sweep"):
        assert "scalerlt is powered by Hydra" in result.stdout
        assert "precision: bf16, fp16, fp32, fp64" in result.stdout  # Hydra's own list of config groups
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "precision=fp23", "batch.grup_size=4", "sede=1"],
        ["sweep", "precision=fp23", "batch.grup_size=4", "sede=1"],
        ["plan", "precision=fp23", "batch.grup_size=4", "sede=1"],
        ["-m", "precision=fp23", "batch.grup_size=4", "sede=1"],
    ],
)
def test_a_wrong_request_names_everything_and_writes_nothing(arguments: list[str], tmp_path: Path, warm: Warm) -> None:
    result = warm(*arguments, cwd=tmp_path)
    assert result.returncode == 2
    assert "did you mean fp32?" in result.stderr
    assert "did you mean batch.group_size?" in result.stderr
    assert "did you mean seed?" in result.stderr
    assert "Traceback" not in result.stderr + result.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["swep"], "there is no command 'swep'; did you mean sweep?"),
        (["sweep", "quickstrat"], "did you mean quickstart?"),
        (["sweep", "no/such/file.yaml"], "there is no such sweep file"),
        (["status", "nowhere"], "nowhere: there is no such runs directory"),
        (["report", "nowhere"], "nowhere: there is no such runs directory"),
        (["run", "seed=1,2"], "lists several values"),
        (
            ["run", "hydra/launcher=nope"],
            "hydra/launcher=nope: hydra/launcher has no such option; there are basic, local",
        ),
        (["sweep", "hydra/launcher=basic"], "knows no plans; use hydra/launcher=local"),
        (["run", "hydra.nope=1"], "hydra.nope"),
        (["sweep", "batch.minibatch_responses=3,16"], "does not divide"),
        (["run", "--config-dir", "nowhere"], "there is no such directory"),
        (["run", "batch.minibatch_responses=3"], "does not divide"),
        (["run", "model.weights=nowhere"], "there is no such file"),
        (["run", "task=gsm8k"], "task.path is not set"),
        (["run", "batch.group_size=${nope}"], "nope"),
        (["sweep", "quickstart", "--cfg", "job"], "--cfg, --info and -sc tell of one cell and not of a sweep"),
    ],
)
def test_mistakes_get_one_clear_line(arguments: list[str], said: str, tmp_path: Path, warm: Warm) -> None:
    result = warm(*arguments, cwd=tmp_path)
    assert result.returncode == 2, result.stderr
    assert said in result.stderr
    assert "Traceback" not in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_plan_shows_every_cell_and_writes_nothing(tmp_path: Path, warm: Warm) -> None:
    result = warm("plan", "precision=fp32,mxfp8", "seed=range(2)", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "4 cells: 2 to run, 2 unsupported" in result.stdout
    assert "mxfp8 has no implementation" in result.stdout
    plan = json.loads(warm("plan", "--json", "precision=fp32,mxfp8", cwd=tmp_path).stdout)
    assert [cell["state"] for cell in plan["cells"]] == ["planned", "unsupported"]
    assert list(tmp_path.iterdir()) == []


def test_hydra_shows_a_composed_configuration(tmp_path: Path, warm: Warm) -> None:
    result = warm("run", "--cfg", "job", "precision=bf16", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "name: bf16" in result.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("scalerlt run prec", {"precision=", "precision."}),
        ("scalerlt sweep quickstart seed=1 precision=b", {"precision=bf16"}),
        ("scalerlt run --cfg job batch=s", {"batch=small"}),
        ("scalerlt precision=fp3", {"precision=fp32"}),
    ],
)
def test_the_shell_completes_overrides_behind_our_commands(
    line: str, offered: set[str], tmp_path: Path, warm: Warm
) -> None:
    result = warm("-sc", "query=bash", cwd=tmp_path, COMP_LINE=line)
    assert result.returncode == 0, result.stderr
    assert set(result.stdout.split()) == offered


@needs_torch
def test_a_sweep_is_measured_once_and_reported(tmp_path: Path, warm: Warm) -> None:
    """sweep, again, status, plan, report; and python -m scalerlt -m is the same door."""
    sweep = ["experiment=rollout_throughput", "precision=fp32,mxfp8", "seed=0,1", *QUICK]
    first = scalerlt("sweep", *sweep, cwd=tmp_path)
    assert first.returncode == 0, first.stdout + first.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs"], "Hydra's own folders are not made"
    directory = tmp_path / "runs" / "adhoc-rollout_throughput"
    records = sorted(directory.glob("*/attempt-*/record.json"))
    assert len(records) == 2
    assert all(json.loads(record.read_text())["verdict"] == "measured" for record in records)

    second = scalerlt("-m", *sweep, cwd=tmp_path)
    assert second.returncode == 0, second.stdout + second.stderr
    assert sorted(directory.glob("*/attempt-*/record.json")) == records, "measured cells are not run again"
    assert sorted(path.name for path in (directory / "plans").iterdir()) == ["001.json", "002.json"]

    status = warm("status", "runs", cwd=tmp_path)
    assert status.returncode == 0
    assert status.stdout.count("measured") >= 2 and status.stdout.count("unsupported") >= 2
    assert "2 measured" in warm("plan", *sweep, cwd=tmp_path).stdout

    report = warm("report", "runs/adhoc-rollout_throughput", "--out", "out", cwd=tmp_path)
    assert report.returncode == 0, report.stderr
    table = (tmp_path / "out" / "tables" / "rollout_throughput.md").read_text()
    assert "mxfp8" in table and "unsupported" in table


@needs_torch
def test_run_prints_its_record(tmp_path: Path) -> None:
    result = scalerlt("run", "experiment=rollout_throughput", *QUICK, cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "tokens_per_second" in result.stdout and "measured" in result.stdout


@pytest.mark.parametrize("override", ["device=cuda", "precision=mxfp8"])
def test_a_cell_that_cannot_run_is_said_before_work_starts(override: str, tmp_path: Path, warm: Warm) -> None:
    result = warm("run", override, cwd=tmp_path, CUDA_VISIBLE_DEVICES="")
    assert result.returncode == 0
    assert "unsupported" in result.stdout
    assert override in result.stdout
    assert not list(tmp_path.glob("runs/*/*/attempt-*"))


def test_doctor_tells_devices_memory_and_packages(tmp_path: Path, warm: Warm) -> None:
    result = warm("doctor", cwd=tmp_path)
    assert result.returncode == 0
    for said in ("CPUs", "memory", "GPUs", "torch", "wandb", "Slurm"):
        assert said in result.stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_output_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            [sys.executable, "-m", "scalerlt", "--help"],
            cwd=tmp_path,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert result.returncode == 2
    assert result.stderr == "error: the output cannot be written (No space left on device)\n"
