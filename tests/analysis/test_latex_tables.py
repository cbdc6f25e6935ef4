import math
import re
import shutil
import string
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_runs import SyntheticSweep, cell_axes, planned, write_quickstart
from synthetic_training import write_reward_gain

from scalerlt.analysis.coverage import coverage_table, overhead_table, unmeasured_table
from scalerlt.analysis.judging import judged
from scalerlt.analysis.latex import PACKAGES, preamble, to_latex
from scalerlt.analysis.latex_text import escape_latex
from scalerlt.analysis.reading import read_runs
from scalerlt.analysis.rows import Entry
from scalerlt.analysis.table_spec import Column, load_tables
from scalerlt.analysis.tables import Line, Table, build_all
from scalerlt.analysis.training import with_training
from scalerlt.records.record import Metric, Verdict

NASTY = (
    *("int8_wo", "bf16 & fp8", "50%_q", "a\\b{c}", "~#", "±", "—", "µ", "50%_a&b", "^", "$x$", "−1", "2×", "Δα", "a|b"),
    *("<b>", '"', "``''", "--", "[x]", "*", "\\\\", "%", "{", "}", "\\end{tabular}", "\\input{/etc/passwd}", "é ß Ł ħ"),
    *("中文", "🚀", "x² y₃", "ﬁ", "Ωλςο", "\u202e", "\x07", "  ", "a\nb", ",,", "ÅÄÖ", "–", "…", "½", "e\u0301"),
)


def table(*entries: Entry, column: Column | None = None, unit: str = "") -> Table:
    column = column or Column(metric="x", header="x")
    lines = tuple(Line(("fp32",), (entry,), (1, 1), "cpu") for entry in entries)
    return Table("t", "T.", ("precision",), (column,), (unit,), lines)


def body(text: str) -> list[str]:
    """The rows between the rules."""
    return [line.strip() for line in text.split("\\midrule")[1].split("\\bottomrule")[0].strip().splitlines()]


def figures(*entries: Entry, column: Column | None = None, unit: str = "") -> tuple[str, list[str]]:
    """How the column of figures is set, and what stands in it."""
    text = to_latex(table(*entries, column=column, unit=unit))
    layout = text.split("\\begin{tabular}{\n")[1].split("\n  }\n")[0].split("\n")[2].strip()
    return layout, [line.split(" & ")[2] for line in body(text)]


@pytest.mark.parametrize(
    ("text", "latex"),
    [
        ("50%_a&b", r"50\%\_a\&b"),
        ("a\\b{c}", r"a\textbackslash{}b\{c\}"),
        ("~#^$", r"\textasciitilde{}\#\textasciicircum{}\$"),
        ("−1 ± 2×", r"$-$1 $\pm$ 2$\times$"),
        ("Δα µs λ", r"$\Delta$$\alpha$ $\mu$s $\lambda$"),
        ("Αο", r"$\mathrm{A}$$o$"),
        ("a--b ,, ''", r"a-{}-b ,{}, '{}'"),
        ("– —", r"--{} ---{}"),
        ("[x] *", r"{[}x{]} {*}"),
        ("é ç ï", r"{\'{e}} {\c{c}} {\"{\i}}"),
        ("a \n\t b", "a b"),
        ("中", r"\texttt{U+4E2D}"),
        ("x² h₂ ﬁ", r"x$^{2}$ h$_{2}$ fi"),
        ("\x07", r"\texttt{U+0007}"),
    ],
)
def test_texts_are_escaped(text: str, latex: str) -> None:
    assert escape_latex(text) == latex


@given(st.text(max_size=20))
def test_any_text_is_plain_ascii_with_closed_braces(text: str) -> None:
    latex = escape_latex(text)
    assert latex.isascii()
    assert "\n" not in latex
    depth = 0
    for piece in re.findall(r"\\.|[{}]", latex):
        depth += {"{": 1, "}": -1}.get(piece, 0)
        assert depth >= 0
    assert depth == 0
    assert re.sub(r"\\[%$&#_{}]", "", latex).count("$") % 2 == 0
    assert not re.search(r"(?<!\\)[%&#_]", re.sub(r"\$[^$]*\$", "", latex.replace(r"\$", "")))


@given(st.text(string.ascii_letters + string.digits + " .:;/+=()", min_size=1))
def test_plain_text_stays_as_it_is(text: str) -> None:
    assert escape_latex(text) == " ".join(text.split())


