"""Readout tile by tile against the whole vocabulary: values, gradients, what is kept, and what may not happen."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from learner.plain_learner import ragged_responses
from learner.test_replay import with_depths
from measure.storage_counter import StorageCounter
from models.small import small_model
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from scalerlt.learner.batching import pack
from scalerlt.learner.checkpoint import LayerCheckpoint, LoopCheckpoint, NoCheckpoint
from scalerlt.learner.grpo import Grpo
from scalerlt.learner.logprobs import logprobs, loop_logprobs, response_logprobs
from scalerlt.learner.optimizer import ActorOptimizer, OptimizerSettings, freeze_exit_gate
from scalerlt.learner.readout import FullReadout, Reference, TiledReadout, tiled_readout
from scalerlt.learner.rltt import Rltt
from scalerlt.learner.step import ActorUpdate
from scalerlt.measure.saved_tensors import SavedTensors


class Head(nn.Module):
    """An output head and nothing else."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.lm_head = nn.Linear(*weight.t().shape, bias=False, dtype=weight.dtype)
        self.lm_head.weight = nn.Parameter(weight)

    def logits(self, h: Tensor) -> Tensor:
        return self.lm_head(h)


def draw(*shape: int, seed: int = 0, scale: float = 1.0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(*shape, generator=generator, dtype=torch.float64)).to(dtype)


def operands(rows: int, width: int, vocabulary: int, *, scale: float = 1.0, dtype: torch.dtype = torch.float64):
    hidden = draw(rows, width, seed=1, dtype=dtype).requires_grad_()
    weight = draw(vocabulary, width, seed=2, scale=scale, dtype=dtype).requires_grad_()
    targets = torch.randint(vocabulary, (rows,), generator=torch.Generator().manual_seed(3))
    return hidden, weight, targets


def whole(hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float, reference: Reference | None = None):
    """Log-prob, entropy and divergence by their formulas over the whole vocabulary."""
    logp = torch.log_softmax(hidden @ weight.t() / temperature, -1)
    values = [logp.gather(-1, targets[:, None]).squeeze(-1), -(logp.exp() * logp).sum(-1)]
    if reference is not None:
        logq = torch.log_softmax(reference.hidden @ reference.weight.t() / temperature, -1)
        values.append((logp.exp() * (logp - logq)).sum(-1))
    return values


@settings(max_examples=120, deadline=None)
@given(
    rows=st.integers(0, 7),
    width=st.integers(1, 5),
    vocabulary=st.integers(1, 23),
    tile=st.integers(1, 30),
    temperature=st.floats(0.05, 5),
    scale=st.sampled_from([0.01, 1.0, 20.0]),
    masked=st.integers(0, 127),
)
def test_values_and_gradients_are_those_of_the_whole_vocabulary(
    rows: int, width: int, vocabulary: int, tile: int, temperature: float, scale: float, masked: int
):
    hidden, weight, targets = operands(rows, width, vocabulary, scale=scale)
    reference = Reference(draw(rows, 3, seed=5), draw(vocabulary, 3, seed=6, scale=0.3))
    mask = torch.tensor([float(masked >> row & 1) for row in range(rows)], dtype=torch.float64)
    upstream = [draw(rows, seed=7) * mask, draw(rows, seed=8), draw(rows, seed=9)]
    expected = whole(hidden, weight, targets, temperature, reference)
    found = tiled_readout(
        hidden, weight, targets, temperature=temperature, tile=tile, entropy=True, reference=reference
    )
    # log p - log q, and with it the divergence, grows with the logits.
    size = 1 + max((value.abs().max().item() for value in expected if rows), default=0)
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-12, atol=1e-12 * size)
    ours, theirs = (torch.autograd.grad(values, (hidden, weight), upstream) for values in (found, expected))
    for one, other in zip(ours, theirs, strict=True):
        assert torch.allclose(one, other, rtol=1e-12, atol=1e-12 * size * (1 + scale) / temperature)


