"""report.html as a reader meets it: opened from a file in a headless Chromium."""

import csv
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "analysis"))
from synthetic_runs import Axes, SyntheticSweep, cell_axes, quickstart_cells, write_quickstart

from scalerlt.analysis import build_report
from scalerlt.records.plan import PlannedCell
from scalerlt.records.record import Record, Verdict

INJECTED = "</script><script>document.title='hacked'</script>"
MARKUP = "<img src=x onerror=\"document.title='hacked'\">'\"&amp;\u2028\u2029`${document.title='hacked'}`<!--"
COHORTS = (10, 11, 12, 14)
"""Those of `second` that were measured."""
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")


@pytest.fixture(scope="module", autouse=True)
def _only_when_asked(request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("--run-browser"):
        pytest.skip("opens the page in a browser; make test-browser runs it")
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("there is no chromium or chromedriver (Debian: apt-get install chromium chromium-driver)")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a sweep with every fate, some cohorts, and texts that would like to be markup."""
    place = tmp_path_factory.mktemp("page")
    sweep = write_quickstart(place / "quickstart")
    add_odd_cells(sweep)
    (sweep.path / "stray <b>.txt").write_text("mine")
    build_report(sweep.path, place / "out")
    return place / "out" / "report.html"


def add_odd_cells(sweep: SyntheticSweep) -> None:
    cells: dict[str, Axes] = {}
    for cohort in range(10, 15):
        cells[f"first-{cohort}"] = cell_axes("actor_update", "fp32", "small", "none", cohort=cohort, model=INJECTED)
        cells[f"second-{cohort}"] = cell_axes("actor_update", "fp32", "small", "layer", cohort=cohort, model=MARKUP)
    sweep.plan([PlannedCell(cell_id=name, axes=axes) for name, axes in cells.items()])
    for name, axes in cells.items():
        verdict = Verdict.FAILED if name == "second-13" else Verdict.MEASURED
        file = sweep.record(axes, verdict, reason=MARKUP if verdict is Verdict.FAILED else None, notes=[INJECTED])
        record = json.loads(file.read_text(encoding="utf-8")) | {"cell_id": name}
        record["environment"]["host"] = INJECTED
        shutil.move(file.parents[1], sweep.path / name)
        (sweep.path / name / "attempt-001" / "record.json").write_text(json.dumps(record), encoding="utf-8")


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed (the extra `browser`)")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    with tempfile.TemporaryDirectory() as profile:
        for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
            options.add_argument(argument)
        options.add_argument(f"--user-data-dir={profile}")
        options.add_argument("--window-size=1280,800")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        opened = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
        opened.set_page_load_timeout(120)
        opened.set_script_timeout(60)
        yield opened
        opened.quit()


@pytest.fixture
def opened(driver: Any, page: Path) -> Any:
    """The page, freshly loaded, with empty logs."""
    driver.get("about:blank")
    driver.get_log("browser")
    driver.get_log("performance")
    driver.get(page.as_uri())
    return driver


def find(driver: Any, selector: str) -> list[Any]:
    return driver.find_elements("css selector", selector)


def click(driver: Any, element: Any) -> None:
    driver.execute_script("arguments[0].scrollIntoView({block: 'center', inline: 'center'})", element)
    element.click()


def wait(driver: Any, condition: Callable[[], bool]) -> None:
    """Until a condition holds: the browser tells of an opened element a moment later."""
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(driver, 30).until(lambda _: condition())


def table_rows(page: Path, name: str) -> list[str]:
    return (page.parent / "tables" / f"{name}.md").read_text(encoding="utf-8").splitlines()


def test_it_opens_without_an_error_and_asks_for_nothing(opened: Any, page: Path) -> None:
    assert opened.get_log("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in opened.get_log("performance")]
    urls = [
        message["params"]["request"]["url"] for message in messages if message["method"] == "Network.requestWillBeSent"
    ]
    assert {url.partition(":")[0] for url in urls} <= {"file", "data"}
    assert {url for url in urls if url.startswith("file:")} == {page.as_uri()}


def test_every_table_and_figure_is_visible(opened: Any, page: Path) -> None:
    tables = {file.stem for file in page.parent.glob("tables/*.csv")} - {"unmeasured"}
    assert len(tables) > 6
    for name in tables:
        block = opened.find_element("id", f"table-{name}")
        assert block.is_displayed()
        with (page.parent / "tables" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
            lines = list(csv.reader(file))
        assert len(block.find_elements("css selector", "tbody tr")) == len(lines) - 1
    figures = {file.stem for file in page.parent.glob("figures/*.png")}
    shown = find(opened, "figure")
    assert {figure.get_attribute("id") for figure in shown} == {f"figure-{name}" for name in figures}
    for image in find(opened, "figure img"):
        assert image.is_displayed()
        assert image.get_property("naturalWidth") > 100  # decoded


def test_the_numbers_are_those_of_the_other_tables(opened: Any, page: Path) -> None:
    """Entries are those of the Markdown, row by row."""
    body = [line for line in table_rows(page, "rollout_throughput") if line.startswith("| ")][2:]
    rows = find(opened, "#table-rollout_throughput tbody tr")
    assert len(rows) == len(body) == 6
    for row, line in zip(rows, body, strict=True):
        texts = [text.strip().partition(" [")[0] for text in line.strip("|").split(" | ")]
        shown = []
        for place in row.find_elements("css selector", "td"):
            marks = place.find_elements("css selector", "sup")
            mark = marks[0].get_property("textContent") if marks else ""
            shown.append(place.get_property("textContent").removesuffix(mark).replace("_", r"\_"))
        assert [text.replace(r"\_", "_") for text in shown] == [text.replace(r"\_", "_") for text in texts]


def test_a_number_opens_its_record(opened: Any, page: Path) -> None:
    axes = quickstart_cells()[0]
    button = find(opened, "#table-rollout_throughput tbody tr:first-child button.ref")[0]
    click(opened, button)
    panel = opened.find_element("id", "panel")
    assert panel.is_displayed()
    record = Record.read(next((page.parents[1] / "quickstart").glob("rollout_throughput-fp32-small*/*/record.json")))
    metric = record.metrics["tokens_per_second"]
    assert metric.spread is not None
    facts = {
        title.text: value.text
        for title, value in zip(
            panel.find_elements("css selector", "dt"), panel.find_elements("css selector", "dd"), strict=True
        )
    }
    assert facts["cell"] == record.cell_id
    assert facts["metric"] == "tokens_per_second"
    number, unit = facts["value"].split(" ")
    assert (float(number), unit) == (metric.value, "token/s")
    assert facts["repeats (n)"] == "5"
    assert [float(end) for end in facts["their range"].split(" to ")] == [metric.spread.minimum, metric.spread.maximum]
    assert float(facts["their sd"]) == metric.spread.standard_deviation
    assert facts["scope"] == "rollout"
    assert f"precision {axes['precision']}" in facts["axes"]
    assert (facts["attempt"], facts["state"]) == ("1 of 1", "measured")
    assert facts["host"] == "node-1, Some Processor"
    assert facts["revision"] == "0123abc"
    assert facts["file"] == f"{record.cell_id}/attempt-001/record.json"
    click(opened, panel.find_element("css selector", "details.all summary"))
    wait(opened, lambda: len(panel.find_elements("css selector", "details.all tr")) == len(record.metrics))
    click(opened, panel.find_element("css selector", "button.close"))
    assert not panel.is_displayed()
    assert opened.switch_to.active_element == button


def test_a_number_of_several_cohorts_opens_them_all(opened: Any) -> None:
    row = next(row for row in find(opened, "#table-actor_update tbody tr") if MARKUP[:10] in row.text)
    assert "4 of 5" in row.text
    button = row.find_elements("css selector", "button.ref")[0]
    click(opened, button)
    cards = find(opened, "#panel details.record")
    assert {card.get_attribute("data-cell") for card in cards} == {f"second-{number}" for number in COHORTS}
    assert [card.find_element("css selector", ".who").text for card in cards] == [
        f"cohort {number}" for number in COHORTS
    ]
    click(opened, cards[1].find_element("css selector", "summary"))
    wait(opened, lambda: "second-11" in cards[1].text)
    from selenium.webdriver.common.keys import Keys

    opened.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert not opened.find_element("id", "panel").is_displayed()


def test_a_figure_opens_its_records(opened: Any) -> None:
    click(opened, find(opened, "#figure-throughput figcaption button.ref")[0])
    cards = find(opened, "#panel details.record")
    assert len(cards) == 5  # four measured, one that timed out; the skipped one has no record
    assert all(card.get_attribute("data-cell").startswith("rollout_throughput-") for card in cards)


def plan_states(opened: Any) -> list[str]:
    return [place.text for place in find(opened, "#plan tbody tr td:first-child")]


def test_the_plan_shows_every_cell_and_filters_by_state_and_words(opened: Any) -> None:
    assert len(plan_states(opened)) == 34
    assert opened.find_element("id", "plan-count").text == "34 cells"
    chips = {chip.get_attribute("data-state"): chip for chip in find(opened, "#plan-states button")}
    click(opened, chips["unsupported"])
    assert plan_states(opened) == ["unsupported"] * 6
    assert "precision=mxfp8 is not implemented" in find(opened, "#plan tbody tr")[0].text
    search = opened.find_element("id", "plan-search")
    search.send_keys("MEDIUM loop")
    assert len(plan_states(opened)) == 1
    click(opened, chips[""])
    assert len(plan_states(opened)) == 3
    search.clear()
    search.send_keys("no such words")
    assert plan_states(opened) == []
    assert opened.find_element("id", "plan-count").text == "0 of 34 cells"
    click(opened, find(opened, "#table-coverage button[data-state=oom]")[0])
    assert chips["oom"].get_attribute("aria-pressed") == "true"


def test_a_cell_of_the_plan_opens(opened: Any) -> None:
    row = next(row for row in find(opened, "#plan tbody tr") if "not_run" in row.text)
    click(opened, row.find_element("css selector", "button.ref"))
    assert "not_run" in opened.find_element("id", "panel").text


def test_tables_are_sorted_by_value_and_come_back(opened: Any) -> None:
    def column() -> list[float]:
        places = find(opened, "#table-rollout_throughput tbody tr td:nth-child(4)")
        return [float(place.get_attribute("data-v") or "nan") for place in places]

    before = column()
    header = find(opened, "#table-rollout_throughput thead th:nth-child(4) button")[0]
    numbers = sorted(value for value in before if value == value)
    click(opened, header)
    assert column()[:4] == numbers
    assert all(value != value for value in column()[4:])
    click(opened, header)
    assert column()[:4] == numbers[::-1]
    click(opened, header)
    assert [str(value) for value in column()] == [str(value) for value in before]


def test_injected_texts_do_nothing_and_are_shown_as_they_are(opened: Any) -> None:
    assert opened.title == "quickstart: report"
    assert find(opened, "main img[src=x], #panel img") == []
    assert len(find(opened, "script")) == 2
    text = opened.find_element("tag name", "main").text
    assert INJECTED in text
    assert "stray <b>.txt" in text
    for row in [
        row for row in find(opened, "#plan tbody tr") if row.text.startswith(("failed\nsecond", "failed second"))
    ]:
        assert "onerror" in row.text
        click(opened, row.find_element("css selector", "button.ref"))
    assert INJECTED in opened.find_element("id", "panel").text
    assert opened.title == "quickstart: report"
    assert opened.get_log("browser") == []


def test_its_policy_allows_no_script_and_no_request(opened: Any) -> None:
    """Even if a text became markup, nothing would run and nothing would leave."""
    opened.execute_script(
        "const script = document.createElement('script'); script.textContent = 'document.title = \"hacked\"';"
        "document.body.append(script); const image = new Image(); image.src = 'http://127.0.0.1:9/x.png';"
    )
    refused = [entry["message"] for entry in opened.get_log("browser")]
    assert any("script-src" in message for message in refused)
    assert any("img-src" in message for message in refused)
    assert opened.title == "quickstart: report"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(opened: Any, scheme: str) -> None:
    """At least 4.5 : 1 (WCAG AA) for text, in light and dark."""
    media = [{"name": "prefers-color-scheme", "value": scheme}]
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": media})
    ratios = opened.execute_script(
        """
        const light = (text) => {
          const [r, g, b] = text.match(/[\\d.]+/g).slice(0, 3).map((part) => part / 255)
            .map((part) => part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
          return 0.2126 * r + 0.7152 * g + 0.0722 * b;
        };
        const ground = (element) => {
          for (let at = element; at; at = at.parentElement) {
            const color = getComputedStyle(at).backgroundColor;
            if (!color.endsWith(", 0)")) return color;
          }
        };
        const found = {};
        const names = "main p, h3, h3 .number, td, thead button, .warnings li, figcaption, .notes li, nav a, nav b, " +
          "dd, dt, .file, sup a, .word, .ref, .PASS, .FAIL, .NOT_RESOLVED, .legend button, .chips button, .why";
        for (const element of document.querySelectorAll(names)) {
          const [a, b] = [light(getComputedStyle(element).color), light(ground(element))].sort((x, y) => y - x);
          found[`${element.tagName}.${element.className}`] = (a + 0.05) / (b + 0.05);
        }
        return found;
        """
    )
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert {name: ratio for name, ratio in ratios.items() if ratio < 4.5} == {}


def test_it_can_be_read_on_a_small_laptop_and_on_paper(opened: Any) -> None:
    for width in (1024, 1280):
        opened.set_window_size(width, 700)
        wide = opened.execute_script(
            "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        assert wide <= 0, f"the page itself scrolls sideways at {width} pixels"
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert not opened.find_element("tag name", "nav").is_displayed()
    assert opened.find_element("id", "table-actor_update").is_displayed()
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
