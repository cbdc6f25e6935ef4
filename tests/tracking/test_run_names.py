"""Ids of runs are unique and stay; names, groups and tags keep within the limits, whatever an axis's value is."""

import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from tracking.mirrored_cells import MOMENT, leave_attempt, mirrored_cell

from scalerlt.records.cell import FrozenCell
from scalerlt.records.lease import Lease
from scalerlt.records.record import Verdict
from scalerlt.tracking.following import Mirrored
from scalerlt.tracking.names import run_id, short, tags

CELL = FrozenCell(
    identity_version=1, identity="ab" * 32, cell_id="cell", sweep="sweep", axes={"experiment": "probe"}, config={}
)
LEASE = Lease(host="node7", boot_id="boot", pid=7, start_ticks=1.0, started=MOMENT, heartbeat=MOMENT)


def id_of(folder: Path, lease: Lease, first: int = 1, **cell: str) -> str:
    lease.write(folder / "lease.json")
    return run_id(CELL.model_copy(update=cell), first, folder)


def test_a_thousand_runs_have_a_thousand_ids(tmp_path: Path) -> None:
    """Cells, attempts, and one cell run again in other runs directories, by other hosts and at other moments."""
    ids = [id_of(tmp_path, LEASE, first) for first in range(1, 251)]
    ids += [id_of(tmp_path, LEASE, identity=f"{number:064x}"[::-1]) for number in range(250)]
    ids += [id_of(tmp_path, LEASE.model_copy(update={"pid": pid})) for pid in range(1000, 1250)]
    for number in range(250):
        moment = {"started": f"2026-01-02T03:04:05.{number:03d}+00:00"}
        ids.append(id_of(tmp_path, LEASE.model_copy(update={"host": "node8", **moment})))
    assert len(ids) == 1000 and len(set(ids)) == 1000
    assert all(re.fullmatch(r"[0-9a-f-]{1,64}", found) for found in ids)


def test_the_id_of_an_attempt_stays(tmp_path: Path) -> None:
    beaten = LEASE.model_copy(update={"heartbeat": "2026-01-02T04:04:05.000+00:00"})
    assert id_of(tmp_path, LEASE) == id_of(tmp_path, beaten)
    (tmp_path / "lease.json").unlink()
    assert run_id(CELL, 1, tmp_path) == run_id(CELL, 1, tmp_path) != run_id(CELL, 1, tmp_path / "other")


def test_the_chain_of_attempts_and_what_they_did_again(tmp_path: Path) -> None:
    cell_file = mirrored_cell(tmp_path / "sweep", "measures")
    attempts = [
        leave_attempt(cell_file, range(1, 11), Verdict.PREEMPTED),
        leave_attempt(cell_file, [1, 2, 3], Verdict.KILLED),
        leave_attempt(cell_file, range(7, 10), Verdict.PREEMPTED, continues=1, evaluations=[8]),
        leave_attempt(cell_file, [], Verdict.PREEMPTED, continues=3),
        leave_attempt(cell_file, range(5, 9), continues=4),
    ]
    chains = [[link.number for link in Mirrored(attempt).chain] for attempt in attempts]
    assert chains == [[1], [2], [1, 3], [1, 3, 4], [1, 3, 4, 5]]
    assert [link.events for link in Mirrored(attempts[4]).chain] == [10, 4, 0, 4]
    assert Mirrored(attempts[2]).superseded() == {"attempt-001": 7}
    assert Mirrored(attempts[4]).superseded() == {"attempt-001": 5, "attempt-003": 5}
    assert Mirrored(attempts[1]).superseded() == {}


def test_a_chain_that_bites_its_tail_ends(tmp_path: Path) -> None:
    cell_file = mirrored_cell(tmp_path / "sweep", "measures")
    attempt = leave_attempt(cell_file, [1], continues=1)
    assert [link.number for link in Mirrored(attempt).chain] == [1]


@given(st.text(min_size=0, max_size=400), st.integers(min_value=16, max_value=128))
def test_short_text_is_printable_and_within_its_length(text: str, length: int) -> None:
    found = short(text, length)
    assert len(found) <= length and found.isprintable()
    if text.isprintable() and text == text.strip() and len(text) <= length:
        assert found == text


def test_two_long_texts_that_differ_at_the_end_stay_two() -> None:
    assert short("a" * 300 + "1", 64) != short("a" * 300 + "2", 64)
    assert short("a" * 64, 64) == "a" * 64
    assert len(short("a" * 65, 64)) == 64


@given(st.dictionaries(st.text(min_size=1, max_size=300), st.one_of(st.none(), st.booleans(), st.floats(), st.text())))
def test_tags_of_any_axis_are_valid(axes: dict[str, str | float | bool | None]) -> None:
    found = tags(axes, [f"{key}=1" for key in axes])
    assert all(1 <= len(tag) <= 64 for tag in found)
    assert len(found) == len(set(found))


def test_tags_are_of_config_groups_and_of_what_was_overridden() -> None:
    axes = {"rollout": "dense", "rollout.top_k": 5, "batch.group_size": 8, "seed": 0}
    assert tags(axes, ["++batch.group_size=8", "seed=0"]) == ["rollout=dense", "batch.group_size=8", "seed=0"]