@pytest.mark.parametrize("only", ["logprobs", "entropy", "kl"])
def test_each_output_has_its_own_gradient(only: str):
    hidden, weight, targets = operands(4, 3, 11)
    reference = Reference(draw(4, 3, seed=5), draw(11, 3, seed=6))

    def one(hidden: Tensor, weight: Tensor) -> Tensor:
        found = tiled_readout(hidden, weight, targets, temperature=0.7, tile=4, entropy=True, reference=reference)
        return getattr(found, only)

    assert torch.autograd.gradcheck(one, (hidden, weight))


def test_what_is_not_wanted_is_not_there():
    found = tiled_readout(*operands(2, 3, 5), temperature=1.0, tile=2)
    assert found.entropy is None and found.kl is None
    assert tiled_readout(*operands(2, 3, 5), temperature=1.0, tile=2, entropy=True).entropy is not None


def test_the_divergence_to_itself_is_zero_and_to_others_it_is_not():
    hidden, weight, targets = operands(6, 4, 50)
    reference = Reference(hidden.detach(), weight.detach())
    same = tiled_readout(hidden, weight, targets, temperature=0.8, tile=7, reference=reference)
    assert same.kl is not None and same.kl.abs().max() < 1e-14
    other = tiled_readout(hidden, 2 * weight, targets, temperature=0.8, tile=7, reference=reference)
    assert other.kl is not None and other.kl.min() > 1e-3


def read(readout, hidden: Tensor, weight: Tensor, targets: Tensor, upstream: Tensor, temperature: float = 0.9):
    """Log-probs, and the gradients of hidden states and output head."""
    model, leaf = Head(weight.detach().clone()), hidden.detach().clone().requires_grad_()
    found = readout(model, leaf, targets, temperature)
    found.backward(upstream)
    return found.detach(), leaf.grad, model.lm_head.weight.grad


