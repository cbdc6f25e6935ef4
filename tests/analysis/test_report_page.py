"""report.html without a browser: what it holds, what it links, and what it says about the sweep."""

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from synthetic_runs import SyntheticSweep, cell_axes, cell_id, planned, quickstart_cells

from scalerlt.analysis import build_report, embedded, report_html
from scalerlt.analysis.embedded import embed
from scalerlt.analysis.notes import warnings
from scalerlt.analysis.reading import read_runs
from scalerlt.experiments.generated_sweep import generate_sweep
from scalerlt.records.record import Metric, Record, Verdict

ODD = "</script><script>alert(1)</script><img src=x onerror='alert(\"2\")'>&amp;\u2028\u2029<!--"


class Page(HTMLParser):
    """Elements with their attributes, and the text of each script."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.styles: list[str] = []
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts.append(data)
        if self._inside == "style":
            self.styles.append(data)

    @property
    def data(self) -> dict[str, Any]:
        loaded = json.loads(self.scripts[0])
        assert isinstance(loaded, dict)
        return loaded


@pytest.fixture(scope="module")
def text(quickstart: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("out")
    build_report(quickstart / "quickstart", out)
    return (out / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(text: str) -> Page:
    return Page(text)


def figures_of(data: dict[str, Any], cell: list[Any]) -> dict[str, Any]:
    """A cell's figures, read as the script reads them."""
    found = {}
    for kind, *values in cell[6]:
        name, unit, scope, method, status, reason = (data["texts"][word] for word in data["kinds"][kind])
        found[name] = (status, unit, scope, method, reason, *values)
    return found


