"""The soak's reader finds what is wrong: a sweep as a soak leaves it, and one fault after another put into it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from soak import evidence, reader
from soak.orders import Order

ORDERS = {
    0: Order("measure", 0.1),
    1: Order("raise", 0.1),
    2: Order("hang", 0.1, always=True),
    3: Order("oom", 0.1, True),
}
DONE = {
    0: [("lost", []), ("measured", ["began", "alive", "ended"])],
    1: [("failed", ["began", "alive", "raise"]), ("measured", ["began", "alive", "ended"])],
    2: [("timeout", ["began", "alive", "hang"])],
    3: [("oom", ["began", "alive", "oom"])],
}
"""Of each seed its attempts: the verdict, and what they left as evidence. Queue 100 was killed during the first."""


def attempt_of(seed: int, number: int) -> str:
    return f"cell-s{seed}/attempt-{number:03d}"


def write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    sweep = tmp_path / "runs/s"
    (tmp_path / "evidence").mkdir()
    cells = [{"cell_id": f"cell-s{seed}", "state": "planned", "axes": {"seed": seed}} for seed in DONE]
    write(sweep / "plans/001.json", {"cells": cells})
    for seed, attempts in DONE.items():
        (sweep / f"cell-s{seed}").mkdir()
        (sweep / f"cell-s{seed}/cell.yaml").touch()
        for number, (verdict, told) in enumerate(attempts, 1):
            add(tmp_path, sweep, seed, number, verdict, told)
    evidence.append(tmp_path / evidence.STRIKES, {"kind": "kill -9", "queue": 100, "pids": [], "attempt": None})
    return sweep


def add(folder: Path, sweep: Path, seed: int, number: int, verdict: str, told: list[str]) -> None:
    queue, pid = 99 + number if seed == 0 else 200 + number, 1000 + 10 * seed + number
    path = sweep / attempt_of(seed, number)
    answer = {"answer": {"value": 1000 + seed}, "pid": {"value": pid}} if verdict == "measured" else {}
    record = {
        "schema_version": 1,
        "sweep": "s",
        "cell_id": path.parent.name,
        "axes": {"seed": seed},
        "attempt": number,
        "verdict": verdict,
        "reason": None if verdict == "measured" else "why",
        "metrics": answer,
        "notes": [],
        "plan": f"{number:03d}.json",
        "started": f"2026-01-01T00:0{number}:00+00:00",
        "ended": f"2026-01-01T00:0{number}:30+00:00",
        "ranks": [{"pid": pid}] if told else [],
        "environment": {"host": "h"},
        "provenance": {"version": "1"},
    }
    write(path / "record.json", record)
    write(path / "lease.json", {"pid": queue, "slurm_job_id": None})
    (path / "series.jsonl").write_text('{"step": 0}\n' * told.count("alive"))
    for what in told:
        entry = {"attempt": number, "what": what, "pid": pid}
        evidence.append(evidence.of_seed(folder, seed), entry)


def change(path: Path, **values: Any) -> None:
    write(path, {**json.loads(path.read_text()), **values})


def record_of(sweep: Path, seed: int, number: int) -> Path:
    return sweep / attempt_of(seed, number) / "record.json"


def test_nothing_is_wrong_with_a_sweep_as_it_should_be(sweep: Path) -> None:
    found = reader.read(sweep.parents[1], sweep, ORDERS)
    assert found.problems == {}
    assert found.standing == {"cell-s0": "measured", "cell-s1": "measured", "cell-s2": "timeout", "cell-s3": "oom"}


STANDING, DONE_TO_IT, WHOLE, LOST, AFTER, AT_A_TIME, TWICE, FILES, *_ = reader.CHECKS
FAULTS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "a wrong verdict stands": (STANDING, lambda s: change(record_of(s, 2, 1), verdict="killed")),
    "an innocent cell was killed": (DONE_TO_IT, lambda s: change(record_of(s, 1, 1), verdict="killed")),
    "lost without a strike": (DONE_TO_IT, lambda s: (s.parents[1] / evidence.STRIKES).write_text("")),
    "a truncated record": (WHOLE, lambda s: record_of(s, 0, 2).write_text('{"schema_version": 1')),
    "no record": (WHOLE, lambda s: record_of(s, 2, 1).unlink()),
    "not a number": (WHOLE, lambda s: change(record_of(s, 0, 2), metrics={"answer": {"value": float("nan")}})),
    "another cell's record": (WHOLE, lambda s: change(record_of(s, 0, 2), cell_id="cell-s1")),
    "another cell's figure": (WHOLE, lambda s: change(record_of(s, 0, 2), metrics={"answer": {"value": 1001}})),
    "a half line of a series": (
        WHOLE,
        lambda s: (record_of(s, 0, 2).parent / "series.jsonl").write_text('{"step": 0}'),
    ),
    "an attempt is gone": (LOST, lambda s: record_of(s, 1, 1).parent.rename(s / "cell-s1/attempt-003")),
    "an attempt after an answer": (AFTER, lambda s: add(s.parents[1], s, 3, 2, "oom", ["began", "alive", "oom"])),
    "two at a time": (AT_A_TIME, lambda s: change(record_of(s, 0, 2), started="2026-01-01T00:01:10+00:00")),
    "one plan twice": (TWICE, lambda s: change(record_of(s, 1, 2), plan="001.json")),
    "one queue twice": (TWICE, lambda s: change(record_of(s, 1, 2).with_name("lease.json"), pid=201)),
    "a journal": (FILES, lambda s: record_of(s, 0, 2).with_name(".progress-rank0").touch()),
    "a temporary file": (FILES, lambda s: record_of(s, 0, 2).with_name(".record.json.7.tmp").touch()),
    "a corrupt record": (FILES, lambda s: record_of(s, 0, 2).with_name("record.json.corrupt-1").touch()),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_found(sweep: Path, fault: str) -> None:
    check, put_in = FAULTS[fault]
    put_in(sweep)
    assert check in reader.read(sweep.parents[1], sweep, ORDERS).problems