@pytest.mark.parametrize(("rows", "width", "vocabulary"), [(33, 16, 1000), (64, 64, 3001)])
@pytest.mark.parametrize("scale", [0.1, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_narrower_numbers_are_about_as_near_to_fp64_as_those_of_the_whole_vocabulary(
    rows: int, width: int, vocabulary: int, scale: float, dtype: torch.dtype
):
    """Either rounds in its own places: in bf16 a tile's share of a gradient once, and once more the sum of them."""
    hidden, weight, targets = operands(rows, width, vocabulary, scale=scale, dtype=dtype)
    upstream = draw(rows, seed=4, dtype=torch.float32)
    exact = read(FullReadout(), hidden.double(), weight.double(), targets, upstream.double())
    full = read(FullReadout(), hidden, weight, targets, upstream)
    tiled = read(TiledReadout(256), hidden, weight, targets, upstream)
    assert tiled[0].dtype == torch.float32 and tiled[1].dtype == tiled[2].dtype == dtype
    for ours, theirs, true in zip(tiled, full, exact, strict=True):
        near, far = ((found.double() - true).norm() / true.norm() for found in (ours, theirs))
        assert near <= 1.5 * far + 4 * torch.finfo(torch.float32).eps


def test_in_bf16_one_tile_gives_the_bits_of_the_whole_vocabulary():
    hidden, weight, targets = operands(16, 8, 100, dtype=torch.bfloat16)
    upstream = draw(16, seed=4, dtype=torch.float32)
    full = read(FullReadout(), hidden, weight, targets, upstream)
    tiled = read(TiledReadout(100), hidden, weight, targets, upstream)
    assert torch.allclose(tiled[0], full[0], rtol=0, atol=2e-6)  # the logits are the same; their sum is in fp32
    for ours, theirs in zip(tiled[1:], full[1:], strict=True):
        assert torch.allclose(ours, theirs, rtol=2**-7, atol=1e-3 * float(theirs.abs().max()))


def test_a_nearly_certain_token_keeps_its_small_gradient():
    """1 - p is formed before it is rounded: the gradient of a likely token is small, not zero and not noise."""
    weight = torch.tensor([[6.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    hidden, upstream = torch.tensor([[1.0, 0.5]]), torch.ones(1)
    exact = read(FullReadout(), hidden.double(), weight.double(), torch.tensor([0]), upstream.double(), 1.0)
    found = read(TiledReadout(2), hidden.bfloat16(), weight.bfloat16(), torch.tensor([0]), upstream, 1.0)
    for ours, true in zip(found[1:], exact[1:], strict=True):
        assert torch.allclose(ours.double(), true, rtol=2**-6, atol=1e-6)


def minus_infinity(rows: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    """A head of 12 tokens that gives the first five, and the last, a logit of minus infinity."""
    hidden = torch.ones(rows, 2, dtype=torch.float64, requires_grad=True)
    weight = draw(12, 2, seed=2)
    weight[[0, 1, 2, 3, 4, 11], 0] = -math.inf
    return hidden, weight, torch.tensor([6, 0, 11][:rows])


@pytest.mark.parametrize("tile", [1, 2, 4, 5, 7, 12])
def test_minus_infinity_never_becomes_nan(tile: int):
    hidden, weight, targets = minus_infinity()
    reference = Reference(hidden.detach(), weight.clone())
    found = tiled_readout(hidden, weight, targets, temperature=0.5, tile=tile, entropy=True, reference=reference)
    finite = torch.log_softmax(hidden[0].detach() @ weight[5:11].t() / 0.5, -1)
    assert found.logprobs.tolist() == pytest.approx([finite[1].item(), -math.inf, -math.inf])
    assert found.entropy is not None and found.kl is not None
    assert torch.allclose(found.entropy, -(finite.exp() * finite).sum())
    assert torch.equal(found.kl, torch.zeros(3, dtype=torch.float64))

    leaf = weight.clone().requires_grad_()
    values = tiled_readout(
        hidden.detach(), leaf, targets, temperature=0.5, tile=tile, entropy=True, reference=reference
    )
    (gradient,) = torch.autograd.grad(values, leaf, [torch.ones(3, dtype=torch.float64)] * 3)
    assert gradient.isfinite().all()
    assert gradient[[1, 2, 3, 4]].eq(0).all()


def test_the_divergence_from_what_the_reference_never_says_is_infinite():
    hidden, weight, targets = minus_infinity()
    reference = Reference(hidden.detach(), weight)
    found = tiled_readout(hidden, draw(12, 2, seed=2), targets, temperature=1.0, tile=4, reference=reference)
    assert found.kl is not None and found.kl.eq(math.inf).all()
    (gradient,) = torch.autograd.grad(found.logprobs.sum(), hidden)  # the divergence, not asked for, leaves no trace
    assert gradient.isfinite().all()


@pytest.mark.parametrize("tile", [1, 4, 100])
def test_no_rows_have_no_log_probs_and_zero_gradient(tile: int):
    hidden, weight, targets = operands(0, 3, 9)
    found = tiled_readout(hidden, weight, targets, temperature=1.0, tile=tile)
    assert found.logprobs.shape == (0,)
    gradients = torch.autograd.grad(found.logprobs.sum(), (hidden, weight))
    assert gradients[0].shape == (0, 3)
    assert torch.equal(gradients[1], torch.zeros(9, 3, dtype=torch.float64))


@pytest.mark.parametrize("outside", [-1, 9])
def test_a_target_outside_the_vocabulary_is_refused(outside: int):
    hidden, weight, _ = operands(2, 3, 9)
    with pytest.raises(IndexError, match="outside the vocabulary of 9"):
        tiled_readout(hidden, weight, torch.tensor([0, outside]), temperature=1.0, tile=4)


@pytest.mark.parametrize("changed", ["hidden", "weight", "targets"])
@pytest.mark.parametrize("readout", [FullReadout(), TiledReadout(4)])
def test_what_changed_since_the_forward_pass_raises_before_any_gradient(readout, changed: str):
    hidden, weight, targets = operands(3, 2, 9)
    model = Head(weight.detach())
    states = hidden * 1.0
    found = readout(model, states, targets, 1.0)
    with torch.no_grad():
        {"hidden": states, "weight": model.lm_head.weight, "targets": targets}[changed].add_(1).remainder_(9)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        found.sum().backward()
    assert hidden.grad is None and model.lm_head.weight.grad is None


def test_the_gradient_cannot_be_differentiated():
    hidden, weight, targets = operands(3, 2, 9)
    found = tiled_readout(hidden, weight, targets, temperature=1.0, tile=4)
    with pytest.raises(RuntimeError, match="first derivatives only"):
        torch.autograd.grad(found.logprobs.sum(), hidden, create_graph=True)


def products(monkeypatch: pytest.MonkeyPatch, hidden: Tensor, weight: Tensor, targets: Tensor) -> int:
    """Tiles that the backward pass multiplies by hidden states, for the gradient of the output head."""
    calls: list[tuple[int, ...]] = []
    honest = torch.mm

    def counted(left: Tensor, right: Tensor, *, out: Tensor) -> Tensor:
        calls.append(tuple(out.shape))
        return honest(left, right, out=out)

    found = tiled_readout(hidden, weight, targets, temperature=1.0, tile=4).logprobs
    monkeypatch.setattr(torch, "mm", counted)
    found.sum().backward()
    return sum(shape[1] == hidden.shape[1] for shape in calls)


def test_a_frozen_head_gets_no_gradient_and_none_is_computed(monkeypatch: pytest.MonkeyPatch):
    hidden, weight, targets = operands(3, 7, 9)
    assert products(monkeypatch, hidden, weight, targets) == 3
    frozen = weight.detach()
    monkeypatch.undo()
    fresh = hidden.detach().requires_grad_()
    assert products(monkeypatch, fresh, frozen, targets) == 0
    assert frozen.grad is None
    assert torch.allclose(fresh.grad, hidden.grad)


def test_hidden_states_without_gradient_leave_the_head_its_own():
    hidden, weight, targets = operands(3, 7, 9)
    (expected,) = torch.autograd.grad(whole(hidden, weight, targets, 1.0)[0].sum(), weight)
    tiled_readout(hidden.detach(), weight, targets, temperature=1.0, tile=4).logprobs.sum().backward()
    assert hidden.grad is None
    assert torch.allclose(weight.grad, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_two_numbers_for_each_row_are_kept_beside_the_operands(dtype: torch.dtype):
    hidden, weight, targets = operands(64, 8, 4096, dtype=dtype)
    model, kept = Head(weight.detach()), {}
    for name, readout in (("full", FullReadout()), ("tiled", TiledReadout(128))):
        with SavedTensors(exclude=[hidden, model.lm_head.weight]) as saved:
            readout(model, hidden, targets, 1.0).sum().backward()
        kept[name] = saved.peak_bytes
    assert kept["tiled"] == targets.nbytes + 2 * 64 * 4
    assert kept["full"] >= 64 * 4096 * 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_beyond_operands_and_gradients_less_than_a_twentieth_is_live(dtype: torch.dtype):
    hidden, weight, targets = operands(64, 8, 49_152, dtype=dtype)
    model, upstream = Head(weight.detach()), torch.ones(64)
    live = {}
    for name, readout in (("full", FullReadout()), ("tiled", TiledReadout())):
        hidden.grad = model.lm_head.weight.grad = None
        with StorageCounter() as counter:
            readout(model, hidden, targets, 1.0).backward(upstream)
        live[name] = counter.peak - hidden.nbytes - weight.nbytes
    assert live["tiled"] < 0.05 * live["full"]


def answers(depths: bool):
    """Ragged responses, one of them fully masked and one partly, with what ratios and penalties need."""
    drawn = ragged_responses(lengths=(1, 7, 2, 12))
    masks = [None, [True, False] * 3 + [True], [False, False], None]
    drawn = [replace(response, mask=mask) for response, mask in zip(drawn, masks, strict=True)]
    if depths:
        drawn = with_depths(drawn)
    return [
        replace(
            response,
            rollout_logprobs=[-3.0 - 0.01 * t for t in range(len(response.response_tokens))],
            ref_logprobs=[-3.1 + 0.02 * t for t in range(len(response.response_tokens))],
        )
        for response in drawn
    ]


def make_learner(readout, *, objective, kind: str, schedule, tokens: int = 1000) -> ActorUpdate:
    model = small_model()
    freeze_exit_gate(model)
    return ActorUpdate(
        model,
        ActorOptimizer(model, OptimizerSettings(name="adamw", learning_rate=1e-3)),
        schedule=schedule,
        reduction="response_mean",
        temperature=0.7,
        microbatch_tokens=tokens,
        objective=objective,
        logprob=kind,
        readout=readout,
    )


def update(readout, *, kind: str, **options) -> tuple[float, dict[str, Tensor]]:
    """Loss and gradients of one optimizer step in fp64."""
    learner = make_learner(readout, kind=kind, **options)
    result = learner.backward(answers(depths=kind != "dense"))
    return result.loss, {name: p.grad for name, p in learner.model.named_parameters() if p.grad is not None}


GRPO = Grpo(clip_low=0.2, clip_high=0.3, kl_coef=0.1)
RLTT = Rltt(alpha=1.0, kl_coef=0.1)


@pytest.mark.parametrize("schedule", [NoCheckpoint, LayerCheckpoint, LoopCheckpoint])
@pytest.mark.parametrize(("objective", "kind"), [(GRPO, "dense"), (GRPO, "replay"), (GRPO, "hybrid"), (RLTT, "dense")])
def test_an_actor_update_is_the_same(objective, kind: str, schedule):
    loss, expected = update(FullReadout(), objective=objective, kind=kind, schedule=NoCheckpoint())
    found_loss, found = update(TiledReadout(5), objective=objective, kind=kind, schedule=schedule(), tokens=14)
    assert found_loss == pytest.approx(loss, abs=1e-12)
    assert found.keys() == expected.keys() and len(found) > 10
    for name, gradient in expected.items():
        assert gradient.abs().max() > 0
        assert float((found[name] - gradient).abs().max()) < 1e-12


@pytest.mark.parametrize("kind", ["dense", "replay", "hybrid"])
def test_log_probs_of_a_batch_are_the_same(kind: str):
    model, batch = small_model(), pack(answers(depths=True))
    full = logprobs(kind, model, batch, temperature=0.7)
    tiled = logprobs(kind, model, batch, temperature=0.7, readout=TiledReadout(5))
    assert torch.allclose(tiled, full, rtol=0, atol=1e-12) and not torch.equal(tiled, torch.zeros_like(tiled))
    evaluated = response_logprobs(
        kind, model, answers(depths=True), temperature=0.7, microbatch_tokens=20, readout=TiledReadout(5)
    )
    for row, response in zip(full, evaluated, strict=True):
        assert response == pytest.approx(row[: len(response)].tolist(), abs=1e-12)


def test_log_probs_of_all_loops_are_the_same():
    model, batch = small_model(), pack(answers(depths=False))
    full = loop_logprobs(model, batch, temperature=0.7).logprobs
    tiled = loop_logprobs(model, batch, temperature=0.7, readout=TiledReadout(5)).logprobs
    assert torch.allclose(tiled, full, rtol=0, atol=1e-12)


def test_the_full_readout_is_log_softmax_bit_for_bit():
    hidden, weight, targets = operands(5, 4, 31, dtype=torch.bfloat16)
    found = FullReadout()(Head(weight.detach()), hidden, targets, 0.7)
    expected = torch.log_softmax((hidden @ weight.t()).float() / 0.7, -1)[torch.arange(5), targets]
    assert torch.equal(found, expected)


class HeadReads(TorchDispatchMode):
    """Bytes of the output head that matrix products had as operands."""

    def __init__(self, head: Tensor) -> None:
        super().__init__()
        self._storage, self.nbytes = head.untyped_storage()._cdata, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket.__name__ in ("mm", "addmm", "addmm_"):
            self.nbytes += sum(t.nbytes for t in args if t.untyped_storage()._cdata == self._storage)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("objective", "kind", "evaluations"), [(GRPO, "dense", 1), (GRPO, "hybrid", 2), (RLTT, "dense", 1)]
)
def test_traffic_counts_each_read_of_the_head(objective, kind: str, evaluations: int):
    learner = make_learner(TiledReadout(5), objective=objective, kind=kind, schedule=NoCheckpoint(), tokens=14)
    head = learner.model.lm_head.weight
    with HeadReads(head) as reads:
        result = learner.step(answers(depths=True))
    loops = 3 if objective is RLTT else 1
    assert learner.traffic(result).readout == reads.nbytes
    assert reads.nbytes == result.microbatches * loops * (evaluations + 2) * head.nbytes
