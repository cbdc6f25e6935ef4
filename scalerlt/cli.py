"""The command line. Everything heavy is imported by the command that needs it, so that --help answers at once."""

import argparse
import errno
import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from scalerlt.errors import RequestErrors, UserError

if TYPE_CHECKING:
    from scalerlt.launching.jobs import Jobs
    from scalerlt.launching.local import Outcome
    from scalerlt.launching.progress import Display
    from scalerlt.launching.slurm.outlook import Outlook
    from scalerlt.planning.forecast import FindUnderWay, Forecast, UnderWay
    from scalerlt.planning.request import Request
    from scalerlt.planning.resolve import ResolvedCell
    from scalerlt.records.plan import Plan
    from scalerlt.records.store import Attempt, CellDirectory, SweepDirectory

    Start = Callable[[SweepDirectory, Plan, str, Display], Outcome]
    """Runs a frozen plan, given its file's name."""

HELP = """\
usage: scalerlt COMMAND ...

  run [overrides]             one cell, here; prints its record
  sweep [NAME] [overrides]    every cell of a sweep; the same as python -m scalerlt -m +sweeps=NAME [overrides]
  plan [NAME] [overrides]     what a sweep would run, its cost, memory and margins; writes nothing
  status [RUNS]               the state of each cell; --watch, --failed, --json
  show CELL                   what the policy wrote: answers, grades, exit depths
  report [RUNS] [--out DIR]   tables and figures, from records only
  wandb-sync [RUNS]           upload the offline runs of tracker=wandb
  doctor                      what this machine can do

Overrides are Hydra's: precision=bf16 batch.group_size=8 seed=0,1,2
Of the request itself: runs_dir=runs retry=failed,killed,lost,timeout max_gpu_hours=null
Each command has its own --help. Exit codes: 0 every cell has an answer, 1 some failed, 2 the request is wrong,
130 interrupted.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    try:
        code = _answer(list(sys.argv[1:] if arguments is None else arguments))
        sys.stdout.flush()
        return code
    except RequestErrors as error:
        for problem in error.problems:
            print(f"error: {problem}", file=sys.stderr)
        return 2
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        _discard_output()  # the reader went away: not our fault
        return 0
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        _discard_output()
        print(f"error: {error.filename or 'the output'} cannot be written ({error.strerror})", file=sys.stderr)
        return 2


def _answer(given: list[str]) -> int:
    if not given or given[0] in ("-h", "--help", "help"):
        print(HELP, end="")
        return 0
    if given[0] == "--version":
        from scalerlt import __version__

        print(__version__)
        return 0
    command = COMMANDS.get(given[0])
    if command is not None:
        return command(given[1:])
    if given[0].startswith("-") or "=" in given[0]:
        return _hydra(given)  # python -m scalerlt -m precision=fp32,bf16
    from scalerlt.planning.suggestions import nearest

    raise UserError(f"there is no command {given[0]!r}{nearest(given[0], COMMANDS)}")


def _discard_output() -> None:
    """What is still to be written to stdout goes nowhere, so that its end raises nothing again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def run(arguments: list[str]) -> int:
    """Measure one cell."""
    if _asks_for_help(arguments):
        print("usage: scalerlt run [overrides] [--config-dir DIR] [--cfg job]\n")
    return _hydra(arguments)


def sweep(arguments: list[str]) -> int:
    """Measure every cell of a sweep."""
    if _asks_for_help(arguments):
        print("usage: scalerlt sweep [NAME | FILE.yaml] [overrides] [--config-dir DIR]\n\nsweeps:")
        print(_list_of_sweeps())
    return _hydra(["-m", *_named_sweep(arguments)])


