"""The one figure that a list of cells shows of each."""

import json
import math
from pathlib import Path

import pytest

from scalerlt.launching.headline import TAIL_BYTES, Headline, newest_row, of_metrics, of_series
from scalerlt.records.record import Metric


def write(path: Path, *rows: object, end: str = "") -> Path:
    (path / "series.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows) + end)
    return path


@pytest.mark.parametrize(
    ("row", "headline"),
    [
        ({"step": 3, "seconds": 9.0, "reward": 0.5, "loss": 0.1}, Headline("reward", 0.5, step=3)),
        ({"step": 3, "samples": 64, "accuracy": 0.25, "reward": 0.5}, Headline("accuracy", 0.25, step=3)),
        ({"step": 3, "timing_s/generate": 1.0, "perplexity": 4.5}, Headline("perplexity", 4.5, step=3)),
        ({"loss": "NaN", "step": 1}, None),
        ({"step": 3, "seconds": 9.0}, None),
        ({"note": "text", "right": True}, None),
    ],
)
def test_of_a_row_that_column_is_shown_which_a_reader_asks_for(
    tmp_path: Path, row: dict[str, object], headline: Headline | None
) -> None:
    found = of_series(write(tmp_path, {"step": 1, "reward": 0.1}, row))
    if row.get("loss") == "NaN":
        assert found is not None and found.name == "loss" and math.isnan(found.value), "a loss that is NaN is seen"
    else:
        assert found == headline


def test_a_row_that_is_still_written_does_not_count(tmp_path: Path) -> None:
    write(tmp_path, {"step": 1, "reward": 0.1}, {"step": 2, "reward": 0.2}, end='{"step": 3, "rew')
    assert of_series(tmp_path) == Headline("reward", 0.2, step=2)
    write(tmp_path, {"step": 1, "reward": 0.1}, ["no row"], end="garbage\n")
    assert of_series(tmp_path) == Headline("reward", 0.1, step=1)
    (tmp_path / "series.jsonl").write_bytes(b"\xff\xfe")
    assert of_series(tmp_path) is None
    assert of_series(tmp_path / "none") is None


def test_of_a_long_series_only_the_end_is_read(tmp_path: Path) -> None:
    rows = [{"step": step, "reward": 0.001 * step, "text": "x" * 200} for step in range(1000)]
    series = write(tmp_path, *rows) / "series.jsonl"
    assert series.stat().st_size > 2 * TAIL_BYTES
    assert newest_row(series) == rows[-1]


def test_of_a_record_the_figure_is_shown_that_it_is_looked_up_for() -> None:
    metrics = {
        "matrix_path": Metric(value=True),
        "warm_up_seconds": Metric(value=3.0, unit="s", scope="rollout"),
        "decode_tokens_per_second": Metric(value=900.0, unit="token/s", scope="decode"),
        "tokens_per_second": Metric(status="unsupported", reason="emulated"),
    }
    assert of_metrics(metrics) == Headline("decode_tokens_per_second", 900.0, "token/s")
    assert of_metrics({"cells": Metric(value=3), "plan_seconds": Metric(value=0.5, unit="s", scope="plan")}) == (
        Headline("plan_seconds", 0.5, "s")
    )
    assert of_metrics({"before": Metric(value=1.5)}) == Headline("before", 1.5)
    assert of_metrics({"matrix_path": Metric(value=True), "problems": Metric(value=1000, unit="problem")}) is None


def test_it_is_short() -> None:
    assert Headline("reward", 0.60156, step=20).text == "reward 0.6016 (step 20)"
    assert Headline("tokens_per_second", 1234.5678, "token/s").text == "tokens_per_second 1235 token/s"
    assert Headline("accuracy", 0.962, "fraction").text == "accuracy 0.962"
