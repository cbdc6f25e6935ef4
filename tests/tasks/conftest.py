"""Where the real GSM8K files are: never part of the repository."""

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def gsm8k_directory() -> Path:
    directory = Path(os.environ.get("SCALERLT_GSM8K") or REPOSITORY.parent / "shared/data/gsm8k")
    if not (directory / "train.jsonl").is_file():
        pytest.skip(
            f"the real GSM8K is not at {directory}; set SCALERLT_GSM8K to the directory of train.jsonl and test.jsonl"
        )
    return directory