def plan(arguments: list[str]) -> int:
    """Show what a sweep would run; writes nothing."""
    parser = argparse.ArgumentParser(prog="scalerlt plan", description="What a sweep would run. Writes nothing.")
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")
    parser.add_argument("--config-dir", metavar="DIR", help="a further folder of config groups")
    parser.add_argument("overrides", nargs="*", metavar="NAME | override", help="a sweep, then Hydra overrides")
    options = parser.parse_intermixed_args(arguments)
    from scalerlt.planning.forecast import forecast, refuse_above
    from scalerlt.planning.hydra_bridge import compose
    from scalerlt.planning.inference import infers_oom, with_inferred
    from scalerlt.planning.launcher import machine_of
    from scalerlt.planning.plan import make_plan
    from scalerlt.planning.resolve import resolve_all
    from scalerlt.planning.show import show_plan
    from scalerlt.records.base import finite
    from scalerlt.records.provenance import provenance
    from scalerlt.records.store import SweepDirectory

    request = compose(_named_sweep(options.overrides), options.config_dir)
    _warn(request)
    revision = provenance() if "other_revision" in request.retry else {}
    cells = resolve_all(request.cells, machine_of(request.launcher))
    planned = make_plan(request, cells, revision)
    directory = SweepDirectory(Path(request.runs_dir) / planned.sweep)
    if infers_oom(request.launcher):
        planned = with_inferred(planned, directory, request.retry)
    seen = forecast(planned, cells, request, _under_way(directory))
    refuse_above(request.max_gpu_hours, seen)
    jobs = _jobs(request, seen, cells)
    if options.json:
        plain = seen.to_plain() | ({} if jobs is None else {"jobs": [asdict(group) for group in jobs]})
        print(json.dumps(finite(plain), indent=1, ensure_ascii=False, allow_nan=False))
    else:
        show_plan(seen)
        for group in jobs or []:
            print("\n".join([f"Slurm: {group.sentence}", *(f"warning: {text}" for text in group.warnings)]))
    return 0


def status(arguments: list[str]) -> int:
    """Show the state of each cell."""
    parser = argparse.ArgumentParser(
        prog="scalerlt status",
        description="The state of each cell, from its files and, where it was submitted, from Slurm's queue.",
        epilog="Exit codes: 1 when some cells have failed, or were killed, lost, preempted or timed out, and no job is "
        "going to run them; 2 the request is wrong; else 0.",
    )
    parser.add_argument("runs", nargs="?", default=None, metavar="RUNS", help="a runs directory, or one sweep's (runs)")
    parser.add_argument("--failed", action="store_true", help="only what ended badly, with the last lines of its log")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document (docs/sweeps.md says what is in it)"
    )
    parser.add_argument(
        "--watch",
        nargs="?",
        const="5",
        metavar="SECONDS",
        help="again and again (every 5 s), until nothing runs or is queued",
    )
    parser.add_argument(
        "--reconcile", action="store_true", help="first write the records of attempts that ended without one"
    )
    options = parser.parse_args(arguments)
    if options.watch is not None and options.json:
        raise UserError("--json prints one document: leave out --watch, and ask again as often as you like")
    seconds, runs = _every(options.watch, options.runs)
    from scalerlt.launching.recovery import reconcile_all
    from scalerlt.launching.watching import show_status, watch
    from scalerlt.records.store import sweeps

    faults: list[str] = []

    def say(text: str) -> None:
        faults.append(text)
        print(text, file=sys.stderr)

    jobs = _slurm_jobs(say)
    if options.reconcile:
        reconcile_all(sweeps(runs), jobs, lambda text: print(text, file=sys.stderr if options.json else sys.stdout))
    if seconds is not None:
        return watch(runs, jobs, seconds, failed=options.failed)
    return show_status(runs, jobs, failed=options.failed, as_json=options.json, faults=faults)


def show(arguments: list[str]) -> int:
    """Show what a policy wrote."""
    parser = argparse.ArgumentParser(
        prog="scalerlt show", description="What the policy wrote: answers, grades, exit depths."
    )
    parser.add_argument("cell", metavar="CELL", help="a cell's directory, or its id or an unambiguous part of it")
    parser.add_argument("--runs", default="runs", metavar="RUNS", help="where to look for the id (default: runs)")
    parser.add_argument("--step", type=int, metavar="N", help="the samples of this step (default: the last)")
    parser.add_argument("--wrong", action="store_true", help="only answers that the grader did not accept")
    parser.add_argument("--limit", type=int, default=10, metavar="N", help="at most so many answers (default: 10)")
    parser.add_argument("--diff", metavar="CELL2", help="only what the two cells answer differently")
    options = parser.parse_args(arguments)
    from scalerlt.analysis.samples import find_cell, show_samples

    runs = Path(options.runs)
    other = find_cell(options.diff, runs) if options.diff else None
    cell = find_cell(options.cell, runs)
    show_samples(cell, step=options.step, wrong=options.wrong, limit=options.limit, other=other)
    return 0


