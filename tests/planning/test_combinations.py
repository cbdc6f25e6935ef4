"""Grids, zips, lists, unions, samples, cohorts: their cells, in which order, and what contradicts itself."""

import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from scalerlt.errors import RequestErrors
from scalerlt.planning import sweep_file
from scalerlt.planning.combinations import combinations
from scalerlt.planning.hydra_bridge import compose
from scalerlt.planning.parts import Axis

KEYS = ("precision", "batch", "seed", "cohort", "checkpoint")


def values_of(axis: Axis) -> list[str]:
    """As Hydra reads the plain values of these tests."""
    return axis[1].split(",")


def cells(definition: dict[str, Any], *own: Axis) -> list[dict[str, str]]:
    problems: list[str] = []
    sweep = sweep_file._sweep("mine", definition, problems)
    assert not problems
    return [dict(text.split("=") for text in cell) for cell in combinations(sweep, own, values_of)]


def problems_of(definition: dict[str, Any], *own: Axis) -> str:
    with pytest.raises(RequestErrors) as caught:
        cells(definition, *own)
    return "\n".join(caught.value.problems)


def written(directory: Path, definition: dict[str, Any] | str) -> str:
    file = directory / "mine.yaml"
    file.write_text(definition if isinstance(definition, str) else yaml.safe_dump(definition, sort_keys=False))
    return f"+sweeps={file}"


axis_values = st.lists(st.integers(0, 5).map(str), min_size=1, max_size=4, unique=True)


