import gc
import logging
import os
import random
import re
import shutil
import subprocess
import sys
import weakref
import zlib
from pathlib import Path

import pytest
from drawn_figures import NASTY, cell, drawn, spec_of, speed
from synthetic_runs import SyntheticSweep, cell_axes, planned, write_quickstart
from synthetic_training import write_reward_gain

from scalerlt.analysis.drawing import fixed_style
from scalerlt.analysis.figures import save
from scalerlt.records.record import Metric

REPOSITORY = Path(__file__).parents[2]
DRAW = """
import logging, pathlib, sys, warnings
warnings.simplefilter("error")
logging.basicConfig(level=logging.WARNING)
if sys.argv[3] == "backwards":
    listed = pathlib.Path.iterdir
    pathlib.Path.iterdir = lambda path: iter(sorted(listed(path), reverse=True))
from scalerlt.analysis.figure_spec import load_figures
from scalerlt.analysis.figures import pictures, save
from scalerlt.analysis.reading import read_runs
from scalerlt.analysis.training import with_training
out = pathlib.Path(sys.argv[2])
kinds = set()
for sweep in map(with_training, read_runs(sys.argv[1]).sweeps):
    (out / sweep.name).mkdir(parents=True)
    for spec in load_figures():
        if spec.name in ("memory", "reward_tokens", "reward_seconds", "mismatch"):
            continue  # of the kind of another
        for picture in pictures([spec], sweep.cells, sweep.swept):
            save(picture, out / sweep.name)
            (out / sweep.name / f"{picture.name}.txt").write_text(f"{picture.caption} {picture.sources}", "utf-8")
            kinds.add(spec.kind)
assert len(kinds) == 6, kinds
assert not [name for name in sys.modules if name.startswith(("matplotlib.pyplot", "torch"))]
"""


def write_runs(path: Path, order: random.Random) -> None:
    """Sweeps whose figures are of every kind."""
    write_quickstart(path / "quickstart", order)
    write_reward_gain(path / "reward_gain")
    lines = SyntheticSweep(path / "lines")
    cells = [
        cell_axes("rollout_throughput", precision, "small", **{"batch.rollout_concurrency": size, "cohort": cohort})
        for size in (1, 8, 64)
        for precision in ("fp32", "bf16")
        for cohort in range(5)
    ]
    lines.plan([planned(axes) for axes in cells], swept=["batch.rollout_concurrency", "precision"])
    order.shuffle(cells)
    for axes in cells[:28]:
        lines.record(axes)