def report(arguments: list[str]) -> int:
    """Build tables and figures from records."""
    parser = argparse.ArgumentParser(
        prog="scalerlt report", description="Tables and figures from the records alone; the same bytes every time."
    )
    parser.add_argument("runs", nargs="?", default="runs", metavar="RUNS", help="a runs directory, or one sweep's")
    parser.add_argument("--out", default=None, metavar="DIR", help="where to write (default: reports/<sweep>)")
    parser.add_argument("--specs", default=None, metavar="DIR", help="your own tables/NAME.yaml and figures/NAME.yaml")
    options = parser.parse_args(arguments)
    from scalerlt.analysis import build_report

    runs = _existing(options.runs)
    out = Path(options.out) if options.out else Path("reports", *([runs.name] if (runs / "plans").is_dir() else []))
    built = build_report(runs, out, options.specs)
    for problem in built.problems:
        print(f"passed over: {problem}", file=sys.stderr)
    for path in built.outputs:
        print(path)
    return 0


def wandb_sync(arguments: list[str]) -> int:
    """Upload the offline runs of tracker=wandb."""
    parser = argparse.ArgumentParser(
        prog="scalerlt wandb-sync",
        description="Upload the offline runs that tracker=wandb has left, one by one, each once.",
        epilog="Exit codes: 1 when some were not uploaded, 2 the request is wrong, else 0.",
    )
    parser.add_argument("runs", nargs="?", default="runs", metavar="RUNS", help="a runs directory, or one sweep's")
    options = parser.parse_args(arguments)
    from scalerlt.tracking.sync import sync

    return sync(_existing(options.runs))


def doctor(arguments: list[str]) -> int:
    """Say what this machine can do."""
    argparse.ArgumentParser(prog="scalerlt doctor", description="What this machine can do.").parse_args(arguments)
    from scalerlt.doctor import examine

    return examine()


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "run": run,
    "sweep": sweep,
    "plan": plan,
    "status": status,
    "show": show,
    "report": report,
    "wandb-sync": wandb_sync,
    "doctor": doctor,
}


def _hydra(arguments: list[str]) -> int:
    from scalerlt.planning.hydra_bridge import launch

    return launch(arguments, _execute)


def _execute(request: "Request") -> int:
    """Plan, freeze and run a request: here, or by the jobs of a Slurm cluster."""
    from scalerlt.launching.due import is_settled
    from scalerlt.launching.progress import display
    from scalerlt.launching.queued import Queued, attempts_of, expect
    from scalerlt.launching.show import show_record
    from scalerlt.launching.status import of_cells
    from scalerlt.planning.forecast import forecast, refuse_above
    from scalerlt.planning.inference import infers_oom, with_inferred
    from scalerlt.planning.launcher import machine_of
    from scalerlt.planning.plan import freeze, make_plan
    from scalerlt.planning.resolve import resolve_all
    from scalerlt.records.provenance import provenance
    from scalerlt.records.store import SweepDirectory

    infer_oom = infers_oom(request.launcher)
    cells = resolve_all(request.cells, machine_of(request.launcher))
    planned = make_plan(request, cells, provenance())
    if infer_oom:
        planned = with_inferred(planned, SweepDirectory(Path(request.runs_dir) / planned.sweep), request.retry)
    if request.max_gpu_hours is not None:
        find = _under_way(SweepDirectory(Path(request.runs_dir) / planned.sweep))
        refuse_above(request.max_gpu_hours, forecast(planned, cells, request, find))
    start = _on_slurm(request, cells) if request.launcher.get("kind") == "slurm" else _here(request, cells, infer_oom)
    with display() as shown:
        sweep = SweepDirectory(Path(request.runs_dir) / planned.sweep)
        queued = Queued(sweep.path)
        jobs = _slurm_jobs(shown.say)
        expect([(queued, attempts_of(sweep, planned.cells))], jobs)
        revision = planned.provenance.get("git_revision")
        kept: list[str] = []

        def stays(cell: "CellDirectory") -> bool:
            settled = is_settled(cell, request.retry, revision, queued, jobs)
            kept.extend([cell.path.name] if settled else [])
            return settled

        directory, name = freeze(planned, cells, Path(request.runs_dir), stays)
        _warn(request)
        if kept:
            shown.say(f"{of_cells(len(kept))} that run, wait for a job or are not run again keep their own settings")
        for state in ("unsupported", "skipped"):
            for reason, count in Counter(cell.reason for cell in planned.cells if cell.state == state).items():
                shown.say(f"{state} ({count} of {of_cells(len(planned.cells))}): {reason}")
        outcome = start(directory, planned, name, shown)
    if len(planned.cells) == 1 and (record := directory.cell(planned.cells[0].cell_id).last_record()) is not None:
        show_record(record)
    return outcome.exit_code


