import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from synthetic_runs import SyntheticSweep, cell_axes, cell_id, planned, write_quickstart

from scalerlt.analysis import build_report
from scalerlt.errors import UserError
from scalerlt.records.record import Verdict

REPOSITORY = Path(__file__).parents[2]
BUILD = """
import sys
from scalerlt.analysis import build_report
build_report(sys.argv[1], sys.argv[2])
assert "matplotlib.pyplot" not in sys.modules
assert "torch" not in sys.modules
"""


def build_elsewhere(runs: str, out: str, cwd: Path, **environment: str) -> None:
    """Build in a process of its own, in another place, time zone, locale and hash seed."""
    variables = {**os.environ, "PYTHONPATH": str(REPOSITORY), **environment}
    subprocess.run([sys.executable, "-c", BUILD, runs, out], cwd=cwd, env=variables, check=True, timeout=120)


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """The same sweep built twice, and the place of its runs."""
    here = tmp_path_factory.mktemp("here")
    write_quickstart(here / "runs" / "quickstart")
    build_elsewhere(
        str(here / "runs"), str(here / "out"), here, TZ="Asia/Kathmandu", LC_ALL="C.UTF-8", PYTHONHASHSEED="1"
    )
    there = tmp_path_factory.mktemp("far") / "other place"
    write_quickstart(there / "quickstart", order=random.Random(7))
    (there / "matplotlibrc").write_text("font.size: 20\naxes.facecolor: pink\n")
    build_elsewhere(
        "quickstart",
        "reports",
        there,
        TZ="America/St_Johns",
        LC_ALL="C",
        PYTHONUTF8="0",
        PYTHONCOERCECLOCALE="0",
        PYTHONHASHSEED="2",
        MPLBACKEND="svg",
    )
    return here / "out" / "quickstart", there / "reports", here / "runs" / "quickstart"


def test_the_same_bytes_whatever_the_place_the_time_zone_the_locale_and_the_order(
    reports: tuple[Path, Path, Path],
) -> None:
    one, other, _ = reports
    first, second = contents(one), contents(other)
    assert sorted(first) == sorted(second)
    assert [name for name in first if first[name] != second[name]] == []
    assert len([name for name in first if name.endswith(".pdf")]) == 5


def test_the_order_of_a_directory_listing_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = small_sweep(tmp_path / "sweep")
    for precision in ("fp32", "bf16", "fp64"):  # in no plan
        sweep.record(cell_axes("rollout_throughput", precision, "medium"), Verdict.OOM)
    for name in ("b.txt", "a.txt", "c.txt"):
        (sweep.path / name).write_text("stray")
    sweep.record(cell_axes("rollout_throughput", "fp32", "small"), Verdict.KILLED, attempt=2)
    listed, names = Path.iterdir, os.listdir
    for name, backwards in (("one", False), ("other", True)):

        def iterdir(path: Path, backwards: bool = backwards) -> Iterator[Path]:
            return iter(sorted(listed(path), reverse=backwards))

        def listdir(path: Path, backwards: bool = backwards) -> list[str]:
            return sorted(names(path), reverse=backwards)

        monkeypatch.setattr(Path, "iterdir", iterdir)
        monkeypatch.setattr(os, "listdir", listdir)
        build_report(sweep.path, tmp_path / name)
    monkeypatch.undo()
    assert contents(tmp_path / "one") == contents(tmp_path / "other")


def test_the_layout(reports: tuple[Path, Path, Path]) -> None:
    names = sorted(contents(reports[0]))
    assert {name.partition("/")[0] for name in names} == {
        *("tables", "figures"),
        *("manifest.json", "report.html", "report.md"),
    }
    stems = {name.removesuffix(".md").removeprefix("tables/") for name in names if name.startswith("tables/")}
    for stem in ("coverage", "rollout_throughput", "actor_update_memory_cpu", "gradient_error", "overhead"):
        assert stem in stems
        assert f"tables/{stem}.csv" in names
    assert {"figures/throughput.pdf", "figures/throughput.png", "figures/memory-small.png"} <= set(names)


def test_no_path_and_no_time_of_building_is_in_the_outputs(reports: tuple[Path, Path, Path]) -> None:
    one, _, sweep = reports
    for name, content in contents(one).items():
        for path in (str(sweep), str(one), str(REPOSITORY), str(Path.home()) + "/"):
            assert path.encode() not in content, name
        assert b"CreationDate" not in content


