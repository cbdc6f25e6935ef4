"""What happened, as those saw it who did it: kept beside the product's own files, and compared with them at the end."""

import json
import os
import time
from pathlib import Path
from typing import Any

ORDERS = "orders.json"
STRIKES = "strikes.jsonl"


def append(path: Path, entry: dict[str, Any]) -> None:
    """Append one line, whole, with the moment of the host's one clock."""
    line = json.dumps({**entry, "moment": time.monotonic()}) + "\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def lines(path: Path) -> list[dict[str, Any]]:
    """All lines of a file; none where there is no file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def of_seed(folder: Path, seed: int) -> Path:
    """Where the attempts at one cell leave theirs."""
    return folder / "evidence" / f"{seed}.jsonl"