@given(grid=st.dictionaries(st.sampled_from(KEYS), axis_values, min_size=1), width=st.integers(1, 3), data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_grid_multiplies_its_zips(grid: dict[str, list[str]], width: int, data: st.DataObject) -> None:
    """Against nested loops written out: every combination once, the last dimension fastest, zip by position."""
    rows = data.draw(
        st.lists(st.tuples(*[st.integers(0, 9).map(str)] * 2), min_size=width, max_size=width, unique=True)
    )
    zipped = {"a": [row[0] for row in rows], "b": [row[1] for row in rows]}
    expected = [
        {**dict(zip(grid, values, strict=True)), "a": a, "b": b} for values in product(*grid.values()) for a, b in rows
    ]
    assert cells({"grid": {**grid, "zip": zipped}}) == expected


@given(st.lists(st.lists(st.integers(0, 5).map(str), min_size=1, max_size=3, unique=True), min_size=1, max_size=4))
@settings(deadline=None)
def test_a_union_has_each_cell_once_in_the_order_of_its_parts(seeds: list[list[str]]) -> None:
    found = [cell["seed"] for cell in cells({"union": [{"grid": {"seed": values}} for values in seeds]})]
    assert found == list(dict.fromkeys(seed for values in seeds for seed in values))


def test_every_kind_of_part_may_stand_in_a_union() -> None:
    found = cells(
        {
            "union": [
                {"list": [{"seed": 0, "batch": "small"}, {"seed": 1}]},
                {"zip": {"seed": [2, 3], "batch": ["small", "large"]}},
                {"union": [{"grid": {"seed": [3, 4], "batch": "large"}}, {"list": [{"seed": 1}]}]},
            ]
        }
    )
    assert found == [
        {"seed": "0", "batch": "small"},
        {"seed": "1"},
        {"seed": "2", "batch": "small"},
        {"seed": "3", "batch": "large"},
        {"seed": "4", "batch": "large"},
    ]


def test_the_command_line_replaces_a_key_where_it_stands_and_multiplies_otherwise() -> None:
    grid = {"grid": {"seed": ["0", "1"], "batch": ["small", "large"]}}
    assert [tuple(cell.items()) for cell in cells(grid, ("seed", "7"), ("block", "0,1"))] == [
        (("seed", "7"), ("batch", batch), ("block", block)) for batch in ("small", "large") for block in "01"
    ]
    listed = {"list": [{"seed": 0, "batch": "small"}, {"seed": 1, "batch": "small"}]}
    assert [tuple(cell.values()) for cell in cells(listed, ("batch", "medium,large"))] == [
        (seed, batch) for seed in "01" for batch in ("medium", "large")
    ]


@pytest.mark.parametrize(
    ("definition", "own", "said"),
    [
        (
            {"zip": {"batch": ["small", "large"], "seed": ["0", "1", "2"]}},
            [],
            "a zip needs lists of equal length: batch has 2, seed has 3",
        ),
        (
            {"zip": {"batch": ["small", "large"], "seed": ["0", "1"]}},
            [("batch", "small")],
            "batch is bound to seed by a zip; it cannot be given another value",
        ),
        ({"grid": {"seed": ["0", "0"]}}, [], "seed=0 stands twice"),
        ({"zip": {"seed": ["0", "0"], "batch": ["small", "small"]}}, [], "seed=0 with batch=small stands twice"),
        (
            {"list": [{"seed": 0}, {"batch": "small", "seed": 1}, {"seed": 0}]},
            [],
            "cell 3 of a list is its cell 1 again",
        ),
        ({"list": [{"seed": 0}, {"seed": "1,2"}]}, [], "cell 2 of a list: seed=1,2 has several values"),
        ({"list": [{"seed": 0}, {"seed": 1}]}, [("seed", "5")], "seed tells the cells of a list apart"),
        ({"grid": {"seed": ["0", "1"]}, "sample": {"size": 3, "seed": 0}}, [], "a sample of 3 cannot be drawn from 2"),
        (
            {"grid": {"seed": ["0", "1"], "batch": ["small", "large"]}, "sample": {"size": 3, "seed": 0}},
            [("seed", "0")],
            "a sample of 3 cannot be drawn from 2 cells",
        ),
        (
            {"grid": {"batch": ["small", "large"]}, "compare": "batch", "blocks": "ABBA"},
            [("block", "0")],
            "the sweep mine has `blocks`, which set it",
        ),
        ({"grid": {"batch": "small"}, "compare": "batch"}, [], "needs two or more values of batch"),
        (
            {"grid": {key: [str(n) for n in range(100)] for key in KEYS}},
            [],
            "has 10,000,000,000 combinations; 1,000,000 is the most",
        ),
        ({"grid": {"seed": ["0", "1"]}, "cohorts": 10**9}, [], "has 2,000,000,000 combinations"),
    ],
)
def test_what_contradicts_itself_is_an_error_and_never_a_smaller_grid(
    definition: dict[str, Any], own: list[Axis], said: str
) -> None:
    assert said in problems_of(definition, *own)


def test_all_problems_of_a_union_are_told_at_once() -> None:
    said = problems_of(
        {
            "union": [
                {"zip": {"seed": ["0"], "batch": ["a", "b"]}},
                {"grid": {"seed": ["1", "1"]}},
                {"grid": {"seed": 1}},
            ]
        }
    )
    assert "equal length" in said and "seed=1 stands twice" in said


GRID = {"seed": [str(seed) for seed in range(40)], "batch": ["small", "medium", "large"]}


def test_a_sample_is_a_subset_in_the_grids_order_and_moves_with_its_seed() -> None:
    whole = cells({"grid": GRID})
    drawn = {seed: cells({"grid": GRID, "sample": {"size": 20, "seed": seed}}) for seed in range(8)}
    for sample in drawn.values():
        assert len(sample) == 20
        assert [cell for cell in whole if cell in sample] == sample
    assert len({str(sample) for sample in drawn.values()}) == 8
    counts = [sum(cell in sample for sample in drawn.values()) for cell in whole]
    assert max(counts) < 8, "no cell is always drawn"
    assert cells({"grid": GRID, "sample": {"size": 120, "seed": 0}}) == whole


def test_a_sample_is_the_same_on_every_platform_and_version() -> None:
    """Known values: the smallest SHA-256 of "7\\nbatch=B\\nseed=S". A smaller sample is part of a larger one."""
    three = [(cell["seed"], cell["batch"]) for cell in cells({"grid": GRID, "sample": {"size": 3, "seed": 7}})]
    assert three == [("1", "small"), ("18", "large"), ("19", "large")]
    ten = [(cell["seed"], cell["batch"]) for cell in cells({"grid": GRID, "sample": {"size": 10, "seed": 7}})]
    assert set(three) < set(ten)


def test_a_part_and_the_whole_are_sampled_each_on_its_own() -> None:
    part = {"grid": {"seed": [str(seed) for seed in range(10)]}, "sample": {"size": 4, "seed": 1}}
    union = {"union": [part, {"grid": {"seed": "100"}}]}
    assert len(cells(union)) == 5
    assert cells(union)[:4] == cells(part)
    assert len(cells({**union, "sample": {"size": 2, "seed": 1}})) == 2


def test_each_cohort_has_its_own_seed_unless_the_sweep_names_seeds() -> None:
    assert cells({"grid": {"batch": ["small", "large"]}, "cohorts": 2}) == [
        {"batch": batch, "cohort": cohort, "seed": cohort} for cohort in "01" for batch in ("small", "large")
    ]
    assert cells({"grid": {"seed": ["5", "6"]}, "cohorts": 2}) == [
        {"seed": seed, "cohort": cohort} for cohort in "01" for seed in "56"
    ]
    assert cells({"grid": {"batch": "small"}, "cohorts": 2}, ("seed", "9")) == [
        {"batch": "small", "seed": "9", "cohort": cohort} for cohort in "01"
    ]
    assert cells({"grid": {"batch": "small"}, "cohorts": 5}, ("cohort", "3,1")) == [
        {"batch": "small", "cohort": cohort, "seed": cohort} for cohort in "31"
    ], "the command line narrows the cohorts"
    sampled = cells({"grid": GRID, "sample": {"size": 3, "seed": 7}, "cohorts": 2} | {"grid": {"batch": GRID["batch"]}})
    assert len(sampled) == 6, "the sample is drawn of configurations; each runs in every cohort"


def test_hydras_own_sweeps_count_in_zips_and_lists(tmp_path: Path) -> None:
    """Through Hydra's grammar: ranges, globs and choices have their lengths."""
    three = '"glob(*,exclude=[group*,requests*])"'
    found = compose([written(tmp_path, f"zip: {{seed: range(3), batch: {three}}}")]).cells
    assert [(cell.config["seed"], cell.config["batch"]["name"]) for cell in found] == [
        (0, "large"),
        (1, "medium"),
        (2, "small"),
    ]
    with pytest.raises(RequestErrors, match="seed has 4, batch has 3"):
        compose([written(tmp_path, f"zip: {{seed: range(4), batch: {three}}}")])
    for key, value in (("seed", "choice(1,2)"), ("batch", "glob(*)")):
        with pytest.raises(RequestErrors, match=r"cell 1 of a list: .* has several values"):
            compose([written(tmp_path, {"list": [{key: value}, {"cohort": 1}]})])


def test_a_wrong_key_or_option_is_named_wherever_it_stands(tmp_path: Path) -> None:
    text = """
union:
- zip: {precison: [fp32, bf16], seed: [0, 1]}
- list: [{bach: small}, {batch: tiny}]
- grid: {seed: 0, zip: {precision: [fp99, fp32], batch.grup_size: [1, 2]}}
"""
    with pytest.raises(RequestErrors) as caught:
        compose([written(tmp_path, text)])
    said = "\n".join(caught.value.problems)
    for part in ("did you mean precision?", "did you mean batch?", "batch=tiny", "precision=fp99", "batch.group_size?"):
        assert part in said
    assert said.count("sweep mine:") == 5


def test_hash_seeds_do_not_move_a_sample() -> None:
    """Python shuffles its sets by process: a sample does not follow."""
    code = (
        "from scalerlt.planning.combinations import combinations\n"
        "from scalerlt.planning.sweep_file import _sweep\n"
        "sweep = _sweep('m', {'grid': {'seed': list(range(30))}, 'sample': {'size': 5, 'seed': 3}}, [])\n"
        "print(combinations(sweep, [], lambda axis: axis[1].split(',')))"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1
