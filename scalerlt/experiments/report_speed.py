"""`experiment=report_speed`: how long the frame and the report of a large sweep take.

The records are generated from the cell's seed. Both run in interpreters of their own: `load_runs` timed inside, imports
left out; and `python -m scalerlt report` as a user runs it, from the start of the interpreter to its end.
"""

import importlib.util
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import scalerlt
from scalerlt.errors import Unsupported
from scalerlt.experiments.generated_sweep import generate_sweep
from scalerlt.records.recorder import Recorder
from scalerlt.schema import Cell
from scalerlt.schema.experiment.report_speed import ReportSpeed

LOAD = """
import json, sys, time
from scalerlt.analysis import load_runs
started = time.perf_counter()
frame = load_runs(sys.argv[1])
print(json.dumps([time.perf_counter() - started, len(frame), len(frame.attrs["problems"])]))
"""


def run(cell: Cell, recorder: Recorder) -> None:
    """Measure the sizes of the cell."""
    experiment = cell.experiment
    assert isinstance(experiment, ReportSpeed)
    for package in ("pandas", "matplotlib"):
        if importlib.util.find_spec(package) is None:
            raise Unsupported(f"experiment=report_speed builds a report with {package}, which is not installed here")
    with tempfile.TemporaryDirectory() as folder:
        sweep, out = Path(folder, "runs", "generated"), Path(folder, "report")
        with recorder.phase("generate"):
            generate_sweep(sweep, experiment.records, metrics=experiment.figures, seed=cell.seed)
        loads: list[float] = []
        reports: list[float] = []
        processor: list[float] = []
        with recorder.measuring("time"):
            for _ in range(experiment.repeats):
                seconds, cells, problems = json.loads(_python("-c", LOAD, str(sweep)))
                if problems:
                    raise RuntimeError(f"{problems} of the generated files were passed over")
                loads.append(seconds)
                used, started = _processor_seconds(), time.perf_counter()
                _python("-m", "scalerlt", "report", str(sweep), "--out", str(out))
                reports.append(time.perf_counter() - started)
                processor.append(_processor_seconds() - used)
        recorder.metric("records", experiment.records, "record")
        recorder.metric("cells", cells, "cell")
        recorder.metric("pictures", len(list(out.glob("figures/*.pdf"))), "picture")
        recorder.metric("page_bytes", (out / "report.html").stat().st_size, "B")
    recorder.repeated("load_seconds", loads, "s", scope="load_runs", method="imports left out")
    recorder.repeated("report_seconds", reports, "s", scope="report", method="the whole command, interpreter included")
    recorder.repeated(
        "report_processor_seconds", processor, "s", scope="report", method="user and system, all processes"
    )


def _processor_seconds() -> float:
    """Processor time of all ended child processes, and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _python(*arguments: str) -> str:
    """What a fresh interpreter prints that has this package on its path."""
    package = str(Path(scalerlt.__file__).resolve().parent.parent)
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if ran.returncode:
        raise RuntimeError(f"{' '.join(arguments[:3])} ended with {ran.returncode}: {ran.stderr.strip()[-500:]}")
    return ran.stdout
