"""Identity: what does not matter does not change it, every scientific key does."""

import copy
import hashlib
import json
from dataclasses import fields, is_dataclass
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schema.plain_config import plain_config

from scalerlt.errors import RequestErrors
from scalerlt.records.cell import FileInput as FrozenInput
from scalerlt.schema import load_cell
from scalerlt.schema.fields import FileInput, IdentityDefault, NotIdentity
from scalerlt.schema.identity import _content, axes, cell_id, identity, marked, scientific_keys
from scalerlt.schema.registry import ADDED_GROUPS, GROUPS, config, key_of

BASE = plain_config({"model.weights": None})
INPUTS = {"task.rollouts": FrozenInput(path="a", sha256="0" * 64)}


def digest_of(values: dict[str, Any], inputs: dict[str, FrozenInput] = INPUTS) -> str:
    return identity(scientific_keys(load_cell(values), inputs))


def shuffled(value: Any, order: Any) -> Any:
    if not isinstance(value, dict):
        return value
    keys = list(value)
    order.shuffle(keys)
    return {key: shuffled(value[key], order) for key in keys}


@settings(max_examples=25, deadline=None)
@given(st.randoms(use_true_random=False))
def test_the_order_of_keys_does_not_matter(order: Any) -> None:
    assert digest_of(shuffled(BASE, order)) == digest_of(BASE)


def test_the_spelling_of_a_number_does_not_matter() -> None:
    spelled = copy.deepcopy(BASE)
    spelled["optimizer"]["weight_decay"] = 1
    other = copy.deepcopy(BASE)
    other["optimizer"]["weight_decay"] = 1.0
    assert digest_of(spelled) == digest_of(other)


def test_paths_do_not_matter_and_contents_do() -> None:
    elsewhere = copy.deepcopy(BASE)
    elsewhere["task"]["rollouts"] = "/another/place.jsonl"
    assert digest_of(elsewhere) == digest_of(BASE)
    assert digest_of(BASE, {"task.rollouts": FrozenInput(path="a", sha256="1" * 64)}) != digest_of(BASE)


@pytest.mark.parametrize(
    "change",
    [
        ("resources", "timeout_s", 1.0),
        ("device", "env", {"A": "1"}),
        ("gates", "bf16", None),
        ("experiment", "_check_", None),
    ],
)
def test_what_cannot_change_a_result_does_not_matter(change: tuple[str, str, Any]) -> None:
    group, key, value = change
    changed = copy.deepcopy(BASE)
    changed[group][key] = value
    assert digest_of(changed) == digest_of(BASE)


def test_a_memory_limit_matters_only_when_there_is_one() -> None:
    limited = copy.deepcopy(BASE)
    limited["device"]["memory_limit"] = "1GiB"
    assert digest_of(limited) != digest_of(BASE)
    assert "memory_limit" not in scientific_keys(load_cell(BASE), INPUTS)["device"]


def test_a_readout_matters_unless_it_is_the_one_that_there_always_was() -> None:
    assert not {"readout", "readout_tile"} & set(scientific_keys(load_cell(BASE), INPUTS)["checkpoint"])
    digests = {digest_of(BASE)}
    for tile in (2048, 512):
        tiled = copy.deepcopy(BASE)
        tiled["checkpoint"] |= {"readout": "tiled", "readout_tile": tile}
        digests.add(digest_of(tiled))
    assert len(digests) == 3
    before = copy.deepcopy(BASE)  # a configuration written before there was a choice
    before["checkpoint"] = {key: BASE["checkpoint"][key] for key in ("name", "_target_")}
    assert digest_of(before) == digest_of(BASE)


def test_a_full_readout_has_no_tiles() -> None:
    tiles = copy.deepcopy(BASE)
    tiles["checkpoint"]["readout_tile"] = 512
    with pytest.raises(RequestErrors, match="readout_tile=512 is of readout=tiled"):
        load_cell(tiles)


def scientific_leaves() -> list[tuple[str, ...]]:
    """Every key of every config group that is not declared to be outside the identity, at its default or always."""
    cell = load_cell(BASE)
    found: list[tuple[str, ...]] = [("seed",), ("cohort",), ("block",)]

    def walk(part: Any, where: tuple[str, ...]) -> None:
        described = type(part)
        outside = {**marked(described, NotIdentity), **marked(described, FileInput)}
        outside |= {k: mark for k, mark in marked(described, IdentityDefault).items() if getattr(part, k) == mark.value}
        for field in fields(described):
            if field.name in outside:
                continue
            key = (*where, key_of(described, field.name))
            value = getattr(part, field.name)
            walk(value, key) if is_dataclass(value) else found.append(key)

    for group in GROUPS:
        if group != "gates" and ADDED_GROUPS.get(group) != getattr(cell, group).name:
            walk(getattr(cell, group), (group,))
    return found


@pytest.mark.parametrize("path", scientific_leaves(), ids=".".join)
def test_every_scientific_key_matters(path: tuple[str, ...]) -> None:
    content = scientific_keys(load_cell(BASE), INPUTS)
    changed = copy.deepcopy(content)
    place = changed
    for key in path[:-1]:
        place = place[key]
    assert path[-1] in place, f"{'.'.join(path)} is not part of the identity"
    place[path[-1]] = "changed"
    assert identity(changed) != identity(content)


def test_the_identity_is_fixed_for_all_time() -> None:
    """A change here makes every user's measured cells unknown: raise IDENTITY_VERSION and keep the old algorithm."""
    content = {"identity_version": 1, "seed": 0, "b": {"x": 1.0, "a": None, "ü": True}}
    canonical = rb'{"b":{"a":null,"x":1.0,"\u00fc":true},"identity_version":1,"seed":0}'
    assert identity(content) == hashlib.sha256(canonical).hexdigest()
    assert identity(content) == "ed9fa48aae1a41fd7686af41b09d96830a6d381c5d4e2cf522853218d2f3d5ca"


def test_a_later_key_is_left_out_while_it_has_its_default() -> None:
    @config
    class Grown:
        name: str
        old: int
        new: Annotated[int, IdentityDefault(4)] = 4

    before = {"name": "x", "old": 1}
    assert _content(Grown(name="x", old=1), "g", {}) == before
    assert _content(Grown(name="x", old=1, new=4), "g", {}) == before
    assert _content(Grown(name="x", old=1, new=5), "g", {}) == {**before, "new": 5}


def test_axes_are_flat_and_name_their_options() -> None:
    flat = axes(scientific_keys(load_cell(BASE), INPUTS))
    assert flat["precision"] == "fp32"
    assert flat["batch"] == "small" and flat["batch.group_size"] == 4
    assert flat["rollout.engine"] == "native"
    assert flat["task.rollouts"] == "sha256:" + "0" * 64
    assert not any(isinstance(value, dict | list) for value in flat.values())
    assert json.loads(json.dumps(flat)) == flat


@given(st.text(min_size=1, max_size=300))
@settings(max_examples=50, deadline=None)
def test_a_cell_id_is_a_safe_file_name(name: str) -> None:
    values = copy.deepcopy(BASE)
    values["batch"]["name"] = name
    cell = load_cell(values)
    made = cell_id(cell, "0123456789abcdef")
    assert made.endswith("-0123456789") and len(made) < 120
    assert set(made) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-")
    assert not made.startswith(".")
