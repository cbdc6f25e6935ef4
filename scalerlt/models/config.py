"""The shape of an Ouro model (arXiv 2510.25741), read from and written to a Hugging Face config.json. No torch."""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeGuard

from scalerlt.errors import UserError

# Keys of a published config.json that change nothing in the architecture.
_IGNORED = frozenset(
    {
        "_name_or_path",
        "architectures",
        "attention_bias",
        "auto_map",
        "dtype",
        "early_exit_threshold",
        "max_window_layers",
        "torch_dtype",
        "transformers_version",
        "use_cache",
    }
)
# Keys that would change the architecture: the values that leave it as it is, and those values in words.
_FIXED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "model_type": (lambda value: value == "ouro", "'ouro'"),
    "hidden_act": (lambda value: value == "silu", "'silu'"),
    "tie_word_embeddings": (lambda value: not value, "false (the output head is a tensor of its own)"),
    "attention_dropout": (lambda value: not value, "0"),
    "rope_scaling": (lambda value: value is None, "null"),
    "use_sliding_window": (lambda value: not value, "false"),
    "sliding_window": (lambda value: value is None, "null"),
    "early_exit_step": (lambda value: value is None, "null (depth belongs to the rollout)"),
    "layer_types": (
        lambda value: value is None or (isinstance(value, list) and set(map(str, value)) <= {"full_attention"}),
        "'full_attention' for every layer",
    ),
}
_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")
_REALS = ("rope_theta", "rms_norm_eps", "initializer_range")


@dataclass(frozen=True, kw_only=True)
class OuroConfig:
    """Sizes and constants of one looped transformer. Field names are those of the published config.json.

    Attributes:
        num_hidden_layers: L, the physical layers.
        total_ut_steps: K, the loops through them; full depth.
        num_key_value_heads: K/V heads; each serves num_attention_heads / num_key_value_heads query heads.
        max_position_embeddings: most positions a sequence may have, prompt and response together.
        initializer_range: standard deviation of random initial weights.
        bos_token_id, eos_token_id, pad_token_id: None where the model has no such token.

    Raises:
        UserError: naming every value that is impossible.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    total_ut_steps: int
    rope_theta: float
    rms_norm_eps: float
    max_position_embeddings: int
    initializer_range: float = 0.02
    bos_token_id: int | None = 0
    eos_token_id: int | None = 0
    pad_token_id: int | None = 0

    def __post_init__(self) -> None:
        if problems := _problems(asdict(self)):
            raise UserError("model: " + "; ".join(problems))

    @classmethod
    def from_hf(cls, values: Mapping[str, Any], where: str) -> "OuroConfig":
        """The shape that a Hugging Face config.json describes.

        Args:
            values: the parsed file. `head_dim` falls back to hidden_size / num_attention_heads,
                `num_key_value_heads` to num_attention_heads, `total_ut_steps` to 4; `rope_theta` may stand under
                `rope_parameters`. No other default is assumed.
            where: what to call the file in an error.

        Raises:
            UserError: one, naming every key that is missing, impossible, unknown, or asks for another architecture.
        """
        given = dict(values)
        problems = _fold_rope_parameters(given)
        for key, (is_plain, plain) in _FIXED.items():
            if key in given and not is_plain(value := given.pop(key)):
                problems.append(f"{key} is {value!r}: only {plain} is supported")
        sizes = {key: given.pop(key) for key in [field.name for field in fields(cls)] if key in given}
        _fill_fallbacks(sizes)
        missing = [f.name for f in fields(cls) if f.name not in sizes and f.name not in (*_TOKENS, _REALS[-1])]
        if missing:
            problems.append(f"missing: {', '.join(missing)}")
        problems += _problems(sizes)
        if unknown := sorted(given.keys() - _IGNORED):
            problems.append(
                f"unknown: {', '.join(unknown)} (remove what does not change the model; nothing else is supported)"
            )
        if problems:
            raise UserError(f"{where}: " + "; ".join(problems))
        return cls(**sizes)

    def to_hf(self) -> dict[str, Any]:
        """The contents of a Hugging Face config.json that `from_hf` reads back as this config."""
        return {
            "architectures": ["OuroForCausalLM"],
            "model_type": "ouro",
            **asdict(self),
            "hidden_act": "silu",
            "tie_word_embeddings": False,
            "attention_dropout": 0.0,
            "rope_scaling": None,
            "use_sliding_window": False,
            "sliding_window": None,
            "layer_types": ["full_attention"] * self.num_hidden_layers,
            "early_exit_threshold": 1.0,
            "use_cache": True,
        }

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of each of the 11 L + 5 tensors of a checkpoint, in the order of the forward pass."""
        hidden, inner = self.hidden_size, self.intermediate_size
        queries = self.num_attention_heads * self.head_dim
        keys = self.num_key_value_heads * self.head_dim
        layer = {
            "self_attn.q_proj": (queries, hidden),
            "self_attn.k_proj": (keys, hidden),
            "self_attn.v_proj": (keys, hidden),
            "self_attn.o_proj": (hidden, queries),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
            "input_layernorm": (hidden,),
            "input_layernorm_2": (hidden,),
            "post_attention_layernorm": (hidden,),
            "post_attention_layernorm_2": (hidden,),
        }
        return {
            "model.embed_tokens.weight": (self.vocab_size, hidden),
            **{
                f"model.layers.{index}.{name}.weight": shape
                for index in range(self.num_hidden_layers)
                for name, shape in layer.items()
            },
            "model.norm.weight": (hidden,),
            "model.early_exit_gate.weight": (1, hidden),
            "model.early_exit_gate.bias": (1,),
            "lm_head.weight": (self.vocab_size, hidden),
        }

    @property
    def parameter_count(self) -> int:
        """Parameters of the model; a layer counts once, however many loops run through it."""
        return sum(math.prod(shape) for shape in self.tensor_shapes().values())


