"""What reaches the engine by a full publication, and that nothing less than a whole one does."""

import copy
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import pytest
import torch
from models.small import SMALL, small_model
from torch import Tensor

from scalerlt.errors import UserError
from scalerlt.models.ouro import OuroForCausalLM
from scalerlt.publication.full import FullPublication
from scalerlt.rollout.exit_rule import ExitRule
from scalerlt.rollout.native import NativeEngine
from scalerlt.rollout.request import Request

RULE = ExitRule(threshold=0.6, min_loops=1)
Named = list[tuple[str, Tensor]]


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def requests() -> list[Request]:
    """Prompts that share their first tokens, as a prefix cache would like them."""
    rng = random.Random(0)
    shared = tuple(rng.randrange(1, SMALL.vocab_size) for _ in range(6))
    return [
        Request(request_id=str(i), prompt_tokens=(*shared, i + 1), max_new_tokens=6, seed=i, ignore_eos=True)
        for i in range(4)
    ]


def engine_of(model: OuroForCausalLM) -> NativeEngine:
    return NativeEngine(copy.deepcopy(model), concurrency=3, exit_rule=RULE)


def learnt(model: OuroForCausalLM) -> OuroForCausalLM:
    """The learner after some steps: every parameter another one."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator).to(parameter.dtype))
    return model


def weights(model: OuroForCausalLM) -> Named:
    return [(name, parameter) for name, parameter in model.named_parameters()]


def publish(publication: FullPublication, version: int, *parts: Iterable[tuple[str, Tensor]]) -> None:
    publication.start(version)
    for part in parts:
        publication.update(part)
    publication.finish()


def test_afterwards_the_engine_is_a_fresh_engine_with_the_new_weights() -> None:
    """It has generated with the old ones before, from prompts that begin alike."""
    learner = small_model(torch.float32)
    engine = engine_of(learner)
    before = engine.generate(requests()).responses
    publication = FullPublication(engine)
    for version in (1, 4):
        publish(publication, version, weights(learnt(learner)))
        fresh = engine_of(learner)
        fresh.weight_version = version
        after = engine.generate(requests()).responses
        assert after == fresh.generate(requests()).responses
        assert [response.logprobs for response in after] != [response.logprobs for response in before]
        before = after


def test_versions_are_on_every_token() -> None:
    learner = small_model()
    engine = engine_of(learner)
    assert {response.weight_versions for response in engine.generate(requests()).responses} == {(0,) * 6}
    publish(FullPublication(engine), 7, weights(learner))
    for response in engine.generate(requests()).responses:
        assert response.weight_versions == (7,) * 6
        assert response.weight_version == 7


def test_the_engine_has_weights_of_its_own() -> None:
    learner = small_model()
    engine = engine_of(learner)
    addresses = [parameter.data_ptr() for parameter in engine.model.parameters()]
    publish(FullPublication(engine), 1, weights(learner))
    published = engine.generate(requests()).responses
    learnt(learner)
    assert engine.generate(requests()).responses == published
    assert [parameter.data_ptr() for parameter in engine.model.parameters()] == addresses


def test_weights_are_rounded_to_the_engines_dtype() -> None:
    learner = small_model(torch.float32)
    engine = NativeEngine(small_model(torch.bfloat16, seed=9), concurrency=3)
    publish(FullPublication(engine), 1, weights(learner))
    for (name, master), own in zip(weights(learner), engine.model.parameters(), strict=True):
        assert own.dtype == torch.bfloat16
        assert torch.equal(own, master.to(torch.bfloat16)), name
        # To nearest: at most half a unit in the last of 8 places; truncation would reach a whole one.
        assert ((own.float() - master).abs() <= master.abs() * 2.0**-8).all()
    fresh = NativeEngine(small_model(torch.float32).to(torch.bfloat16), concurrency=3)
    fresh.weight_version = 1
    assert engine.generate(requests()).responses == fresh.generate(requests()).responses


def test_parts_may_come_in_any_order_from_a_generator() -> None:
    learner = learnt(small_model())
    engine = engine_of(small_model())
    shuffled = random.Random(3).sample(weights(learner), len(weights(learner)))
    publish(FullPublication(engine), 1, iter(shuffled[:5]), [], (pair for pair in shuffled[5:]))
    assert all(torch.equal(a, b) for a, b in zip(engine.model.parameters(), learner.parameters(), strict=True))


GATE, HEAD, NORM = "model.early_exit_gate.bias", "lm_head.weight", "model.norm.weight"


def twice(named: Named) -> Named:
    return [*named, next(pair for pair in named if pair[0] == NORM)]


def one_missing(named: Named) -> Named:
    return [pair for pair in named if pair[0] != GATE]


def renamed(named: Named) -> Named:
    return [(name.replace("lm_head", "head"), tensor) for name, tensor in named]


def transposed(named: Named) -> Named:
    return [(name, tensor.T if name == HEAD else tensor) for name, tensor in named]


def integers(named: Named) -> Named:
    return [(name, tensor.long() if name == NORM else tensor) for name, tensor in named]


FAULTS: dict[Callable[[Named], Named], list[str]] = {
    twice: [f"{NORM} came more than once"],
    one_missing: [f"{GATE} is missing"],
    renamed: ["head.weight is unknown", f"{HEAD} is missing"],
    transposed: [f"{HEAD} is [20, 29], the engine's is [29, 20]"],
    integers: [f"{NORM} is torch.int64"],
    lambda named: twice(renamed(transposed(one_missing(named)))): [
        f"{NORM} came more than once",
        "head.weight is unknown",
        f"{GATE} is missing",
        f"{HEAD} is missing",
    ],
}


@pytest.mark.parametrize("fault", FAULTS)
def test_all_faults_are_in_one_error_and_block_the_engine(fault: Callable[[Named], Named]) -> None:
    learner = learnt(small_model())
    engine = engine_of(small_model())
    publication = FullPublication(engine)
    with pytest.raises(UserError) as caught:
        publish(publication, 1, fault(weights(learner)))
    text = str(caught.value)
    assert "weight version 1" in text
    assert all(said in text for said in FAULTS[fault]), text
    assert text.count(";") == len(FAULTS[fault]) - 1
    with pytest.raises(UserError, match="version 1 failed"):
        engine.generate(requests())
    assert engine.weight_version == 0
    # Only a newer, whole update helps.
    with pytest.raises(UserError, match="version 1 cannot be published after 1"):
        publication.start(1)
    with pytest.raises(UserError, match=r"version 2: .*missing"):
        publish(publication, 2, [])
    publish(publication, 3, weights(learner))
    assert {response.weight_version for response in engine.generate(requests()).responses} == {3}


def test_nothing_is_generated_on_half_an_update() -> None:
    learner = learnt(small_model())
    engine = engine_of(small_model())
    publication = FullPublication(engine)
    publication.start(1)
    with pytest.raises(UserError, match="version 1 is not finished"):
        engine.generate(requests())
    publication.update(weights(learner)[:9])
    with pytest.raises(UserError, match="version 1 is not finished"):
        engine.generate(requests())
    publication.update(weights(learner)[9:])
    with pytest.raises(UserError, match="version 1 is not finished"):
        engine.generate([])
    publication.finish()
    engine.generate(requests())


def test_an_update_that_breaks_off_counts_for_nothing() -> None:
    learner = learnt(small_model())
    engine = engine_of(small_model())
    publication = FullPublication(engine)

    def broken() -> Iterator[tuple[str, Tensor]]:
        yield from weights(learner)[:9]
        raise OSError("the learner went away")

    publication.start(1)
    with pytest.raises(OSError, match="went away"):
        publication.update(broken())
    with pytest.raises(UserError, match="version 1 is not finished"):
        engine.generate(requests())
    publication.start(2)  # what came before has to come again
    publication.update(weights(learner)[9:])
    with pytest.raises(UserError, match=r"embed_tokens\.weight is missing"):
        publication.finish()
    publish(publication, 3, weights(learner))
    engine.generate(requests())


@pytest.mark.parametrize("version", [5, 4, 0, -1])
def test_versions_only_grow(version: int) -> None:
    learner = small_model()
    engine = engine_of(learner)
    publish(FullPublication(engine), 5, weights(learner))
    for publication in (FullPublication(engine), FullPublication(engine)):
        with pytest.raises(UserError, match=f"weight version {version} cannot be published after 5"):
            publication.start(version)
    engine.generate(requests())  # a refused start changes nothing


def test_an_update_has_to_be_open() -> None:
    publication = FullPublication(engine_of(small_model()))
    for act in (lambda: publication.update([]), publication.finish):
        with pytest.raises(UserError, match="no update of the weights is open"):
            act()
    publish(publication, 1, weights(small_model()))
    with pytest.raises(UserError, match="no update of the weights is open"):
        publication.update(weights(small_model()))


def test_the_learners_own_tensors_are_not_the_engines() -> None:
    learner = small_model()
    engine = NativeEngine(learner, concurrency=2)
    with pytest.raises(UserError, match=r"lm_head\.weight is the engine's own tensor"):
        publish(FullPublication(engine), 1, weights(learner))


def test_weights_do_not_change_under_a_running_generation() -> None:
    learner = small_model()
    refused: list[str] = []

    @contextmanager
    def publishing(phase: str) -> Iterator[None]:
        with pytest.raises(UserError) as caught:
            publication.start(1)
        refused.append(str(caught.value))
        yield

    engine = NativeEngine(copy.deepcopy(learner), concurrency=2, on_phase=publishing)
    publication = FullPublication(engine)
    engine.generate(requests())
    assert set(refused) == {"weight version 1 cannot be published while the engine generates"}
    publish(publication, 1, weights(learner))


def test_bytes_of_an_update_are_those_read_and_those_written() -> None:
    learner = small_model(torch.float32)
    publication = FullPublication(NativeEngine(small_model(torch.bfloat16), concurrency=1))
    elements = sum(parameter.numel() for parameter in learner.parameters())
    for version in (1, 2):
        publish(publication, version, weights(learner)[:4], weights(learner)[4:])
        assert publication.bytes_moved == (4 + 2) * elements
