"""Reads what a soak has left, by json and os alone, and says what is wrong with it.

It shares no code with the product: not its store, not its schemas, not its idea of which record stands for a cell.
"""

import csv
import json
import os
import re
from collections import Counter
from collections.abc import Container
from dataclasses import dataclass, field
from datetime import datetime
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

from soak import evidence
from soak.orders import ANSWERS, NATURAL, Order

STRUCK = {
    "child": {"killed"},
    "server": {"killed", "failed"},  # failed: it had not forked the cell yet
    "Ctrl-C": set[str](),
    "Ctrl-C twice": {"killed"},
    "SIGTERM": {"killed"},
    "kill -9": {"lost"},
    "kill -9 of all": {"lost"},
    "scancel": {"killed"},
    "preemption": {"preempted"},
    "requeue": {"preempted", "killed", "lost"},
    "kill -9 of a job": {"lost"},
    "node failure": {"lost"},
}
"""The verdict of an attempt to which this was done before it had come to its own end."""
ABRUPT = {"kill -9", "kill -9 of all", "scancel", "requeue", "kill -9 of a job", "node failure"}
"""What may end a queue before it has written a lease."""
VERDICTS = {*NATURAL.values(), "lost", "preempted"}
FIELDS: dict[str, type | tuple[type, ...]] = {
    "schema_version": int,
    "sweep": str,
    "cell_id": str,
    "axes": dict,
    "attempt": int,
    "verdict": str,
    "reason": (str, type(None)),
    "metrics": dict,
    "notes": list,
    "started": str,
    "ended": str,
    "ranks": list,
    "environment": dict,
    "provenance": dict,
}
KNOWN = re.compile(
    r"(lease|record|environment)\.json|series\.jsonl|std(out|err)\.log|"
    r"attempt-\d{3}|cell\.yaml|plans|\d{3}\.json"
)
CHECKS = (
    "each cell has one standing verdict, and the right one",
    "each attempt has the verdict of what was done to it",
    "each record is whole and its own",
    "no attempt is lost",
    "no attempt follows an answer",
    "no two attempts at one cell at a time",
    "no queue tried a cell twice",
    "no file is left over",
    "no process is left over",
    "each queue ended as it had to",
    "plan, status and report agree",
)


@dataclass
class Try:
    """One attempt, as its files and its evidence tell.

    Attributes:
        holder, job: of its lease, the queue's pid and Slurm's id; None where there is none.
    """

    cell_id: str
    seed: int
    number: int
    record: dict[str, Any]
    holder: int | None
    job: str | None
    evidence: list[dict[str, Any]]

    @property
    def name(self) -> str:
        """The cell and the attempt."""
        return f"{self.cell_id}/attempt-{self.number:03d}"

    @property
    def verdict(self) -> str:
        """What its record says."""
        return str(self.record.get("verdict", "none"))

    @property
    def natural(self) -> set[str]:
        """The verdict of what it came to by itself; empty of one that was cut short."""
        done = [line["what"] for line in self.evidence if line["what"] in NATURAL or line["what"] == "ended"]
        return {NATURAL.get(done[-1], "measured")} if done else set()


@dataclass
class Finding:
    """What was found.

    Attributes:
        looked_at: how many things each check looked at.
        problems: what is wrong, by check.
    """

    looked_at: Counter[str] = field(default_factory=Counter)
    problems: dict[str, list[str]] = field(default_factory=dict)
    tries: list[Try] = field(default_factory=list)
    standing: dict[str, str] = field(default_factory=dict)
    seeds: dict[str, int] = field(default_factory=dict)
    strikes: list[dict[str, Any]] = field(default_factory=list)

    def check(self, name: str, holds: bool, otherwise: str) -> None:
        """Note that something was looked at."""
        assert name in CHECKS, name
        self.looked_at[name] += 1
        if not holds:
            self.problems.setdefault(name, []).append(otherwise)


def read(folder: Path, sweep: Path, orders: dict[int, Order], goes_on: Container[str] = ()) -> Finding:
    """Look at everything that lies in a sweep's directory.

    Args:
        goes_on: verdicts after which the queue that ran an attempt may run another of the same cell.
    """
    found = Finding(strikes=evidence.lines(folder / evidence.STRIKES))
    found.seeds = _planned(sweep)
    for cell_id, seed in found.seeds.items():
        tries = _tries(folder, sweep, cell_id, seed, found)
        found.tries += tries
        _look_at_cell(cell_id, orders[seed], tries, goes_on, found)
    for attempt in found.tries:
        _look_at_record(sweep, attempt, found)
    _look_at_verdicts(found)
    _look_at_files(sweep, found)
    return found


