"""Each YAML block of the user's page on sweeps is a sweep that plans, and the page says what it does."""

import re
from pathlib import Path

import pytest

import scalerlt
from scalerlt.planning.hydra_bridge import compose
from scalerlt.planning.plan import make_plan
from scalerlt.planning.resolve import resolve_all
from scalerlt.planning.retry import DEFAULT, WORDS
from scalerlt.records.plan import Plan
from scalerlt.schema.machine import Machine

CPU = Machine(gpus=0, gpu_reason="none here", cpus=2)
PAGE = Path(scalerlt.__file__).resolve().parent.parent / "docs" / "sweeps.md"
BLOCKS = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL) if PAGE.exists() else []
CELLS = [6, 6, 2, 6, 8, 12, 3, 40]
"""How many cells each block has, in the order of the page."""


def plan_of(directory: Path, text: str) -> Plan:
    file = directory / "mine.yaml"
    file.write_text(text)
    request = compose([f"+sweeps={file}"])
    return make_plan(request, resolve_all(request.cells, CPU), {})


@pytest.mark.parametrize(("text", "cells"), list(zip(BLOCKS, CELLS, strict=True)))
def test_every_example_plans(tmp_path: Path, text: str, cells: int) -> None:
    plan = plan_of(tmp_path, text)
    assert len(plan.cells) == cells
    if "rules:" in text:
        assert {cell.state for cell in plan.cells} == {"planned", "skipped"}
    if "compare:" in text:
        assert len({cell.bundle for cell in plan.cells}) == 10


def test_the_words_of_retry_are_all_on_the_page() -> None:
    page = PAGE.read_text()
    assert all(f"`{word}`" in page for word in WORDS)
    assert f"Without it: `{','.join(word for word in WORDS if word in DEFAULT)}`" in page
