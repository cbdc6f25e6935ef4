"""The drawings of the learner's page are what their script draws."""

import runpy
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

import scalerlt
from scalerlt.planning.hydra_bridge import CONF

FOLDER = Path(scalerlt.__file__).resolve().parent.parent / "docs" / "images" / "learner"
PAGE = FOLDER.parent.parent / "learner.md"
SCHEDULES = sorted(path.stem for path in (CONF / "checkpoint").glob("*.yaml"))

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="an installation has no docs")


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_has_its_drawing_and_stands_on_the_page(schedule: str) -> None:
    module = runpy.run_path(str(FOLDER / "draw.py"))
    drawn = module[schedule]().svg()
    assert (FOLDER / f"{schedule}.svg").read_text(encoding="utf-8") == drawn
    picture = ElementTree.fromstring(drawn)
    assert schedule in (picture.findtext("{http://www.w3.org/2000/svg}title") or "")
    page = PAGE.read_text(encoding="utf-8")
    assert f"(images/learner/{schedule}.svg)" in page and f"## {schedule}" in page
