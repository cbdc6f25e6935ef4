"""The Ouro looped transformer (arXiv 2510.25741): one stack of L layers, run K times per token.

A loop is the L layers followed by the final norm; the normed state is the loop's result, the input of the next loop,
of the exit gate and of the output head. Layers are "sandwiched": a norm before each branch and one on its output,
before the residual sum. Module and parameter names are those of the published checkpoints. Without the norms on the
outputs (`OuroConfig.sandwich_norms`), with one loop and no exit gate, it is a plain transformer of Llama's kind.

RMS statistics, RoPE tables, softmax and exit gate are computed in the internal dtype (`internal_dtype`): fp32 for
fp16, bf16 and fp32, fp64 for fp64. Sequences are padded on the right; what stands in padded rows means nothing.
"""

from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from scalerlt.errors import UserError
from scalerlt.models.config import OuroConfig
from scalerlt.numerics.precision import internal_dtype


class Attend(Protocol):
    """Attention of the given rows, the seam for K/V caches and masks."""

    def __call__(self, loop: int, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The attention output of rows at `loop` (from 0) and `layer` (from 0).

        Args:
            loop: the loop that is running, from 0.
            layer: the physical layer, from 0.
            q: [B, T, heads, head_dim], rotated, not scaled; B, T stand for the rows as the caller lays them out.
            k: [B, T, kv_heads, head_dim], rotated.
            v: [B, T, kv_heads, head_dim].

        Returns:
            [B, T, heads, head_dim].
        """


def causal_attention(loop: int, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Each row attends to itself and to the rows before it in its sequence; the scale is head_dim^-0.5."""
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2)


def rotary(positions: Tensor, head_dim: int, theta: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """RoPE tables of `positions`, for `rotate`: angle j of position p is p * theta^(-2j / head_dim).

    They are computed anew from integers in the internal dtype, so no conversion of the model can have rounded them.

    Args:
        positions: integers, any shape.
        head_dim: width of a head, even.
        theta: base of the frequencies.
        dtype: activation dtype, of the result.

    Returns:
        cos and sin, each positions' shape + [1, head_dim]; sin's first half is negated, as `rotate` wants it.
    """
    internal = internal_dtype(dtype)
    exponents = torch.arange(0, head_dim, 2, dtype=internal, device=positions.device) / head_dim
    angles = positions.to(internal)[..., None, None] * (1.0 / theta**exponents)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, cos), -1).to(dtype), torch.cat((-sin, sin), -1).to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE with split halves: element j is paired with element j + head_dim / 2; x is [..., heads, head_dim]."""
    return x * cos + x.roll(x.shape[-1] // 2, -1) * sin


def exit_distribution(gates: Tensor) -> Tensor:
    """Probability of each exit depth, from the gate logits of all K loops (Ouro, arXiv 2510.25741).

    lambda_d = sigmoid(g_d); p_d = lambda_d * prod_{s<d} (1 - lambda_s) for d < K; p_K is what remains, so the last
    gate is ignored and the sum is 1.

    Args:
        gates: [..., K] logits in the internal dtype, as `OuroForCausalLM.exit_gate` gives them, loops last.

    Returns:
        [..., K] probabilities, same dtype.
    """
    survival = torch.sigmoid(-gates[..., :-1]).cumprod(-1)
    reached = torch.cat((torch.ones_like(gates[..., :1]), survival), -1)
    return torch.cat((reached[..., :-1] * torch.sigmoid(gates[..., :-1]), reached[..., -1:]), -1)


class RMSNorm(nn.Module):
    """w * cast(x / sqrt(mean(x^2) + eps)): normalised in the internal dtype, cast back, then weighted."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """[..., size] to [..., size]."""
        return functional.rms_norm(x, self.weight.shape, None, self.eps) * self.weight


class Linear(nn.Linear):
    """A projection without torch's initialisation: `checkpoint.build` and `checkpoint.load_hf` fill it.

    That would draw from the global random state and, on the meta device, import torch's compiler, which takes seconds.
    """

    def reset_parameters(self) -> None:
        """Nothing."""


class Embedding(nn.Embedding):
    """An embedding that is filled as `Linear` is."""

    def reset_parameters(self) -> None:
        """Nothing."""


class Attention(nn.Module):
    """Multi-head attention with grouped K/V heads and rotary positions; no biases."""

    def __init__(self, config: OuroConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        queries = config.num_attention_heads * config.head_dim
        keys = config.num_key_value_heads * config.head_dim
        self.q_proj = Linear(config.hidden_size, queries, bias=False)
        self.k_proj = Linear(config.hidden_size, keys, bias=False)
        self.v_proj = Linear(config.hidden_size, keys, bias=False)
        self.o_proj = Linear(queries, config.hidden_size, bias=False)

    def project(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[..., H] to rotated queries [..., heads, head_dim], rotated keys and values [..., kv_heads, head_dim]."""
        heads = (*x.shape[:-1], -1, self.head_dim)
        q = rotate(self.q_proj(x).view(heads), cos, sin)
        k = rotate(self.k_proj(x).view(heads), cos, sin)
        return q, k, self.v_proj(x).view(heads)


