"""Sweep files: what they may say, and that nothing in them is dropped silently."""

from pathlib import Path

import pytest
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser

from scalerlt.errors import UserError
from scalerlt.planning import sweep_file
from scalerlt.planning.hydra_bridge import compose
from scalerlt.planning.parts import axes_of


def written(directory: Path, text: str) -> Path:
    path = directory / "mine.yaml"
    path.write_text(text)
    return path


def test_values_become_hydra_overrides(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "grid:\n  precision: [fp32, bf16]\n  seed: range(3)\n  resources.timeout_s: null\n"
        "  rollout.ignore_eos: [true, false]\n  optimizer.eps: 1.0e-8\n  batch: small\n",
    )
    assert list(axes_of(sweep_file.read(path).cells)) == [
        (
            ("precision", "fp32,bf16"),
            ("seed", "range(3)"),
            ("resources.timeout_s", "null"),
            ("rollout.ignore_eos", "true,false"),
            ("optimizer.eps", "1e-08"),
            ("batch", "small"),
        ),
    ]


@pytest.mark.parametrize(
    "text", ["a,b", "it's", 'say "no"', "x=y", "[1]", "{a: 1}", "two words", "a\\b", "a\\", "a\\'b", "${seed}"]
)
def test_a_text_in_a_list_means_itself(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({"grid": {"prompt.template": [text, "plain"]}}))
    ((axis,),) = axes_of(sweep_file.read(path).cells)
    override = OverridesParser.create().parse_override(f"{axis[0]}={axis[1]}")
    assert [getattr(value, "text", value) for value in override.sweep_iterator()] == [text, "plain"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- a", "is a mapping"),
        ("{}", "the sweep has one of grid, zip, list and union; this has none"),
        ("grid: {seed: 1}\nunion: []", "not both grid and union"),
        ("grid: {seed: 1}\nzap: 2", "'zap' is not a key"),
        ("grid: []", "a grid is a mapping"),
        ("grid: {seed: []}", "seed has no values"),
        ("grid: {seed: {a: 1}}", "'seed' has the value"),
        ("grid: {runs_dir: [a, b]}", "runs_dir cannot be part"),
        ("grid: {hydra/launcher: local}", "cannot be part"),
        ("union: []", "`union` is a list"),
        ("union: [{grid: {seed: 1}}, {zip: {}}]", "part 2 of the union: a zip is a mapping from two or more keys"),
        ("union: [{grid: {seed: 1}, description: x}]", "'description' is not a key of a part"),
        ("union: [{grid: {seed: 1}, zip: {seed: 1}}]", "part 1 of the union has one of grid"),
        ("grid: {seed: 1, grid: {batch: small}}", "a grid cannot stand in a grid"),
        ("grid: {seed: 1, list: [{batch: small}]}", "a list cannot stand in a grid"),
        ("grid: {seed: [0, 1], zip: {seed: [0, 1], batch: [small, medium]}}", "seed stands twice"),
        ("grid: {zip: [{seed: [0, 1], block: [0, 1]}, {seed: [2, 3], cohort: [0, 1]}]}", "seed stands twice"),
        ("zip: {seed: [0, 1]}", "two or more keys"),
        ("zip: {seed: [0, 1], grid: {batch: small}}", "a grid cannot stand in a zip"),
        ("list: {seed: 1}", "a list is a list of cells"),
        ("list: [{seed: [0, 1]}]", "cell 1: seed has several values"),
        ("list: [{seed: 0}, {grid: {seed: 1}}]", "cell 2: a grid cannot stand in a cell"),
        ("list: [{seed: 0}, {}]", "cell 2 is not a mapping"),
        ("grid: {seed: 1}\nsample: 3", "a sample is {size: N, seed: S}"),
        ("grid: {seed: 1}\nsample: {size: 0, seed: 0}", "a size above zero"),
        ("grid: {seed: 1}\nsample: {size: 1}", "a sample is {size: N, seed: S}"),
        ("grid: {seed: 1}\ncohorts: 0", "cohorts=0: give their number"),
        ("grid: {seed: 1}\ncohorts: true", "cohorts=True: give their number"),
        ("grid: {cohort: [0, 1]}\ncohorts: 2", "cohort is set by `cohorts`"),
        ("grid: {batch: [small, large], block: [0, 1]}\ncompare: batch\nblocks: ABBA", "block is set by `blocks`"),
        ("grid: {batch: [small, large]}\nblocks: ABBA", "name the key they differ in as `compare`"),
        ("grid: {batch: [small, large]}\ncompare: batch\nblocks: ABAB", "there is ABBA"),
        ("grid: {batch: [small, large]}\ncompare: bach", "is not an axis of the sweep; did you mean batch?"),
        ("grid: {batch: [small, large], seed: [0, 1]}\ncompare: [batch, seed]", "is not an axis of the sweep"),
        ("grid: {batch: [small, large], seed: [0, 1]}\ncompare: seed", "compare=seed: it repeats an arm"),
        ("grid: {batch: [small, large], cohort: [0, 1]}\ncompare: cohort", "compare=cohort: it repeats an arm"),
        ("grid: {batch: [small, large], block: [0, 1]}\ncompare: block", "compare=block: it repeats an arm"),
        ("grid: {seed: 1}\nrules: {skip: {seed: 1}}", "`rules` is a list"),
        ("grid: {seed: 1}\nrules: [{skip: {seed: 1}}]", "gives no reason"),
        ("grid: {seed: 1}\nrules: [{skip: {seed: 1}, reason: ' '}]", "gives no reason"),
        ("grid: {seed: 1}\nrules: [{skip: {}, reason: r}]", "entry 1, skip: give a mapping"),
        ("grid: {seed: 1}\nrules: [{skip: {seed: {mini: 1}}, reason: r}]", "{min: A, max: B}"),
        ("grid: {seed: 1}\nrules: [{skip: {seed: []}, reason: r}]", "{min: A, max: B}"),
        ("grid: {seed: 1}\nrules: [{skipp: {seed: 1}, reason: r}]", "keys `skip` and `reason`"),
        ("grid: {seed: 1}\nresources: [{where: {seed: 1}, set: {timeout: 1}}]", "did you mean timeout_s?"),
        ("grid: {seed: 1}\nresources: [{where: {seed: 1}}]", "`set` is a mapping"),
        ("union: &again [{union: *again}]", "an anchor in it refers to itself"),
        ("grid: {retry: [all, none]}", "retry cannot be part"),
        ("grid: {hydra.verbose: true}", "cannot be part"),
        ("grid: {seed: 1", "not a readable sweep file"),
        ("grid: {seed: [0], seed: [1, 2]}", "the key seed stands twice"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, said: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(UserError, match=r"mine\.yaml") as caught:
        sweep_file.read(path)
    assert said in str(caught.value)


def test_a_name_that_does_not_exist_names_the_nearest() -> None:
    with pytest.raises(UserError, match="did you mean quickstart"):
        sweep_file.find("quickstat")


@pytest.mark.parametrize("name", ["two words.yaml", "ümlaut.yaml", "a,b.yaml", "..yaml"])
def test_a_name_that_cannot_be_a_sweeps_is_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("grid: {seed: 1}")
    with pytest.raises(UserError, match="rename it"):
        sweep_file.find(str(tmp_path / name))


def test_what_is_no_file_is_no_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sweeps" / "folder.yaml").mkdir(parents=True)
    (tmp_path / "sweeps" / "loop.yaml").symlink_to("loop.yaml")
    (tmp_path / "sweeps" / "mine.yaml").write_text("grid: {seed: 1}")
    assert {"folder", "loop", "mine"} & sweep_file.available().keys() == {"mine"}


def test_ones_own_sweep_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sweeps").mkdir()
    (tmp_path / "sweeps" / "quickstart.yaml").write_text("grid: {seed: 1}")
    assert sweep_file.find("quickstart") == Path("sweeps/quickstart.yaml")


@pytest.mark.parametrize("path", sorted(sweep_file.SHIPPED.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_sweep_reads_and_says_what_it_is(path: Path) -> None:
    assert sweep_file.read(path).definition["description"]


@pytest.mark.parametrize("name", ["inf", "nan", "null", "true", "2026", "1.5", "1e5", "1_000", "plain"])
def test_a_sweep_may_have_a_name_that_reads_as_a_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sweeps").mkdir()
    (tmp_path / "sweeps" / f"{name}.yaml").write_text("grid: {seed: [3, 4]}")
    for given in (f"sweeps={name}", f"+sweeps=sweeps/{name}.yaml"):
        request = compose([given])
        assert request.sweep is not None and request.sweep.name == name
        assert [cell.config["seed"] for cell in request.cells] == [3, 4]