def _planned(sweep: Path) -> dict[str, int]:
    """The seed of each cell of each plan, by the cell's id."""
    seeds: dict[str, int] = {}
    for path in sorted((sweep / "plans").glob("*.json")):
        for cell in strict(path.read_text())["cells"]:
            assert cell["state"] == "planned", cell
            seeds[cell["cell_id"]] = cell["axes"]["seed"]
    return seeds


def _tries(folder: Path, sweep: Path, cell_id: str, seed: int, found: Finding) -> list[Try]:
    told: dict[int, list[dict[str, Any]]] = {}
    for line in evidence.lines(evidence.of_seed(folder, seed)):
        told.setdefault(line["attempt"], []).append(line)
    tries = []
    for name in sorted(name for name in os.listdir(sweep / cell_id) if name.startswith("attempt-")):
        number, path = int(name.removeprefix("attempt-")), sweep / cell_id / name
        try:
            record = strict((path / "record.json").read_text())
        except (OSError, ValueError) as fault:
            record = {}
            found.check("each record is whole and its own", False, f"{cell_id}/{name}: {fault}")
        try:
            lease = strict((path / "lease.json").read_text())
        except OSError:
            lease = {}
        held_by = lease.get("pid"), lease.get("slurm_job_id")
        tries.append(Try(cell_id, seed, number, record, *held_by, told.pop(number, [])))
    numbers = [attempt.number for attempt in tries]
    name = "no attempt is lost"
    found.check(name, bool(numbers), f"{cell_id} has no attempt")
    found.check(name, numbers == list(range(1, len(numbers) + 1)), f"{cell_id} has the attempts {numbers}")
    found.check(name, not told, f"{cell_id}: the attempts {sorted(told)} took place, and are not there")
    return tries


def _look_at_cell(cell_id: str, order: Order, tries: list[Try], goes_on: Container[str], found: Finding) -> None:
    verdicts = [attempt.verdict for attempt in tries]
    answers = [verdict for verdict in verdicts if verdict in ANSWERS]
    stands = (answers or verdicts or ["none"])[-1]
    found.standing[cell_id] = stands
    found.check(
        "each cell has one standing verdict, and the right one",
        stands == order.standing and len(answers) <= 1,
        f"{cell_id} ({order}) has the verdicts {verdicts}",
    )
    for earlier, later in pairwise(tries):
        found.check(
            "no attempt follows an answer",
            earlier.verdict not in ANSWERS,
            f"{later.name} ({later.verdict}) follows {earlier.verdict}",
        )
        apart = not earlier.evidence or not later.evidence
        apart = apart or earlier.evidence[-1]["moment"] <= later.evidence[0]["moment"]
        ended, started = earlier.record.get("ended", ""), later.record.get("started", "")
        apart = apart and bool(ended and started) and _moment(ended) <= _moment(started)
        found.check(
            "no two attempts at one cell at a time",
            apart,
            f"{earlier.name} until {ended}, {later.name} from {started}",
        )
    for one, other in combinations(tries, 2):
        same_plan = one.record.get("plan") is not None and one.record.get("plan") == other.record.get("plan")
        same_queue = one.holder is not None and one.holder == other.holder
        once = one.verdict in goes_on or not (same_plan or same_queue)
        found.check("no queue tried a cell twice", once, f"{one.name} and {other.name}, by one queue")


def _look_at_record(sweep: Path, attempt: Try, found: Finding) -> None:
    record = attempt.record
    if not record:
        return
    wrong = [name for name, kind in FIELDS.items() if not isinstance(record.get(name, ...), kind)]
    if not wrong:
        metrics = {name: metric.get("value") for name, metric in record["metrics"].items()}
        pids = {line["pid"] for line in attempt.evidence}
        truths = {
            "schema_version": record["schema_version"] == 1,
            "sweep": record["sweep"] == sweep.name,
            "cell_id": record["cell_id"] == attempt.cell_id,
            "seed": record["axes"].get("seed") == attempt.seed,
            "attempt": record["attempt"] == attempt.number,
            "verdict": record["verdict"] in VERDICTS,
            "reason": record["verdict"] == "measured" or bool(record["reason"]),
            "ended": _moment(record["started"]) <= _moment(record["ended"]),
            "answer": ("answer" in metrics) == (record["verdict"] == "measured")
            or record["verdict"] in ("killed", "lost"),  # cut short after it had recorded it
            "value": metrics.get("answer") in (None, 1000 + attempt.seed),
            "pid": metrics.get("pid") in (None, *pids),
            "rank": not pids or record["verdict"] == "lost" or {rank["pid"] for rank in record["ranks"]} == pids,
            "environment": record["verdict"] == "lost" or bool(record["environment"] and record["provenance"]),
        }
        wrong = [name for name, holds in truths.items() if not holds]
    series = sweep / attempt.name / "series.jsonl"
    text = series.read_text() if series.exists() else ""
    steps = [strict(line).get("step") for line in text.splitlines()]
    told = sum(line["what"] == "alive" for line in attempt.evidence)
    if steps != list(range(len(steps))) or not told <= len(steps) <= told + 1 or (text and not text.endswith("\n")):
        wrong.append(f"series.jsonl ({len(steps)} of {told} steps)")
    found.check("each record is whole and its own", not wrong, f"{attempt.name}: {', '.join(wrong)}")


