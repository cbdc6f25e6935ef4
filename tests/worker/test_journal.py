"""A journal read while it grows says what the recorder was told, and nothing of a line that is half written."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalerlt.records.journal import PROGRESS_FILE, Ending, Journal
from scalerlt.records.record import Failure, Verdict
from scalerlt.records.recorder import Recorder


def test_everything_recorded_is_read_back(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    with recorder.measuring("time"), recorder.phase("decode"):
        recorder.progress(3, 8, "tokens")
        recorder.metric("tokens_per_second", 12.5, "token/s", scope="decode", n=3)
        recorder.repeated("seconds", [2.0, 1.0, 4.0], "s")
        recorder.repeated("diverged", [2.0, math.nan], "s")
        recorder.not_measured("grad_bias", "no recorded policy")
        recorder.unsupported("cuda_peak", "no GPU", "B")
        recorder.note("clock is coarse")
        inside = Journal.of(tmp_path, 0)
    recorder.end(Ending(verdict=Verdict.OOM, failure=Failure(type="MemoryError", message="")))
    recorder.close()

    assert (inside.phase, inside.done, inside.total, inside.what) == ("decode", 3, 8, "tokens")
    journal = Journal.of(tmp_path, 0)
    assert journal.phase == "start", "left again"
    assert journal.passes == recorder.passes == ["time"]
    assert journal.notes == recorder.notes == ["clock is coarse"]
    assert journal.metrics.keys() == recorder.metrics.keys()
    for name in set(journal.metrics) - {"diverged"}:  # NaN equals nothing
        assert journal.metrics[name] == recorder.metrics[name]
    seconds = journal.metrics["seconds"]
    assert (seconds.value, seconds.n, seconds.values) == (2.0, 3, [2.0, 1.0, 4.0])
    assert seconds.spread is not None and seconds.spread.standard_deviation == pytest.approx(math.sqrt(7 / 3))
    diverged = journal.metrics["diverged"]
    assert math.isnan(diverged.value) and diverged.values is not None and math.isnan(diverged.values[1])  # type: ignore[arg-type]
    assert journal.ending is not None and journal.ending.failure is not None
    assert (journal.ending.verdict, journal.ending.failure.type) == (Verdict.OOM, "MemoryError")


def test_every_line_is_strict_json(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.metric("loss", math.inf)
    recorder.close()

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    for line in (tmp_path / PROGRESS_FILE.format(rank=0)).read_text().splitlines():
        json.loads(line, parse_constant=refuse)
    assert Journal.of(tmp_path, 0).metrics["loss"].value == math.inf


def test_a_damaged_line_is_noted_and_the_rest_is_read(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.metric("before", 1)
    recorder._journal.write('{"metric": "broken", "is": {"val\n')
    recorder.metric("after", 2)
    recorder.close()
    journal = Journal.of(tmp_path, 0)
    assert set(journal.metrics) == {"before", "after"}
    assert len(journal.notes) == 1 and "cannot be read" in journal.notes[0]


@given(st.data())
def test_reading_on_in_pieces_equals_reading_at_once(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("journal")
    recorder = Recorder(folder)
    for step in range(4):
        with recorder.phase(f"phase {step} – µ"):
            recorder.progress(step, 4)
            recorder.metric(f"metric {step}", step)
            recorder.note(f"note {step}")
    recorder.close()
    whole = Journal.of(folder, 0)
    content = whole.path.read_bytes()

    cuts = sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=6)))
    growing = Journal(folder / "growing")
    for cut in [*cuts, len(content)]:
        growing.path.write_bytes(content[:cut])
        growing.read_on()
    assert (growing.phase, growing.metrics, growing.notes) == (whole.phase, whole.metrics, whole.notes)