def draw_elsewhere(runs: Path, out: Path, cwd: Path, listing: str, **environment: str) -> str:
    variables = {**os.environ, "PYTHONPATH": str(REPOSITORY), **environment}
    command = [sys.executable, "-c", DRAW, str(runs), str(out), listing]
    done = subprocess.run(command, cwd=cwd, env=variables, check=False, timeout=280, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_the_same_bytes_in_any_process_backend_locale_time_zone_and_order(tmp_path: Path) -> None:
    write_runs(tmp_path / "runs", random.Random(1))
    away = tmp_path / "far away"
    away.mkdir()
    (away / "matplotlibrc").write_text(
        "font.size: 20\nfont.family: Nonexistent Sans\naxes.grid: True\nsavefig.dpi: 50\n"
    )
    said = draw_elsewhere(
        tmp_path / "runs",
        tmp_path / "one",
        tmp_path,
        "forwards",
        TZ="Asia/Kathmandu",
        LC_ALL="C.UTF-8",
        PYTHONHASHSEED="1",
    )
    said += draw_elsewhere(
        tmp_path / "runs",
        tmp_path / "other",
        away,
        "backwards",
        TZ="America/St_Johns",
        LC_ALL="C",
        PYTHONUTF8="0",
        PYTHONCOERCECLOCALE="0",
        PYTHONHASHSEED="2",
        MPLBACKEND="svg",
        SOURCE_DATE_EPOCH="1",
    )
    assert "findfont" not in said
    one, other = (
        {str(path.relative_to(tmp_path / name)): path.read_bytes() for path in sorted((tmp_path / name).rglob("*.*"))}
        for name in ("one", "other")
    )
    assert sorted(one) == sorted(other)
    assert [name for name in one if one[name] != other[name]] == []
    assert len([name for name in one if name.endswith(".pdf")]) >= 7


def test_a_pdf_embeds_its_fonts_as_truetype_and_its_text_as_text(tmp_path: Path) -> None:
    cells = [cell({"batch": name}, speed(3.0)) for name in NASTY[:4]]
    [picture] = drawn(spec_of("throughput"), cells)
    pdf, png = save(picture, tmp_path)
    content = pdf.read_bytes()
    streams = [
        zlib.decompress(stream)
        for stream in re.findall(rb"FlateDecode.*?stream\r?\n(.*?)\r?\nendstream", content, re.DOTALL)
        if stream[:1] == b"x"
    ]
    plain = content + b"".join(streams)
    fonts = set(re.findall(rb"/BaseFont /(\S+)", plain))
    assert fonts
    assert all(re.fullmatch(rb"[A-Z]{6}\+DejaVuSans", font) for font in fonts), fonts
    assert plain.count(b"/FontFile2") >= 1
    assert {b"/Type3", b"/FontFile3"}.isdisjoint(re.findall(rb"/\w+", plain))
    assert any(stream[:4] == b"\x00\x01\x00\x00" for stream in streams)  # the head of a TrueType file
    assert b"BT" in plain
    assert b"CreationDate" not in plain
    assert b"Software" not in png.read_bytes()
    width = float(re.findall(rb"/MediaBox \[ ?0 0 (\S+) ", plain)[0])
    assert width == pytest.approx(72 * 3.25, abs=0.01)


def test_a_png_is_300_dots_per_inch_wide(tmp_path: Path) -> None:
    [picture] = drawn(spec_of("throughput"), [cell({}, speed(3.0))])
    _, png = save(picture, tmp_path)
    content = png.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert int.from_bytes(content[16:20], "big") == 975


def test_a_missing_font_changes_nothing_and_is_not_complained_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    import matplotlib

    monkeypatch.setitem(matplotlib.rcParams, "font.family", ["Nonexistent Sans"])
    with caplog.at_level(logging.WARNING, "matplotlib"):
        [picture] = drawn(spec_of("throughput"), [cell({}, speed(3.0))])
        save(picture, tmp_path)
    assert caplog.records == []
    assert matplotlib.rcParams["font.family"] == ["Nonexistent Sans"]  # the user's own settings are left alone


def test_many_figures_keep_no_canvas_and_die(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    cells = [cell({"x.path": number}, speed(3.0 + number)) for number in range(25)]
    found = drawn(spec_of("throughput"), cells)
    assert len({picture.name for picture in found}) == 25
    save(found[0], tmp_path)
    assert [picture.name for picture in found if hasattr(picture.figure.canvas, "renderer")] == []
    figures = [weakref.ref(picture.figure) for picture in found]
    assert len(recwarn) == 0
    del found
    gc.collect()
    assert [figure for figure in figures if figure() is not None] == []


def test_drawing_leaves_the_users_style_alone() -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    drawn(spec_of("throughput"), [cell({}, speed(3.0))])
    with fixed_style():
        assert matplotlib.rcParams["pdf.fonttype"] == 42
    assert dict(matplotlib.rcParams) == before


def test_names_and_sources_of_the_files(tmp_path: Path) -> None:
    long = ["a" * 300, "a" * 299, "a/b", "A b", "..", "模"]
    metrics = {"tokens_per_second": Metric(value=1, unit="token/s")}
    found = drawn(spec_of("throughput"), [cell({"x.path": name}, metrics) for name in long])
    save(found[0], tmp_path)
    names = [picture.name for picture in found]
    assert len({name.lower() for name in names}) == len(long)
    assert max(map(len, names)) < 100
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+", name) for name in names)
    assert len({picture.label for picture in found}) == len(long)
    shutil.rmtree(tmp_path)
