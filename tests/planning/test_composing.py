"""Composing once per combination of choices gives what Hydra itself gives for every cell."""

import random
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.utils import create_config_search_path
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_search_path import ConfigSearchPath, SearchPathQuery
from hydra.types import RunMode
from omegaconf import OmegaConf, ReadonlyConfigError

from scalerlt.errors import RequestErrors
from scalerlt.planning.composing import compose_all
from scalerlt.planning.hydra_bridge import CONF, compose
from scalerlt.planning.loader import Loader

AXES = {
    "precision": ["fp32", "bf16"],
    "batch": ["small", "linked", "relative", "nested"],
    "rollout": ["dense", "last_exited"],
    "optimizer": ["adamw", "sgd"],
    "seed": ["0", "07", "1e3", "null", "'3'", "true"],
    "cohort": ["5", "x-y.z", "${resources.timeout_s}"],
    "batch.group_size": ["2", "8", "'8'"],
    "batch.microbatch_tokens": ["64", "512"],
    "prompt.template": ["'{question}'", r"'it\'s: {question}, \\'", "'${seed}: {question}'"],
    "resources.timeout_s": ["null", "1.5", "inf"],
    "+device.env.A": ["1", "2"],
    "++optimizer.learning_rate": ["1", "2e-5"],
}


