"""Which of a cell's records stands for it."""

from pathlib import Path

import pytest

from scalerlt.records.base import now
from scalerlt.records.record import Record, Verdict
from scalerlt.records.store import CellDirectory, standing


@pytest.mark.parametrize(
    ("verdicts", "stands"),
    [
        ([], None),
        ([None], None),
        (["failed", "killed"], 2),
        (["failed", "killed", None], 2),
        (["measured", "failed"], 1),
        (["unsupported", "oom", "lost"], 2),
        (["measured", "measured"], 2),
    ],
)
def test_the_newest_answer_stands_or_else_the_newest_record(
    tmp_path: Path, verdicts: list[str | None], stands: int | None
) -> None:
    cell = CellDirectory(tmp_path / "cell")
    for number, verdict in enumerate(verdicts, start=1):
        path = cell.path / f"attempt-{number:03d}"
        path.mkdir(parents=True)
        if verdict is not None:
            moment = now()
            Record(
                sweep="s",
                cell_id="cell",
                axes={},
                attempt=number,
                verdict=Verdict(verdict),
                started=moment,
                ended=moment,
            ).write(path / "record.json")
    record = standing(cell.attempts())
    assert (record.attempt if record else None) == stands
    assert cell.last_record() == record