def test_numbers_are_aligned_with_room_for_their_digits() -> None:
    layout, shown = figures(Entry(12345.678), Entry(0.5), Entry(-3.25), Entry(7))
    assert layout == "S[table-format=-5.4]"
    assert shown == ["12346", "0.5000", "-3.250", "7"]
    layout, shown = figures(Entry(2.13e-7), Entry(0.0), column=Column(metric="x", header="x", form="error"))
    assert (layout, shown) == ("S[table-format=1.2e-1]", ["2.13e-7", "0"])


def test_what_is_no_number_stands_in_braces() -> None:
    column = Column(metric="x", header="50%_x", unit="%", scale=100.0)
    _, shown = figures(
        Entry(0.1),
        Entry(None, "not_measured"),
        Entry(math.nan),
        Entry(-math.inf),
        Entry("1 FAIL"),
        Entry(-0.0),
        column=column,
    )
    assert shown == ["10.00", r"{not\_measured}", "{NaN}", "{-inf}", "{1 FAIL}", "0"]
    layout, shown = figures(Entry("PASS"), Entry(None, "oom"))
    assert (layout, shown) == ("c", ["PASS", "oom"])


def test_an_interval_follows_its_number() -> None:
    column = Column(metric="x", header="x", estimator="geometric_mean_of_cohorts", correction="holm")
    first = Entry(1.523, low=1.31, high=1.76, n=5, p=0.0123)
    layout, shown = figures(first, Entry(10.0, n=1), Entry(None, "baseline"), column=column)
    assert shown == [r"1.52 {~{[}1.31, 1.76{]}, n=5, p=0.012}", r"10.0 {, n=1}", "{baseline}"]
    assert layout.startswith("S[table-format=2.2,")
    assert "table-space-text-post={~{[}1.31, 1.76{]}, n=5, p=0.012}" in layout


def test_footnotes_have_one_number_each_and_stand_below() -> None:
    text = to_latex(table(Entry(1.5, notes=("note: 50%",)), Entry(None, "oom", notes=("oom: a_b", "note: 50%"))))
    assert [line.split(" & ")[2] for line in body(text)] == [
        r"1.500 {\textsuperscript{1}}",
        r"{oom\textsuperscript{2,1}}",
    ]
    assert [line.strip() for line in text.splitlines() if r"\item[" in line] == [
        r"\item[1] note: 50\%",
        r"\item[2] oom: a\_b",
    ]
    assert r"\begin{list}" not in to_latex(table(Entry(1.5)))


def test_caption_label_and_packages() -> None:
    text = to_latex(table(Entry(1.0)))
    assert r"\label{tab:t}" in text
    assert r"\label{tab:mine}" in to_latex(replace(table(Entry(1.0)), label="tab:mine"))
    for package in PACKAGES:
        assert f"% needs \\usepackage{{{package}}}" in text.splitlines()
        assert f"\\usepackage{{{package}}}" in preamble().splitlines()


