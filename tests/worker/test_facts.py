"""What a record says of its machine and of its code."""

import hashlib
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from worker.checkouts import git

from scalerlt.measure.environment import environment, gpus, too_few_cpus
from scalerlt.records.provenance import another_code, provenance


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    git(tmp_path, "init", "--quiet")
    (tmp_path / "scalerlt").mkdir()
    (tmp_path / "scalerlt" / "a.py").write_text("x = 1\n")
    return tmp_path


def test_the_revision_and_what_differs_from_it(checkout: Path) -> None:
    before_any_commit = provenance(checkout)
    assert before_any_commit["git_revision"] is None and before_any_commit["git_dirty"]

    git(checkout, "add", "."), git(checkout, "commit", "--quiet", "-m", "one")
    clean = provenance(checkout)
    assert clean["git_revision"] == git(checkout, "rev-parse", "HEAD").strip()
    assert clean["git_dirty"] is False and clean["git_diff_sha256"] is None

    (checkout / "notes.txt").write_text("not a source of the program\n")
    assert provenance(checkout) == clean

    (checkout / "scalerlt" / "a.py").write_text("x = 2\n")
    changed = provenance(checkout)
    diff = subprocess.run(["git", "-C", checkout, "diff", "--binary", "HEAD"], capture_output=True, check=True).stdout
    assert changed["git_dirty"] and changed["git_diff_sha256"] == hashlib.sha256(diff).hexdigest()
    assert changed["git_revision"] == clean["git_revision"]

    (checkout / "scalerlt" / "b.py").write_text("y = 1\n")
    unknown = provenance(checkout)
    (checkout / "scalerlt" / "b.py").write_text("y = 2\n")
    digests = {facts["git_diff_sha256"] for facts in (changed, unknown, provenance(checkout))}
    assert len(digests) == 3, "files that git does not know count too"


def test_an_installed_package_has_its_version_alone(tmp_path: Path) -> None:
    facts = provenance(tmp_path)
    assert not [name for name in facts if name.startswith("git")]
    assert facts["version"] and facts["packages"]["pydantic"]


CODE = {
    "version": "1.2",
    "packages": {"torch": "2.13.0", "numpy": "2.3"},
    "git_revision": "a" * 40,
    "git_dirty": True,
    "git_diff_sha256": "c" * 64,
}
INSTALLED = {name: fact for name, fact in CODE.items() if not name.startswith("git")}


@pytest.mark.parametrize(
    ("runs", "submitted"),
    [
        (CODE, CODE),
        (INSTALLED, INSTALLED),
        (CODE, INSTALLED),
        (INSTALLED, CODE),
        (CODE, {}),
        (CODE, {**INSTALLED, "git_revision": None, "git_fault": "no git here"}),
        (CODE, {**CODE, "packages": {"numpy": "2.3"}}),
    ],
)
def test_the_same_code_needs_no_note(runs: dict[str, Any], submitted: dict[str, Any]) -> None:
    """What only one side knows is no difference."""
    assert another_code(runs, submitted) is None


@pytest.mark.parametrize(
    ("runs", "submitted", "told"),
    [
        (
            {**CODE, "git_revision": "b" * 40},
            CODE,
            f"it runs revision {'b' * 10} with changes {'c' * 10}; submitted was revision {'a' * 10} with",
        ),
        (
            {**CODE, "git_diff_sha256": "d" * 64},
            CODE,
            f"it runs revision {'a' * 10} with changes {'d' * 10}; submitted was revision {'a' * 10} with",
        ),
        (
            {**CODE, "git_diff_sha256": None},
            CODE,
            f"it runs revision {'a' * 10}; submitted was revision {'a' * 10} with changes {'c' * 10}",
        ),
        ({**INSTALLED, "version": "1.3"}, INSTALLED, "it runs scalerlt 1.3; submitted was scalerlt 1.2"),
        ({**INSTALLED, "version": "1.3"}, CODE, "it runs scalerlt 1.3; submitted was scalerlt 1.2"),
        ({**INSTALLED, "packages": {"torch": "2.14.0"}}, INSTALLED, "it runs torch 2.14.0; submitted was torch 2.13.0"),
        ({**CODE, "packages": {"torch": "2.14.0"}}, CODE, "it runs torch 2.14.0; submitted was torch 2.13.0"),
    ],
)
def test_another_code_is_told(runs: dict[str, Any], submitted: dict[str, Any], told: str) -> None:
    assert (another_code(runs, submitted) or "").partition(": ")[2].startswith(told)


def test_a_checkout_that_git_refuses_is_not_called_clean(checkout: Path) -> None:
    (checkout / ".git" / "HEAD").write_text("nonsense\n")
    facts = provenance(checkout)
    assert facts["git_fault"] and "git_dirty" not in facts


def test_the_environment_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-2]")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    facts = environment()
    assert facts["affinity"] == sorted(os.sched_getaffinity(0))
    assert facts["slurm"] == {"SLURM_JOB_ID": "77", "SLURM_JOB_NODELIST": "n[1-2]"}
    assert facts["variables"]["OMP_NUM_THREADS"] == "3"
    assert 0 < facts["memory_available_bytes"] <= facts["memory_bytes"]
    assert facts["host"] and facts["cpu"] and facts["python"]


def test_gpus_as_nvidia_smi_lists_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\necho '0, NVIDIA H200, GPU-aa, 580.1, 143771'\necho '1, NVIDIA H200, GPU-bb, 580.1, 143771'\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert [gpu["uuid"] for gpu in gpus()] == ["GPU-aa", "GPU-bb"]
    assert gpus()[0]["memory.total"] == "143771"
    program.write_text("#!/bin/sh\necho 'No devices were found'\nexit 6\n")
    assert gpus() == []


def test_too_few_cpus() -> None:
    assert too_few_cpus(4, 4) is None and too_few_cpus(4, 2, ranks=2) is None
    assert too_few_cpus(1, 2) == "only 1 CPU may be used (affinity), fewer than device.threads=2"
    assert too_few_cpus(3, 2, ranks=2) == "only 3 CPUs may be used (affinity), fewer than device.threads=2 of 2 ranks"
