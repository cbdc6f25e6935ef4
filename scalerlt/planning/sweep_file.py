"""Sweep files: a name for a set of cells.

    description: one sentence
    grid:                      # every combination of the values
      precision: [fp32, bf16]
      seed: range(5)           # any sweep of Hydra's override grammar
      batch: small             # one value
      zip: {checkpoint: [none, loop], batch.microbatch_tokens: [1024, 4096]}   # these two together
    list: [{precision: fp32, batch: small}, {precision: bf16, batch: large}]   # or: cells written out
    union: [{grid: {...}}, {zip: {...}}, {list: [...]}]                        # or: several parts, each cell once
    sample: {size: 20, seed: 0}                                                # of the whole, or of a part
    cohorts: 5                 # cohort=0..4, each with the seed of that number unless the sweep names seeds
    compare: checkpoint        # cells that differ in it stand together in the plan, a bundle per cohort
    blocks: ABBA               # each bundle there and back
    rules: [{skip: {precision: fp16, device: cpu}, reason: why}]
    resources: [{where: {batch: large}, set: {timeout_s: 7200}}]

A key is a config group (`precision`) or a value (`batch.group_size`).
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from scalerlt.errors import RequestErrors, UserError
from scalerlt.planning.parts import KINDS, Part, Union, bound_to, keys_of, read_part
from scalerlt.planning.rules import ResourceRule, Rule, Span, read_resources, read_rules
from scalerlt.planning.suggestions import nearest
from scalerlt.records.base import Scalar
from scalerlt.records.strict_yaml import EachKeyOnce

SHIPPED = Path(__file__).parent.parent / "sweeps"
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
KEYS = ("description", *KINDS, "sample", "cohorts", "compare", "blocks", "rules", "resources")


@dataclass(frozen=True)
class SweepFile:
    """One sweep.

    Attributes:
        definition: its text as plain data.
        cohorts: number of independent repetitions, or None when the sweep itself says.
        compare: the key in which the arms of a comparison differ, or None.
        both_ways: whether each bundle runs its arms there and back (`blocks: ABBA`).
    """

    name: str
    definition: dict[str, Any]
    cells: Part
    cohorts: int | None = None
    compare: str | None = None
    both_ways: bool = False
    rules: tuple[Rule, ...] = ()
    resources: tuple[ResourceRule, ...] = ()

    @property
    def conditions(self) -> list[tuple[str, tuple[Scalar, ...]]]:
        """Each key that a rule looks at, and the values that it compares with."""
        conditions = [condition for rule in self.rules for condition in rule.conditions]
        conditions += [condition for rule in self.resources for condition in rule.conditions]
        return [(one.key, () if isinstance(one.allowed, Span) else one.allowed) for one in conditions]

    @property
    def arm_keys(self) -> frozenset[str]:
        """The keys in which the arms of a comparison differ: `compare`, and what a zip binds to it."""
        return frozenset() if self.compare is None else frozenset(bound_to(self.cells, self.compare))


def available() -> dict[str, Path]:
    """Every sweep by name: the shipped ones, and those in ./sweeps, which come first."""
    files = [*sorted(SHIPPED.glob("*.yaml")), *sorted(Path("sweeps").glob("*.yaml"))]
    return {path.stem: path for path in files if path.is_file()}


def find(name: str) -> Path:
    """The file of a sweep given by name or by path; UserError naming the nearest names otherwise."""
    if is_path(name):
        path = Path(name)
        if not path.is_file():
            raise UserError(f"{name}: there is no such sweep file")
    else:
        sweeps = available()
        if name not in sweeps:
            raise UserError(f"there is no sweep {name!r}{nearest(name, sweeps)}")
        path = sweeps[name]
    if not NAME.fullmatch(path.stem):
        raise UserError(
            f"{path}: a sweep goes by its file's name; rename it to ASCII letters, digits, `_`, `-` and `.`"
        )
    return path


def is_path(name: str) -> bool:
    """Whether a sweep is given by its file and not by its name."""
    return name.endswith((".yaml", ".yml")) or "/" in name


def read(path: Path) -> SweepFile:
    """Read and check one sweep file; RequestErrors names everything that is wrong with it."""
    try:
        definition = yaml.load(path.read_text(encoding="utf-8"), EachKeyOnce)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"{path}: not a readable sweep file ({' '.join(str(error).split())})") from error
    problems: list[str] = []
    try:
        sweep = _sweep(path.stem, definition, problems)
    except RecursionError as error:
        raise UserError(f"{path}: an anchor in it refers to itself") from error
    if problems:
        raise RequestErrors([f"{path}: {problem}" for problem in problems])
    return sweep


def _sweep(name: str, definition: Any, problems: list[str]) -> SweepFile:
    if not isinstance(definition, dict):
        problems.append(f"a sweep file is a mapping with one of the keys {', '.join(KINDS)}")
        return SweepFile(name, {}, Union(()))
    problems += [
        f"{key!r} is not a key of a sweep file{nearest(key, KEYS)}"
        for key in sorted(map(str, set(definition) - {*KEYS}))
    ]
    cells = read_part(definition, "the sweep", problems)
    cohorts, compare, blocks = (definition.get(key) for key in ("cohorts", "compare", "blocks"))
    if cohorts is not None and (not isinstance(cohorts, int) or isinstance(cohorts, bool) or cohorts < 1):
        problems.append(f"cohorts={cohorts!r}: give their number, such as 5")
        cohorts = None
    if blocks is not None and blocks != "ABBA":
        problems.append(f"blocks={blocks!r}: there is ABBA, or leave it out")
    if blocks is not None and compare is None:
        problems.append("`blocks` orders the arms of a comparison; name the key they differ in as `compare`")
    named = keys_of(cells)
    if compare is not None and (not isinstance(compare, str) or compare not in named):
        problems.append(f"compare={compare!r} is not an axis of the sweep{nearest(str(compare), named)}")
    elif compare in ("seed", "cohort", "block"):
        problems.append(f"compare={compare}: it repeats an arm; name the key in which the arms differ")
    problems += [
        f"{key} is set by `{by}` and cannot be an axis too"
        for key, by, given in (("cohort", "cohorts", cohorts), ("block", "blocks", blocks))
        if given is not None and key in named
    ]
    return SweepFile(
        name,
        definition,
        cells,
        cohorts,
        compare,
        blocks is not None,
        read_rules(definition.get("rules"), problems),
        read_resources(definition.get("resources"), problems),
    )
