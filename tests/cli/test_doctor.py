"""What `scalerlt doctor` says of a Slurm cluster."""

from pathlib import Path

import pytest

from scalerlt import doctor


def install(folder: Path, **commands: str) -> None:
    for name, script in commands.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)


@pytest.fixture
def on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the whole PATH; what answers there may take its time."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(doctor, "SLURM_SECONDS", 60.0)
    return tmp_path


def test_no_slurm(on_the_path: Path) -> None:
    assert doctor.slurm() == ("no", "sbatch is not on the path")


@pytest.mark.parametrize(
    ("lines", "has"),
    [
        (["n1|gpu|idle"], "1 node in 1 partition"),
        (
            ["n1|gpu|idle", "n1|long|idle", "n2|gpu|mixed-", "n3|gpu|down*", "n3|long|down*", "n4|gpu|drained"],
            "4 nodes in 2 partitions; 2 of the nodes cannot be used now",
        ),
        ([], "0 nodes in 0 partitions"),
    ],
)
def test_a_controller_that_answers(lines: list[str], has: str, on_the_path: Path) -> None:
    install(on_the_path, sbatch="", sinfo="\n".join(f"echo '{line}'" for line in lines))
    assert doctor.slurm() == (str(on_the_path / "sbatch"), f"its controller answers: {has}")


def test_a_controller_that_does_not(on_the_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(on_the_path, sbatch="")
    sbatch = str(on_the_path / "sbatch")
    assert doctor.slurm() == (sbatch, "sinfo cannot be asked for the cluster (No such file or directory)")
    install(on_the_path, sinfo="echo 'Unable to contact slurm controller (connect failure)' >&2; exit 1")
    assert doctor.slurm() == (
        sbatch,
        "its controller does not answer: Unable to contact slurm controller (connect failure)",
    )
    monkeypatch.setattr(doctor, "SLURM_SECONDS", 0.3)
    install(on_the_path, sinfo="exec /bin/sleep 60")
    assert doctor.slurm() == (sbatch, "its controller does not answer: sinfo said nothing within 0.3 s")