def test_the_manifest_names_every_output_and_every_record(reports: tuple[Path, Path, Path]) -> None:
    one, _, sweep = reports
    manifest = json.loads((one / "manifest.json").read_text())
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in contents(one).items()}
    del digests["manifest.json"]
    assert manifest["outputs"] == digests
    records = {str(path.relative_to(sweep)): path for path in sweep.rglob("record.json")}
    assert {**manifest["records"], **manifest["superseded_records"]} == {
        name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in records.items()
    }
    assert manifest["plans"] == {"plans/001.json": hashlib.sha256((sweep / "plans/001.json").read_bytes()).hexdigest()}
    gates = (REPOSITORY / "conf/gates/default.yaml").read_bytes()
    assert manifest["gates"] == hashlib.sha256(gates).hexdigest()
    definitions = {f"{kind}/{file.name}": file for kind in ("tables", "figures") for file in specs(kind)}
    assert manifest["definitions"] == {
        name: hashlib.sha256(file.read_bytes()).hexdigest() for name, file in definitions.items()
    }


def specs(kind: str) -> list[Path]:
    return list((REPOSITORY / "analysis" / "specs" / kind).glob("*.yaml"))


def test_the_manifest_tells_which_records_each_table_and_figure_is_made_from(reports: tuple[Path, Path, Path]) -> None:
    one, _, sweep = reports
    manifest = json.loads((one / "manifest.json").read_text())
    files = {path.parent.parent.name: str(path.relative_to(sweep)) for path in sweep.rglob("record.json")}
    rollouts = sorted(file for cell, file in files.items() if cell.startswith("rollout_throughput"))
    updates = sorted(file for cell, file in files.items() if cell.startswith("actor_update"))
    small = [file for file in updates if "-small-" in file]
    used = manifest["made_from"]
    assert used["tables/coverage"] == used["tables/overhead"] == sorted(manifest["records"])
    assert used["tables/rollout_throughput"] == used["figures/throughput"] == rollouts
    assert used["tables/actor_update"] == updates
    assert used["figures/memory-small"] == small
    assert set(used) == {name.rpartition(".")[0] for name in manifest["outputs"] if "/" in name} - {"tables/preamble"}
    assert all(file in manifest["records"] for found in used.values() for file in found)


def test_the_manifest_tells_whose_records_say_why_there_is_no_measurement(tmp_path: Path) -> None:
    sweep = SyntheticSweep(tmp_path / "sweep")
    cells = [cell_axes("rollout_throughput", "fp32", batch) for batch in ("small", "medium", "large")]
    sweep.plan([planned(axes) for axes in cells])
    sweep.record(cells[0])
    failed = sweep.record(cells[1], Verdict.FAILED)
    build_report(sweep.path, tmp_path / "out")
    used = json.loads((tmp_path / "out" / "manifest.json").read_text())["made_from"]
    assert used["tables/unmeasured"] == [str(failed.relative_to(sweep.path))]
    assert len(used["tables/coverage"]) == 2


def test_the_manifest_holds_the_digests_of_the_gates_frozen_with_the_judged_cells(tmp_path: Path) -> None:
    sweep = SyntheticSweep(tmp_path / "sweep")
    judged, bare = (cell_axes("actor_update", "fp32", batch) for batch in ("small", "medium"))
    other, unmeasured = cell_axes("rollout_throughput", "fp32", "small"), cell_axes("actor_update", "fp32", "large")
    sweep.plan([planned(axes) for axes in (judged, bare, other, unmeasured)])
    for axes in (judged, bare, other):
        sweep.record(axes)
    (sweep.path / cell_id(unmeasured)).mkdir()
    for axes in (judged, other, unmeasured):
        (sweep.path / cell_id(axes) / "cell.yaml").write_text(f"config:\n  gates:\n    name: {cell_id(axes)}\n")
    build_report(sweep.path, tmp_path / "out")
    frozen = json.loads((tmp_path / "out" / "manifest.json").read_text())["frozen_gates"]
    name = f"{cell_id(judged)}/cell.yaml"
    assert frozen == {name: hashlib.sha256((sweep.path / name).read_bytes()).hexdigest()}


def test_what_was_passed_over_is_in_the_manifest(tmp_path: Path) -> None:
    sweep = small_sweep(tmp_path / "sweep")
    (sweep.path / "stray.txt").write_text("")
    build_report(sweep.path, tmp_path / "out")
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["passed_over"] == ["stray.txt: is not part of a sweep"]


def test_the_page_shows_everything_coverage_first(reports: tuple[Path, Path, Path]) -> None:
    one = reports[0]
    page = (one / "report.md").read_text(encoding="utf-8")
    assert page.startswith("# quickstart\n\n## Table 1: coverage\n")
    for name, content in contents(one).items():
        if name.endswith(".md") and name != "report.md":
            assert content.decode() in page
        if name.endswith((".md", ".csv", ".pdf", ".png")) and name != "report.md":
            assert f"({name})" in page
    assert "- batch: small (group_size 4, prompts_per_step 4); medium (group_size 8, prompts_per_step 8)" in page
    assert "- in all cells: cohort 0, device cpu, model tiny_ouro, seed 0" in page
    assert "- hosts: node-1 (16)\n- processors: Some Processor (16)\n" in page
    assert "- torch: 2.13.0 (16)" in page


