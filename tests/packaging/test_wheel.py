"""A built wheel, installed in an environment of its own, used from a folder that has its own conf/ and analysis/."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONSTRAINTS = ROOT / ".ci" / "constraints.txt"


@pytest.fixture(scope="module", autouse=True)
def _only_when_asked(request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("--run-packaging"):
        pytest.skip("builds and installs a wheel, which takes minutes; make test-wheel runs it")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "build", "--wheel", "--outdir", str(out), str(ROOT)], check=True, timeout=300)
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def scalerlt(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The installed command."""
    environment = tmp_path_factory.mktemp("env") / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True, timeout=120)
    install = [str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    install += ["--constraint", str(CONSTRAINTS), "torch==2.13.0", f"{wheel}[torch]"]
    subprocess.run(install, check=True, timeout=900)
    return environment / "bin" / "scalerlt"


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A user's folder whose own conf/, sweeps/ and analysis/ must not shadow the package's."""
    for name in ("conf", "analysis", "scalerlt_notes"):
        (tmp_path / name).mkdir()
    (tmp_path / "conf" / "config.yaml").write_text("this: is not ours\n")
    (tmp_path / "analysis" / "__init__.py").write_text("raise ImportError('the wrong analysis was imported')\n")
    return tmp_path


def run(command: Path, *arguments: str, cwd: Path) -> str:
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    result = subprocess.run(
        [str(command), *arguments], cwd=cwd, env=clean, capture_output=True, text=True, timeout=600, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_the_wheel_holds_configuration_sweeps_and_analysis_and_no_tests(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for wanted in (
        "scalerlt/conf/config.yaml",
        "scalerlt/conf/precision/bf16.yaml",
        "scalerlt/sweeps/quickstart.yaml",
        "scalerlt/analysis/__init__.py",
        "scalerlt/analysis/page/page.html",
        "scalerlt/analysis/page/page.css",
        "scalerlt/analysis/page/page.js",
        "scalerlt/tasks/data/rollouts.jsonl",
        "scalerlt/models/tiny_ouro/model.safetensors",
        "scalerlt/models/tiny_ouro/word_tokenizer.json",
    ):
        assert wanted in names
    assert all(name.startswith(("scalerlt/", "scalerlt-")) for name in names)


@pytest.mark.timeout(900)
def test_quickstart_and_report_run_from_a_folder_of_ones_own(scalerlt: Path, elsewhere: Path) -> None:
    run(scalerlt, "sweep", "quickstart", "precision=fp32,mxfp8", cwd=elsewhere)
    run(scalerlt, "report", "runs/quickstart", "--out", "out", cwd=elsewhere)
    assert (elsewhere / "out" / "tables" / "rollout_throughput.md").is_file()
    assert "Content-Security-Policy" in (elsewhere / "out" / "report.html").read_text(encoding="utf-8")
    for figure in ("reward.png", "throughput.png"):
        assert (elsewhere / "out" / "figures" / figure).is_file()
    assert "quickstart" in run(scalerlt, "sweep", "--help", cwd=elsewhere)