def _fold_rope_parameters(given: dict[str, Any]) -> list[str]:
    """Moves `rope_parameters.rope_theta`, the spelling of transformers 5, to `rope_theta`; returns what is wrong."""
    rope = given.pop("rope_parameters", None)
    if rope is None:
        return []
    if not isinstance(rope, Mapping):
        return [f"rope_parameters is {rope!r}: it has to be a mapping with rope_theta"]
    problems = []
    if rope.get("rope_type", "default") != "default":
        problems.append(f"rope_parameters.rope_type is {rope['rope_type']!r}: only 'default' is supported")
    if unknown := sorted(rope.keys() - {"rope_type", "rope_theta"}):
        problems.append(f"unknown in rope_parameters: {', '.join(unknown)}")
    if "rope_theta" in rope:
        if given.get("rope_theta", rope["rope_theta"]) != rope["rope_theta"]:
            problems.append(
                f"rope_theta is {given['rope_theta']!r}, but rope_parameters.rope_theta is {rope['rope_theta']!r}"
            )
        given["rope_theta"] = rope["rope_theta"]
    return problems


def _fill_fallbacks(sizes: dict[str, Any]) -> None:
    heads, hidden = sizes.get("num_attention_heads"), sizes.get("hidden_size")
    if sizes.get("num_key_value_heads") is None and heads is not None:
        sizes["num_key_value_heads"] = heads
    if sizes.get("head_dim") is None and _is_count(heads) and _is_count(hidden) and hidden % heads == 0:
        sizes["head_dim"] = hidden // heads
    if sizes.get("total_ut_steps") is None:
        sizes["total_ut_steps"] = 4


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _problems(sizes: Mapping[str, Any]) -> list[str]:
    """What is impossible about those fields of an OuroConfig that are in `sizes`."""
    problems = []
    for name, value in sizes.items():
        if name in _TOKENS:
            vocabulary = sizes.get("vocab_size")
            limit = vocabulary if _is_count(vocabulary) else math.inf
            is_id = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < limit
            if value is not None and not is_id:
                problems.append(f"{name} is {value!r}: it has to be null or a token id of the vocabulary")
        elif name in _REALS:
            is_real = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not is_real or not 0 < value < math.inf:
                problems.append(f"{name} is {value!r}: it has to be a positive number")
        elif not _is_count(value):
            problems.append(f"{name} is {value!r}: it has to be a positive integer")
    heads, key_heads = sizes.get("num_attention_heads"), sizes.get("num_key_value_heads")
    if _is_count(heads) and _is_count(key_heads) and heads % key_heads:
        problems.append(f"num_attention_heads is {heads}: it has to be a multiple of num_key_value_heads, {key_heads}")
    head_dim = sizes.get("head_dim")
    if _is_count(head_dim) and head_dim % 2:
        problems.append(f"head_dim is {head_dim}: it has to be even, RoPE rotates its halves")
    return problems