def compiled(directory: Path, files: list[Path], before: str) -> str:
    """What pdflatex says of a document with these tables."""
    lines = [r"\documentclass{article}", before, r"\begin{document}"]
    lines += [rf"\input{{{file}}}\clearpage" for file in files]
    (directory / "all.tex").write_text("\n".join([*lines, r"\end{document}"]), encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", "all.tex"]
    run = subprocess.run(
        command, cwd=directory, capture_output=True, text=True, errors="replace", timeout=120, check=False
    )
    assert run.returncode == 0, run.stdout[-3000:]
    said = run.stdout.replace("\n", "")
    assert "Float too large" not in said
    assert max(map(float, re.findall(r"Overfull .hbox .([0-9.]+)pt too", said)), default=0) < 20
    assert "Overfull \\vbox" not in said
    return run.stdout


def require_tex() -> None:
    if shutil.which("pdflatex") is None:
        pytest.skip("pdflatex is not installed, so the LaTeX tables are not compiled")
    for package in PACKAGES:
        found = subprocess.run(["kpsewhich", f"{package}.sty"], capture_output=True, check=False)
        if found.returncode:
            pytest.skip(f"TeX has no {package}.sty, so the LaTeX tables are not compiled")


def write_everything(runs: Path) -> None:
    """Sweeps that fill every table that ships, with every kind of mark."""
    write_quickstart(runs / "quickstart")
    write_reward_gain(runs / "reward_gain")
    sweep = SyntheticSweep(runs / "cohorts")
    cells = [
        cell_axes("actor_update", "fp32", batch, checkpoint, seed=cohort, cohort=cohort, **{"x.name": name})
        for batch, name in (("small", "50%_a&b\\~^"), ("medium", "−×±Δα 中"))
        for checkpoint in ("none", "layer", "loop")
        for cohort in range(3)
    ]
    evaluations = [
        {**cell_axes("gsm8k_eval", "fp32", "small"), "rollout": rollout, "rollout.schedule": rollout}
        for rollout in ("dense", "last_exited")
    ]
    sweep.plan([planned(axes) for axes in (*cells, *evaluations)], swept=["x.name", "checkpoint", "cohort"])
    for number, axes in enumerate(cells):
        host = "node-2" if number in (4, *range(12, 15)) else "node-1"
        sweep.record(axes, Verdict.OOM if number == 6 else Verdict.MEASURED, environment={"host": host})
    for axes in evaluations:
        sweep.record(axes, edit=lambda metrics: metrics.update(accuracy=Metric(value=0.5, unit="fraction")))


def test_every_table_compiles(tmp_path: Path) -> None:
    require_tex()
    write_everything(tmp_path / "runs")
    files = []
    for results in map(with_training, read_runs(tmp_path / "runs").sweeps):
        cells = judged(results.cells, results.path)
        about = [coverage_table(cells), unmeasured_table(cells), overhead_table(cells)]
        for found in (*build_all(load_tables(), cells, results.swept), *about):
            assert found is not None
            files.append(tmp_path / f"{results.name}-{found.name}.tex")
            files[-1].write_text(to_latex(found), encoding="utf-8")
    names = {file.stem.split("-")[1].removesuffix("_cpu") for file in files}
    filled = {"rollout_throughput", "gsm8k_reward", "gsm8k_eval", "actor_update"}
    assert {spec.name for spec in load_tables() if filled & {*spec.experiment} and not spec.sweeps} <= names
    said = compiled(tmp_path, files, preamble())
    assert f"({len(files)} pages" in said.replace("\n", "")


def test_names_of_every_kind_compile_and_are_shown(tmp_path: Path) -> None:
    require_tex()
    columns = tuple(Column(metric=f"m{number}", header=text or "x") for number, text in enumerate(NASTY[:6]))
    lines = tuple(
        Line((text, None), (Entry(1.5, notes=(text,)), *(Entry(text) for _ in columns[1:])), (1, 2), "cpu")
        for text in NASTY
    )
    nasty = Table("t", " ".join(NASTY), ("cfg_name", "50%_&"), columns, tuple(["a_b"] * 6), lines)
    file = tmp_path / "t.tex"
    file.write_text(to_latex(nasty), encoding="utf-8")
    compiled(tmp_path, [file], preamble())
    if shutil.which("pdftotext") is None:
        return
    text = subprocess.run(
        ["pdftotext", "all.pdf", "-"], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout
    for shown in ("int8", "bf16 & fp8", "50%", "U+4E2D", r"\end{tabular}", "cfg", "[x]"):
        assert shown in text.replace("_", "_"), shown


@pytest.mark.parametrize("columns", [3, 14])
def test_a_long_table_is_several_that_lose_nothing_and_stand_on_a_page_each(tmp_path: Path, columns: int) -> None:
    require_tex()
    words = "words that go on and on, as reasons do; "
    figures = tuple(
        Column(metric=f"m{number}", header="time, × none", estimator="geometric_mean_of_cohorts")
        for number in range(columns)
    )
    estimate = Entry(1.5, low=1.25, high=1.75, n=5)
    lines = tuple(
        Line(
            (f"row{number}", 2.0**number, words * (1 + number % 3)),
            (
                Entry(words * 4 if number == 7 else 1.5, notes=(f"note{number}: {words * (number % 9)}",)),
                *(replace(estimate, value=1.5 + place) for place in range(1, columns)),
            ),
            (4, 5),
            "cpu",
        )
        for number in range(90)
    )
    long = Table("t", "T. " + words * 8, ("name", "batch", "reason"), figures, ("s",) * columns, lines)
    file = tmp_path / "t.tex"
    text = to_latex(long)
    file.write_text(text, encoding="utf-8")
    compiled(tmp_path, [file], preamble())
    parts = text.count(r"\caption")
    assert parts > 2
    assert re.findall(r"label{([^}]*)}", text) == [
        "tab:t",
        *(f"tab:t:{n}" for n in range(2, parts + 1)),
    ]
    assert f"(Part {parts} of {parts}.)" in text
    assert text.count(r"\toprule") == text.count(r"time,") // columns == parts
    assert re.findall(r"row(\d+) &", text) == re.findall(r"\] note(\d+):", text) == [str(n) for n in range(90)]
