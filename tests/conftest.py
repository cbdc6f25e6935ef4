"""Options of the test run, and where the real GSM8K files are: never part of the repository."""

import os
import shutil
import signal
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

REPOSITORY = Path(__file__).parents[1]

# How long an example takes is the machine's business.
settings.register_profile("scalerlt", deadline=None)
settings.load_profile("scalerlt")


def pytest_configure() -> None:
    # No test cuts the power, and a disk that is made to write at once takes some 10 ms each time.
    os.fsync = lambda descriptor: None
    # Workers that run at once must not wait for each other's lock of the device, which lies in the temporary directory,
    # and there is a core for each of them: more threads would only take turns.
    if worker := os.environ.get("PYTEST_XDIST_WORKER"):
        os.environ["TMPDIR"] = tempfile.mkdtemp(prefix=f"scalerlt-tests-{worker}-")
        tempfile.tempdir = None
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    # A shell starts what it puts into the background with SIGINT ignored; tests of Ctrl-C and their children need it.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_unconfigure() -> None:
    if "PYTEST_XDIST_WORKER" in os.environ:
        shutil.rmtree(os.environ["TMPDIR"], ignore_errors=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--run-packaging",
        action="store_true",
        help="also build the wheel, install it in a new environment and use it there (minutes; make test-wheel)",
    )
    parser.addoption(
        "--run-vllm",
        action="store_true",
        help="collect the tests that need vLLM, in an environment of their own (make test-vllm)",
    )
    parser.addoption(
        "--run-browser",
        action="store_true",
        help="also open a report in a headless Chromium (needs chromium, chromedriver and selenium; make test-browser)",
    )
    parser.addoption(
        "--run-slurm",
        action="store_true",
        help="also start a real Slurm on this host and run sweeps on it (needs Debian's slurm-wlm, munge, slurmdbd and "
        "mariadb-server; minutes; make test-slurm)",
    )
    parser.addoption(
        "--run-soak",
        action="store_true",
        help="also run a sweep of 200 cells through faults, interruptions and kills (minutes; make soak)",
    )
    parser.addoption("--soak-seed", type=int, help="of what the soak leaves to chance (default: a new one)")
    parser.addoption("--soak-cells", type=int, default=200, help="how many cells the soak has (default: 200)")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The tests of vLLM have an environment and a run of their own."""
    return True if collection_path.name == "vllm_engine" and not config.getoption("--run-vllm") else None


@pytest.fixture(scope="session")
def gsm8k_directory() -> Path:
    directory = Path(os.environ.get("SCALERLT_GSM8K") or REPOSITORY.parent / "shared/data/gsm8k")
    if not (directory / "train.jsonl").is_file():
        pytest.skip(
            f"the real GSM8K is not at {directory}; set SCALERLT_GSM8K to the directory of train.jsonl and test.jsonl"
        )
    return directory