class MLP(nn.Module):
    """SwiGLU: down(silu(gate(x)) * up(x)); no biases."""

    def __init__(self, config: OuroConfig) -> None:
        super().__init__()
        self.gate_proj = Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[..., H] to [..., H]."""
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


def _norm_after(config: OuroConfig) -> nn.Module:
    """The norm of what a branch adds."""
    return RMSNorm(config.hidden_size, config.rms_norm_eps) if config.sandwich_norms else nn.Identity()


class Layer(nn.Module):
    """One physical layer with its four norms; a plain transformer's has only the two before the branches."""

    def __init__(self, config: OuroConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = MLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.input_layernorm_2 = _norm_after(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm_2 = _norm_after(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, attend: Callable[..., Tensor]) -> Tensor:
        """[..., H] to [..., H]; `attend(q, k, v)` is the attention proper."""
        return self.finish(x, attend(*self.project(x, cos, sin)))

    def project(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The layer up to attention: q, k and v as `Attention.project` gives them."""
        return self.self_attn.project(self.input_layernorm(x), cos, sin)

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """The layer from attention's output [..., heads, head_dim] on; x [..., H] is its input."""
        x = x + self.input_layernorm_2(self.self_attn.o_proj(attended.flatten(-2)))
        return x + self.post_attention_layernorm_2(self.mlp(self.post_attention_layernorm(x)))


class OuroModel(nn.Module):
    """Embedding, the one physical copy of the layers, the final norm of every loop, the exit gate."""

    def __init__(self, config: OuroConfig) -> None:
        super().__init__()
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList([Layer(config) for _ in range(config.num_hidden_layers)])
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        # None: a plain transformer, which has one loop and nowhere else to stop
        self.early_exit_gate = Linear(config.hidden_size, 1) if config.sandwich_norms else None


class OuroForCausalLM(nn.Module):
    """An Ouro language model with uninitialised weights; `checkpoint.build` and `checkpoint.load_hf` fill them.

    `forward` is made of `embed`, `rotary` and K times `loop`, which may also be called one by one.
    """

    def __init__(self, config: OuroConfig, *, dtype: torch.dtype, device: torch.device | str) -> None:
        super().__init__()
        self.config = config
        with torch.device("meta"):
            self.model = OuroModel(config)
            self.lm_head = Linear(config.hidden_size, config.vocab_size, bias=False)
        self.to(dtype).to_empty(device=device)

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of parameters and activations."""
        return self.lm_head.weight.dtype

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return self.lm_head.weight.device

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor | None = None,
        *,
        attend: Attend | None = None,
    ) -> list[Tensor]:
        """All K loops over the given tokens.

        Args:
            input_ids: [B, T] token ids.
            positions: [B, T] positions of the tokens in their sequences; None: 0 .. T-1 in each row.
            attend: attention of the rows; None: causal among the given tokens.

        Returns:
            The normed hidden states h_1 .. h_K, each [B, T, H].
        """
        cos, sin = self.rotary(
            torch.arange(input_ids.shape[1], device=input_ids.device) if positions is None else positions
        )
        x = self.embed(input_ids)
        states = []
        for loop in range(self.config.total_ut_steps):
            x = self.loop(loop, x, cos, sin, attend=attend)
            states.append(x)
        return states

    def embed(self, input_ids: Tensor) -> Tensor:
        """Token ids [B, T] to the input of the first loop, [B, T, H]."""
        return self.model.embed_tokens(input_ids)

    def rotary(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """The RoPE tables of `positions`, which all loops share; see the function `rotary`."""
        return rotary(positions, self.config.head_dim, self.config.rope_theta, self.dtype)

    def loop(
        self,
        loop: int,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        *,
        attend: Attend | None = None,
    ) -> Tensor:
        """Loop number `loop`, from 0: the previous loop's result (or the embedding) [B, T, H] to h [B, T, H]."""
        for index, layer in enumerate(self.model.layers):
            x = layer(x, cos, sin, partial(attend or causal_attention, loop, index))
        return self.model.norm(x)

    def logits(self, h: Tensor) -> Tensor:
        """Next-token logits [..., V] of a loop's hidden states [..., H], in the model's dtype."""
        return self.lm_head(h)

    def exit_gate(self, h: Tensor) -> Tensor:
        """Exit gate logits [...] of a loop's hidden states [..., H], computed and returned in the internal dtype.

        Raises:
            UserError: a plain transformer has no exit gate.
        """
        gate, internal = self.model.early_exit_gate, internal_dtype(h.dtype)
        if gate is None:
            raise UserError("a plain transformer has one loop and no exit gate")
        return functional.linear(h.to(internal), gate.weight.to(internal), gate.bias.to(internal)).squeeze(-1)
