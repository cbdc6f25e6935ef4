"""Code that is edited while its job waits in the queue."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from worker.checkouts import git
from worker.frozen import WITHOUT_TORCH, freeze
from worker.job_sweep import make_queue, records

import scalerlt
from scalerlt.records.provenance import provenance

EXPERIMENT = "def run(cell, recorder):\n    recorder.metric('version', {})\n"
JOB = "import sys; from scalerlt.worker.slurm_job import work_through; sys.exit(work_through(sys.argv[1]))"


def test_what_is_edited_between_submission_and_start_runs_and_is_noted(tmp_path: Path) -> None:
    checkout, sweep = tmp_path / "checkout", tmp_path / "sweep"
    shutil.copytree(Path(scalerlt.__file__).parent, checkout / "scalerlt")
    (checkout / ".gitignore").write_text("__pycache__/\n")
    edited = checkout / "scalerlt" / "experiments" / "edited.py"
    edited.write_text(EXPERIMENT.format(1))
    git(checkout, "init", "--quiet"), git(checkout, "add", "."), git(checkout, "commit", "--quiet", "-m", "submitted")
    experiment = {"name": "edited", "_target_": "scalerlt.experiments.edited.run", "warmup": 0, "repeats": 1}
    queue = make_queue(
        sweep,
        [{"a": "edited"}],
        axes={"device": "cuda"},  # so that its interpreter is a new one, which needs no torch here
        cells=lambda cell_id, probe: freeze(sweep, probe, cell_id=cell_id, experiment=experiment),
        provenance=provenance(checkout),
    )
    edited.write_text(EXPERIMENT.format(2))
    outside = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    path = os.pathsep.join([str(checkout), WITHOUT_TORCH])
    subprocess.run([sys.executable, "-P", "-c", JOB, queue], env={**outside, "PYTHONPATH": path}, check=True)
    (record,) = records(sweep, "a")
    assert record.metrics["version"].value == 2
    revision, changes = git(checkout, "rev-parse", "HEAD")[:10], provenance(checkout)["git_diff_sha256"][:10]
    ran, sent = f"revision {revision} with changes {changes}", f"revision {revision}"
    assert record.notes == [f"another code than was submitted: it runs {ran}; submitted was {sent}"]
