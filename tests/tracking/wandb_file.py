"""Reading back what the real wandb wrote offline: LevelDB's log format around messages of wandb.proto."""

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BLOCK, HEADER = 32 * 1024, 7


def messages(path: Path) -> Iterator[bytes]:
    """The records of the file, put together from their fragments."""
    content = path.read_bytes()
    assert content[:4] == b":W&B", "another format"
    place, parts = HEADER, []
    while place + HEADER <= len(content):
        if (left := BLOCK - place % BLOCK) < HEADER:
            place += left
            continue
        length, kind = struct.unpack_from("<HB", content, place + 4)
        if kind == 0:
            return
        place += HEADER
        parts.append(content[place : place + length])
        place += length
        if kind in (1, 4):  # whole, or the last fragment
            yield b"".join(parts)
            parts = []


@dataclass
class OfflineRun:
    """What stands in one offline run."""

    folder: Path
    run: Any = None
    exit_code: int | None = None
    preempting: bool = False
    config: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    """wandb's own count of each row."""
    summary: dict[str, Any] = field(default_factory=dict)
    axes: dict[str, str] = field(default_factory=dict)
    """What was defined: metric or pattern, and its x-axis."""


def offline_run(folder: Path) -> OfflineRun:
    """Read the one .wandb file of a folder."""
    from wandb.proto import wandb_internal_pb2

    (path,) = folder.glob("*.wandb")
    found = OfflineRun(folder)
    for message in messages(path):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(message)
        match record.WhichOneof("record_type"):
            case "run":
                found.run = record.run
                found.config |= {_key(item): json.loads(item.value_json) for item in record.run.config.update}
            case "config":
                found.config |= {_key(item): json.loads(item.value_json) for item in record.config.update}
            case "history":
                found.rows.append({_key(item): json.loads(item.value_json) for item in record.history.item})
                found.numbers.append(record.history.step.num)
            case "summary":
                found.summary |= {_key(item): json.loads(item.value_json) for item in record.summary.update}
            case "metric":
                found.axes[record.metric.name or record.metric.glob_name] = record.metric.step_metric
            case "exit":
                found.exit_code = record.exit.exit_code
            case "preempting":
                found.preempting = True
    return found


def offline_runs(attempt: Path) -> list[OfflineRun]:
    """Those of one attempt."""
    return [offline_run(folder) for folder in sorted((attempt / "mirrors" / "wandb").glob("offline-run-*"))]


def _key(item: Any) -> str:
    return item.key or ".".join(item.nested_key)