def _look_at_verdicts(found: Finding) -> None:
    """Compare each verdict with what the attempt did, and with what was done to it."""
    struck: dict[str, set[str]] = {}
    for strike in found.strikes:
        for attempt in found.tries:
            if _is_struck(attempt, strike):
                struck.setdefault(attempt.name, set()).update(STRUCK[strike["kind"]])
        held = [attempt for attempt in found.tries if attempt.holder == strike.get("queue") and attempt.record]
        if held and strike.get("attempt") is None:
            last = max(held, key=lambda attempt: str(attempt.record["started"]))
            struck.setdefault(last.name, set()).update(STRUCK[strike["kind"]])
    name = "each attempt has the verdict of what was done to it"
    for attempt in found.tries:
        expected = attempt.natural | struck.get(attempt.name, set())
        if attempt.holder is None:
            expected = {"lost"}  # its queue was killed before it had written the lease
        reason, right = attempt.record.get("reason"), " or ".join(sorted(expected)) or "cut short"
        found.check(name, attempt.verdict in expected, f"{attempt.name}: {attempt.verdict} ({reason}) and not {right}")
    unleased = sum(attempt.holder is None for attempt in found.tries)
    kills = sum(strike["kind"] in ABRUPT for strike in found.strikes)
    found.check(name, unleased <= kills, f"{unleased} attempts have no lease, and {kills} queues were killed")


def _is_struck(attempt: Try, strike: dict[str, Any]) -> bool:
    """Whether something was done to the attempt itself, its process, or its job."""
    if "job" in strike:
        return attempt.job is not None and attempt.job == strike["job"]
    ranks = {rank.get("pid") for rank in attempt.record.get("ranks", [])}
    from_outside = strike["kind"] in ("child", "server") and bool(ranks & {*strike["pids"]})
    return from_outside or attempt.name == strike["attempt"]


def _look_at_files(sweep: Path, found: Finding) -> None:
    for directory, folders, files in os.walk(sweep):
        if "submissions" in folders:
            folders.remove("submissions")  # what jobs have claimed and said
        cells = folders if Path(directory) == sweep else []
        for name in [*folders, *files]:
            known = name in found.seeds if name in cells else False
            where = Path(directory, name).relative_to(sweep)
            found.check("no file is left over", known or KNOWN.fullmatch(name) is not None, str(where))


def compare(finding: Finding, plan: str, status: str, coverage: str) -> None:
    """Compare the files with what the commands say of them.

    Args:
        plan, status: what `scalerlt plan --json` and `scalerlt status --json` print.
        coverage: the report's tables/coverage.csv.
    """
    name = "plan, status and report agree"
    standing = Counter(finding.standing.values())
    told = strict(status)
    (sweep,) = told["sweeps"]
    finding.check(name, told["totals"] == dict(standing), f"status: {told['totals']}, and not {dict(standing)}")
    for cell in sweep["cells"]:
        stands = finding.standing.get(cell["cell_id"])
        finding.check(name, cell["state"] == stands, f"status: {cell['cell_id']} is {cell['state']}, and not {stands}")
    rows = list(csv.DictReader(coverage.splitlines()))
    counts = Counter({key: sum(int(row[key]) for row in rows) for key in rows[0] if key != "experiment"})
    cells = counts.pop("cells")
    finding.check(name, +counts == standing, f"report: {dict(+counts)}, and not {dict(standing)}")
    finding.check(name, cells == len(finding.standing), f"report: {cells} cells, and not {len(finding.standing)}")
    planned = strict(plan)["cells"]
    now = {cell["cell_id"]: cell["now"]["state"] for cell in planned}
    finding.check(name, now.keys() == finding.standing.keys(), "plan: other cells")
    for cell_id, stands in finding.standing.items():
        expected = stands if stands in ANSWERS else "to run"
        finding.check(name, now.get(cell_id) == expected, f"plan: {cell_id} is {now.get(cell_id)}, and not {expected}")


def strict(text: str) -> Any:
    """Parse JSON that has no NaN in it."""

    def refuse(word: str) -> None:
        raise ValueError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)