@pytest.fixture(scope="module")
def config_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of further options of `batch`, whose values hang together in different ways."""
    folder = tmp_path_factory.mktemp("conf") / "batch"
    folder.mkdir()
    small = yaml.safe_load((CONF / "batch" / "small.yaml").read_text())
    options: dict[str, dict[str, Any]] = {
        "linked": {"microbatch_tokens": "${batch.group_size}", "prompts_per_step": "${cohort}"},
        "relative": {"microbatch_tokens": "${.group_size}"},
        "incomplete": {"group_size": "???"},
        "nested": {"microbatch_tokens": "${batch.${batch.which}}", "which": "group_size"},
    }
    for name, values in options.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(small | {"name": name} | values))
    return folder.parent


def search_path_of(config_dir: Path) -> ConfigSearchPath:
    search_path = create_config_search_path(f"file://{CONF}")
    search_path.prepend("test", f"file://{config_dir}", SearchPathQuery(provider="schema"))
    return search_path


def by_hydra(loader: ConfigLoader, overrides: tuple[str, ...]) -> Any:
    """What Hydra composes and OmegaConf resolves, or None where one of them refuses."""
    try:
        config = loader.load_configuration("config", overrides=list(overrides), run_mode=RunMode.RUN)
        ours = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
        return OmegaConf.to_container(ours, resolve=True, throw_on_missing=True)
    except Exception:
        return None


def same(value: Any, other: Any) -> bool:
    """Equal values of equal types, in mappings of equal order; NaN is equal to itself."""
    if isinstance(value, dict) and isinstance(other, dict):
        return list(value) == list(other) and all(same(value[key], other[key]) for key in value)
    if isinstance(value, list) and isinstance(other, list):
        return len(value) == len(other) and all(map(same, value, other))
    return type(value) is type(other) and (value == other or (value != value and other != other))


KINDS = ["07", "null", "true", "nan", "'8'", '"a b"', "0x1f", "x-y.z", r"'it\'s, \\'", r"'\${seed}'", "-1e3", "''"]
NUMBERS = [
    *(f"batch.{key}" for key in ("prompts_per_step", "group_size", "rollout_concurrency")),
    "seed",
    "cohort",
    "block",
]

REQUESTS = {
    "values of every kind": [
        [f"{key}={value}" for key, value in zip(NUMBERS, values, strict=True)] for values in (KINDS[:6], KINDS[6:])
    ],
    "an interpolation among the values": [["seed=0", "cohort=5"], ["seed=${cohort}", "cohort=6"]],
    "values that are referred to": [["batch=linked", "batch.group_size=2"], ["batch=linked", "batch.group_size=8"]],
    "referred to from another group": [["batch=linked", "cohort=3"], ["batch=linked", "cohort=4"]],
    "referred to relatively": [["batch=relative", "batch.group_size=2"], ["batch=relative", "batch.group_size=8"]],
    "referred to by a value": [["batch=nested", "batch.group_size=2"], ["batch=nested", "batch.group_size=8"]],
    "replaced": [["batch=linked", "batch.microbatch_tokens=64"], ["batch=linked", "batch.microbatch_tokens=128"]],
    "missing": [["batch=incomplete", "batch.group_size=2"], ["batch=incomplete", "batch.group_size=8"]],
    "lists and mappings": [["seed=[1,2]", "+device.env={A: x}"], ["seed=[a,{b: c}]", "+device.env={}"]],
    "a mapping before a value of it": [
        ["resources={timeout_s: 3}", "resources.timeout_s=1"],
        ["resources.timeout_s=2"],
    ],
    "a mapping after a value of it": [["resources.timeout_s=1", "resources={timeout_s: 3}"], ["resources.timeout_s=2"]],
    "additions": [["+device.env.A=1", "seed=1"], ["+device.env.A=2", "seed=2"]],
    "a value behind an addition": [["++seed=1", "seed=2"], ["++seed=1", "seed=3"]],
    "a deletion": [["~gates.fp32", "seed=1"], ["~gates.bf16", "seed=2"]],
    "nested groups": [["rollout=dense", "rollout/engine=native", "seed=0"], ["rollout=greedy", "seed=1"]],
}
"""The overrides of each cell of a request."""


def assert_same(combinations: list[tuple[str, ...]], config_dir: Path) -> None:
    loader = ConfigLoaderImpl(search_path_of(config_dir))
    composed = compose_all(Loader(search_path_of(config_dir)), [], combinations)
    assert list(composed) == combinations
    for combination in combinations:
        assert same(composed[combination], by_hydra(loader, combination)), combination


@pytest.mark.parametrize("name", REQUESTS)
def test_what_could_go_wrong_is_composed_as_hydra_does(name: str, config_dir: Path) -> None:
    assert_same([tuple(overrides) for overrides in REQUESTS[name]], config_dir)


@pytest.mark.parametrize("sample", range(2))
def test_random_requests_are_composed_as_hydra_does(sample: int, config_dir: Path) -> None:
    drawn = random.Random(sample)
    grid = [[f"{key}={value}" for value in drawn.sample(AXES[key], k=2)] for key in drawn.sample(list(AXES), k=6)]
    assert_same(drawn.sample(list(product(*grid)), k=3), config_dir)


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["seed=0 no.such=1", "seed=1 no.such=1"], "no.such"),
        (["seed=0", "seed=${nope}"], "nope"),
        (["batch=incomplete", "batch=small"], "batch.group_size"),
        (["seed=0 cohort=5", "seed=${cohort} cohort=${seed}"], "Recursive"),
    ],
)
def test_what_hydra_refuses_is_refused(texts: list[str], said: str, config_dir: Path) -> None:
    with pytest.raises(RequestErrors) as caught:
        compose_all(Loader(search_path_of(config_dir)), [], [tuple(text.split()) for text in texts])
    assert any(said in problem for problem in caught.value.problems), caught.value.problems
    assert len(caught.value.problems) == 1


def test_hydra_composes_once_for_all_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deterministic in place of a stopwatch: 2 x 2 choices, and once what the request asks for itself."""
    asked: list[list[str]] = []
    composed = Loader.load_configuration

    def count(loader: Loader, *arguments: Any, overrides: list[str], **options: Any) -> Any:
        asked.append(overrides)
        return composed(loader, *arguments, overrides=overrides, **options)

    monkeypatch.setattr(Loader, "load_configuration", count)
    request = compose(["precision=fp32,bf16", "checkpoint=none,layer", "seed=range(50)"])
    assert len(request.cells) == 200
    assert len(asked) == 1 + 4


def test_a_file_that_is_edited_meanwhile_does_not_split_a_request(tmp_path: Path) -> None:
    (tmp_path / "batch").mkdir()
    file = tmp_path / "batch" / "mine.yaml"
    values = yaml.safe_load((CONF / "batch" / "small.yaml").read_text())
    file.write_text(yaml.safe_dump(values | {"name": "mine"}))
    loader = Loader(search_path_of(tmp_path))
    before = loader.load(["batch=mine"]).batch
    with pytest.raises(ReadonlyConfigError):  # others are given the same
        before.group_size = 99
    file.write_text(yaml.safe_dump(values | {"name": "mine", "group_size": 16}))
    assert loader.load(["batch=mine", "precision=bf16"]).batch == before