def small_sweep(path: Path) -> SyntheticSweep:
    sweep = SyntheticSweep(path)
    axes = cell_axes("rollout_throughput", "fp32", "small")
    sweep.plan([planned(axes)])
    sweep.record(axes, Verdict.FAILED, attempt=1)
    return sweep


def test_several_sweeps_get_a_directory_each_and_one_sweep_none(tmp_path: Path) -> None:
    for name in ("one", "two"):
        small_sweep(tmp_path / "runs" / name)
    report = build_report(tmp_path / "runs", tmp_path / "all")
    assert [sweep.directory for sweep in report.sweeps] == [tmp_path / "all" / "one", tmp_path / "all" / "two"]
    assert all(path.is_file() for path in report.outputs)
    single = build_report(tmp_path / "runs" / "one", tmp_path / "single")
    assert [sweep.directory for sweep in single.sweeps] == [tmp_path / "single"]
    assert contents(tmp_path / "single") == contents(tmp_path / "all" / "one")


def test_an_old_output_does_not_stay_beside_new_ones(tmp_path: Path) -> None:
    sweep = small_sweep(tmp_path / "sweep")
    out = tmp_path / "out"
    build_report(sweep.path, out)
    assert (out / "tables/unmeasured.md").exists()
    mine = out / "tables" / "mine.md"
    mine.write_text("kept")
    sweep.record(cell_axes("rollout_throughput", "fp32", "small"), attempt=2)
    build_report(sweep.path, out)
    assert not (out / "tables/unmeasured.md").exists()
    assert mine.exists()
    mine.unlink()
    build_report(sweep.path, tmp_path / "fresh")
    assert contents(out) == contents(tmp_path / "fresh")
    manifest = json.loads((out / "manifest.json").read_text())
    name = cell_id(cell_axes("rollout_throughput", "fp32", "small"))
    assert list(manifest["records"]) == [f"{name}/attempt-002/record.json"]
    assert list(manifest["superseded_records"]) == [f"{name}/attempt-001/record.json"]


def test_a_foreign_manifest_removes_nothing_outside(tmp_path: Path) -> None:
    sweep = small_sweep(tmp_path / "sweep")
    out = tmp_path / "out"
    victim = tmp_path / "victim.txt"
    victim.write_text("mine")
    out.mkdir()
    (out / "manifest.json").write_text(json.dumps({"outputs": {"../victim.txt": "", "tables/../../victim.txt": ""}}))
    build_report(sweep.path, out)
    assert victim.read_text() == "mine"
    (out / "manifest.json").write_text("[1, 2")
    build_report(sweep.path, out)


def test_notes_tell_of_mixed_origins_and_of_passed_over_files(tmp_path: Path) -> None:
    sweep = SyntheticSweep(tmp_path / "sweep")
    cells = [cell_axes("rollout_throughput", precision, "small") for precision in ("fp32", "bf16")]
    sweep.plan([planned(axes) for axes in cells])
    sweep.record(cells[0], notes=["only 1 CPU may be used | really"])
    sweep.record(cells[1], environment={"host": "node-2"}, provenance={"git_revision": "fedcba", "git_dirty": True})
    (sweep.path / "stray.txt").write_text("")
    report = build_report(sweep.path, tmp_path / "out")
    page = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    assert "- hosts: node-1 (1), node-2 (1)" in page
    assert "different hosts" in page
    assert "different revisions" in page
    assert "1 of 2 records are of code with uncommitted changes" in page
    assert r"1 of 2 records: only 1 CPU may be used \| really" in page
    assert "- passed over: stray.txt: " in page
    assert report.problems == ["sweep/stray.txt: is not part of a sweep"]


def test_nothing_to_report(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no sweep stands in"):
        build_report(tmp_path, tmp_path / "out")
    with pytest.raises(UserError, match="is not a directory"):
        build_report(tmp_path / "missing", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_where_no_report_can_be_written_is_one_line(tmp_path: Path) -> None:
    small_sweep(tmp_path / "runs" / "sweep")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file.*: the report cannot be written"):
        build_report(tmp_path / "runs", tmp_path / "file")


def test_importing_the_package_is_light() -> None:
    code = (
        "import sys, scalerlt.analysis; heavy = {'pandas', 'matplotlib', 'numpy', 'torch'} & set(sys.modules); "
        "assert not heavy, heavy; assert {'load_runs', 'build_report'} <= set(dir(scalerlt.analysis))"
    )
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=60)


def test_frames_need_no_matplotlib(quickstart: Path) -> None:
    code = "import sys, scalerlt.analysis as a; a.load_runs(sys.argv[1]); assert 'matplotlib' not in sys.modules"
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    subprocess.run([sys.executable, "-c", code, str(quickstart)], env=environment, check=True, timeout=60)


def test_a_copied_report_directory_is_whole(reports: tuple[Path, Path, Path], tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    shutil.copytree(reports[0], moved)
    for link in ("tables/coverage.csv", "figures/throughput.png"):
        assert (moved / link).is_file()