def test_nothing_is_loaded_from_outside(page: Page, text: str) -> None:
    for tag, attributes in page.elements:
        assert tag not in ("link", "iframe", "object", "embed", "base", "form"), tag
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            assert name != "style", "the policy forbids style attributes"
            if name in ("src", "href", "srcset", "action", "data"):
                assert (value or "").startswith(("data:image/png;base64,", "#")), (tag, name, value)
    assert "url(" not in "".join(page.styles)
    assert "@import" not in "".join(page.styles)
    for word in ("fetch(", "XMLHttpRequest", "innerHTML", "eval(", "document.write", "import("):
        assert word not in page.scripts[1], word
    policy = next(a["content"] for _, a in page.elements if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    for kind, content in (("script", page.scripts[1]), ("style", page.styles[0])):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


def test_every_link_leads_somewhere(page: Page) -> None:
    places = {attributes["id"] for _, attributes in page.elements if "id" in attributes}
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(places)
    links = [attributes["href"] for tag, attributes in page.elements if tag == "a"]
    assert len(links) > 30
    assert all((link or "").removeprefix("#") in places for link in links)


def test_the_records_are_whole(page: Page, quickstart: Path) -> None:
    data = page.data
    assert [cell[0] for cell in data["cells"]] == [cell_id(axes) for axes in quickstart_cells()]
    for cell in data["cells"]:
        files = list((quickstart / "quickstart" / cell[0]).glob("*/record.json"))
        if not files:
            assert cell[5] == 0
            continue
        record = Record.read(files[0])
        figures = figures_of(data, cell)
        for name, metric in record.metrics.items():
            status, unit, scope, method, reason, value, *more = figures[name]
            assert (status, unit, scope, method, reason) == (
                *(metric.status, metric.unit, metric.scope, metric.method, metric.reason),
            )
            assert value == metric.value
            if metric.spread is not None:
                assert more == [metric.n, metric.spread.minimum, metric.spread.maximum, 0.01]
        axes = dict(data["shared"])
        axes |= {key: data["texts"][number] for key, number in zip(data["axes"], cell[4], strict=True)}
        assert {key: value for key, value in axes.items() if value is not None} == {
            key: str(value) for key, value in record.axes.items()
        }


def test_every_number_links_to_the_records_behind_it(page: Page, text: str) -> None:
    data = page.data
    rows = re.search(r'<div class="block" id="table-rollout_throughput">.*?<tbody>(.*?)</tbody>', text, re.DOTALL)
    assert rows is not None
    for row in rows[1].split("</tr>")[:-1]:
        labels = re.findall(r"<td>([a-z0-9]+)</td>", row)[:2]
        linked = {int(number) for number in re.findall(r'data-s="(\d+)"', row)}
        if "skipped" in row:
            assert linked == set()
            continue
        cells = {data["cells"][place][0] for number in linked for place in data["sources"][number]}
        assert cells == {f"rollout_throughput-{labels[0]}-{labels[1]}-none-cpu-0-0"}


def test_texts_cannot_become_markup(tmp_path: Path) -> None:
    sweep = SyntheticSweep(tmp_path / "a<b>&\"'")
    cells = [cell_axes("actor_update", "fp32", "small", schedule, model=ODD) for schedule in ("none", "layer")]
    sweep.plan([planned(axes) for axes in cells])

    def edit(metrics: dict[str, Metric]) -> None:
        metrics[f"live_peak_bytes/{ODD}"] = Metric(value=1, unit=ODD, method=ODD, scope=ODD)
        metrics["grad_norm"] = Metric(status="not_measured", reason=ODD)

    sweep.record(cells[0], edit=edit, notes=[ODD], environment={"host": ODD, "cpu": ODD})
    sweep.record(cells[1], Verdict.FAILED, reason=ODD)
    build_report(sweep.path, tmp_path / "out")
    text = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    page = Page(text)
    assert [tag for tag, _ in page.elements].count("script") == 2
    assert not [one for one in page.elements if one[0] == "img" and one[1].get("src") == "x"]
    assert ODD in page.data["texts"]
    assert "<!--" not in text
    assert "\u2028" not in page.scripts[0]


def test_figures_that_are_no_finite_numbers_are_words(tmp_path: Path) -> None:
    sweep = SyntheticSweep(tmp_path / "sweep")
    axes = cell_axes("rollout_throughput", "fp32", "small")

    def edit(metrics: dict[str, Metric]) -> None:
        metrics["nan"] = Metric(value=float("nan"))
        metrics["huge"] = Metric(value=2**60 + 1)
        metrics["minus"] = Metric(value=float("-inf"))

    sweep.plan([planned(axes)])
    sweep.record(axes, edit=edit)
    data = json.loads(embed(read_runs(sweep.path).cells, [], set(), []).text)
    figures = figures_of(data, data["cells"][0])
    assert [figures[name][5] for name in ("nan", "huge", "minus")] == ["NaN", str(2**60 + 1), "-Infinity"]


def test_too_many_records_are_cut_and_it_is_said(quickstart: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = read_runs(quickstart).cells
    shown = {"tokens_per_second", "rollout_seconds"}
    whole = embed(cells, [], shown, [])
    assert whole.cut is None
    steps: dict[str, None] = {}
    for budget in range(len(whole.text), 1500, -100):
        monkeypatch.setattr(embedded, "BUDGET", budget)
        found = embed(cells, [], shown, [])
        data = json.loads(found.text)
        assert [cell[0] for cell in data["cells"]] == [cell.cell_id for cell in cells]  # every cell stays
        assert sum(len(json.dumps(cell)) for cell in data["cells"] if cell[6]) <= budget * 1.2
        if found.cut is not None:
            assert {name for cell in data["cells"] for name in figures_of(data, cell)} <= shown
            steps |= dict.fromkeys([re.sub(r"\d+", "N", found.cut)])
    assert list(steps) == [
        "of each record only the figures that a table shows are part of this page",
        "of each record only the figures that a table shows are part of this page, without their spread",
        "only the first N of N records have their figures on this page",
    ]


def test_a_large_sweep_has_a_page_that_opens(quickstart: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long tables, many figures and many records are cut, with a word."""
    monkeypatch.setattr(report_html, "ROWS", 5)
    monkeypatch.setattr(report_html, "IMAGE_BYTES", 120_000)
    monkeypatch.setattr(embedded, "BUDGET", 1600)
    build_report(quickstart / "quickstart", tmp_path / "out")
    text = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert re.search(r"The first 5 of \d+ rows; all are in tables/actor_update.csv", text)
    assert re.search(r"Not on this page: see figures/[^ ]+\.png", text)
    assert "records have their figures on this page" in text
    assert 0 < len(re.findall("<img ", text)) < len(list((tmp_path / "out" / "figures").glob("*.png")))


def test_generated_records_are_records(tmp_path: Path) -> None:
    generate_sweep(tmp_path / "one", 220, metrics=44)
    generate_sweep(tmp_path / "two", 220, metrics=44)
    files = sorted(path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*.json"))
    assert len(files) == 221
    for file in files:
        one, two = ((tmp_path / name / file).read_text(encoding="utf-8") for name in ("one", "two"))
        assert one.replace('"sweep": "one"', '"sweep": "two"') == two
    sweep = read_runs(tmp_path / "one")
    assert sweep.all_problems == []
    assert {len(cell.metrics) for cell in sweep.cells if cell.state == "measured"} == {44}
    assert {"measured", "skipped", "unsupported"} <= {cell.state for cell in sweep.cells}


def mixed(tmp_path: Path, **changed: Any) -> list[str]:
    """Warnings of a sweep of two configurations in three cohorts, of which one cohort differs."""
    sweep = SyntheticSweep(tmp_path / "sweep")
    cells = [
        cell_axes("rollout_throughput", precision, "small", cohort=cohort)
        for precision in ("fp32", "bf16")
        for cohort in range(3)
    ]
    sweep.plan([planned(axes) for axes in cells])
    for axes in cells:
        sweep.record(axes, **(changed if axes is cells[-1] else {}))
    return warnings(read_runs(sweep.path).sweeps[0])


HERE = {"host": "node-1", "cpu": "Some Processor", "cpus": 2}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, None),
        (
            {"environment": {**HERE, "host": "node-2"}},
            "the cells ran on different hosts: their times do not compare (2 hosts, of one kind)",
        ),
        (
            {"environment": {**HERE, "host": "node-2", "cpus": 4}},
            "the cells ran on different hosts: their times do not compare (2 hosts, of 2 kinds)",
        ),
        (
            {"environment": {**HERE, "gpus": [{"name": "H200"}]}},
            "the cells ran on different hardware: their times do not compare (2 kinds)",
        ),
        (
            {"provenance": {"git_revision": "other", "packages": {"torch": "2.13.0"}}},
            "the cells ran different revisions of the code (2)",
        ),
        (
            {"provenance": {"git_revision": "0123abc", "git_dirty": True}},
            "1 of 6 records are of code with uncommitted changes",
        ),
        ({"verdict": Verdict.KILLED}, "1 of 2 configurations lack measured cohorts (the least: 2 of 3)"),
        ({"notes": ["only 1 CPU may be used"]}, "1 of 6 records: only 1 CPU may be used"),
    ],
)
def test_what_makes_numbers_less_than_they_seem_is_said(
    tmp_path: Path, changed: dict[str, Any], said: str | None
) -> None:
    assert mixed(tmp_path, **changed) == ([] if said is None else [said])


def test_a_bundle_on_two_hosts_is_no_pair(quickstart: Path) -> None:
    [sweep] = read_runs(quickstart).sweeps
    cells = [cell for cell in sweep.cells if cell.record is not None][:2]
    for place, cell in enumerate(cells):
        assert cell.record is not None
        record = cell.record.model_copy(update={"bundle": "b", "environment": {"host": f"node-{place}"}})
        cells[place] = replace(cell, record=record)
    said = warnings(replace(sweep, cells=cells))
    assert "1 of 1 bundles ran on more than one host: their cells are no pairs" in said