def _here(request: "Request", cells: "list[ResolvedCell]", infer_oom: bool) -> "Start":
    from scalerlt.launching.local import run_plan
    from scalerlt.planning.cost import Costs, measured

    by_id = {cell.cell_id: cell for cell in cells}
    costs = cache(lambda: Costs(measured(Path(request.runs_dir))))  # read when there is something to run
    return lambda directory, plan, name, shown: run_plan(
        directory.path,
        plan,
        name,
        display=shown,
        retry=request.retry,
        infer_oom=infer_oom,
        cost_of=lambda cell_id: costs().of(by_id[cell_id]),
        jobs=_slurm_jobs(shown.say),
    )


def _on_slurm(request: "Request", cells: "list[ResolvedCell]") -> "Start":
    """Checks what can be checked before anything is written."""
    from scalerlt.launching.slurm.items import check_nodes
    from scalerlt.launching.slurm.run import check_slurm, run_on_slurm
    from scalerlt.planning.cost import Costs, measured
    from scalerlt.planning.launcher import SlurmSettings, read_launcher

    settings = read_launcher(request.launcher)
    assert isinstance(settings, SlurmSettings)
    check_nodes(cells, settings)
    request.warnings.extend(check_slurm(Path(request.runs_dir)))
    costs = cache(lambda: Costs(measured(Path(request.runs_dir))))
    return lambda directory, plan, name, shown: run_on_slurm(
        directory.path,
        plan,
        name,
        cells,
        settings,
        display=shown,
        retry=request.retry,
        seconds=lambda cell: costs().of(cell).seconds,
    )


def _jobs(request: "Request", seen: "Forecast", cells: "list[ResolvedCell]") -> "list[Outlook] | None":
    """What a cluster's launcher would submit; None of another launcher."""
    if request.launcher.get("kind") != "slurm":
        return None
    from scalerlt.launching.slurm.outlook import of_forecast

    return of_forecast(seen, cells, request.launcher)


def _under_way(sweep: "SweepDirectory") -> "FindUnderWay":
    """Which cells of a sweep run or wait for a job, by its files and, where there is one, by Slurm."""
    from scalerlt.launching.queued import Queued, expect
    from scalerlt.launching.under_way import under_way

    jobs, queued = _slurm_jobs(lambda text: print(text, file=sys.stderr)), Queued(sweep.path)

    def find(attempts: "Mapping[str, list[Attempt]]") -> "Mapping[str, UnderWay]":
        expect([(queued, attempts)], jobs)
        return under_way(attempts, queued, jobs)

    return find


def _slurm_jobs(say: Callable[[str], None]) -> "Jobs":
    """What Slurm says of jobs, where there is one to ask; `say` is told when it does not answer."""
    from scalerlt.launching.jobs import Jobs
    from scalerlt.launching.slurm.ask import Slurm

    return Jobs(Slurm(say) if shutil.which("squeue") else None)


def _warn(request: "Request") -> None:
    for warning in request.warnings:
        print(f"warning: {warning}", file=sys.stderr)


def _named_sweep(arguments: list[str]) -> list[str]:
    """Turn a leading sweep name or file into the override that Hydra knows it by."""
    if arguments and not arguments[0].startswith(("-", "+", "~")) and "=" not in arguments[0]:
        from scalerlt.planning.sweep_file import find

        find(arguments[0])
        return [f"+sweeps={arguments[0]}", *arguments[1:]]
    return arguments


def _list_of_sweeps() -> str:
    from scalerlt.planning.sweep_file import available, read

    lines = []
    for name, path in available().items():
        try:
            about = read(path).definition.get("description", "")
        except UserError as error:
            about = f"cannot be used: {str(error).splitlines()[0]}"
        lines.append(f"  {name:20} {about}")
    return "\n".join(lines) + "\n"


def _asks_for_help(arguments: list[str]) -> bool:
    return "-h" in arguments or "--help" in arguments


def _every(watch: str | None, runs: str | None) -> tuple[float | None, Path]:
    """How often to look, and where: in `--watch runs` the word is no number but the directory."""
    if watch is not None and runs is None and not watch.replace(".", "", 1).isdigit():
        watch, runs = "5", watch
    try:
        seconds = None if watch is None else float(watch)
    except ValueError:
        seconds = 0.0
    if seconds is not None and not 0.1 <= seconds <= 86400:
        raise UserError(f"--watch {watch}: give seconds, from 0.1 to 86400")
    return seconds, _existing(runs or "runs")


def _existing(runs: str) -> Path:
    if not Path(runs).is_dir():
        raise UserError(f"{runs}: there is no such runs directory; give the one that runs_dir= named (default: runs)")
    return Path(runs)
