"""The shape of an Ouro model (arXiv 2510.25741), read from and written to a Hugging Face config.json. No torch.

A plain transformer of Llama's kind is one whose layers run once and have no norm on what their branches add.
"""

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
        "pretraining_tp",
        "torch_dtype",
        "transformers_version",
        "use_cache",
    }
)
# Keys that would change the architecture: the values that leave it as it is, and those values in words.
_FIXED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "model_type": (lambda value: value in ("ouro", "llama"), "'ouro' or 'llama'"),
    "mlp_bias": (lambda value: not value, "false"),
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
_WITH_DEFAULT = (*_TOKENS, "initializer_range", "sandwich_norms")


@dataclass(frozen=True, kw_only=True)
class OuroConfig:
    """Sizes and constants of one looped transformer. Field names are those of the published config.json.

    Attributes:
        num_hidden_layers: L, the physical layers.
        total_ut_steps: K, the loops through them; full depth.
        num_key_value_heads: K/V heads; each serves num_attention_heads / num_key_value_heads query heads.
        max_position_embeddings: most positions a sequence may have, prompt and response together.
        initializer_range: standard deviation of random initial weights.
        sandwich_norms: whether a layer also norms what each of its branches adds to the residual stream, as Ouro's do.
            Without, this is a plain transformer (Llama's): it has one loop and no exit gate.
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
    sandwich_norms: bool = True
    bos_token_id: int | None = 0
    eos_token_id: int | None = 0
    pad_token_id: int | None = 0

    def __post_init__(self) -> None:
        if problems := _problems(asdict(self)):
            raise UserError("model: " + "; ".join(problems))

    @classmethod
    def from_hf(cls, values: Mapping[str, Any], where: str) -> "OuroConfig":
        """The shape that a Hugging Face config.json of model type `ouro` or `llama` describes.

        Args:
            values: the parsed file. `head_dim` falls back to hidden_size / num_attention_heads,
                `num_key_value_heads` to num_attention_heads, `total_ut_steps` to 4 (of `llama` it is 1); `rope_theta`
                may stand under `rope_parameters`. No other default is assumed.
            where: what to call the file in an error.

        Raises:
            UserError: one, naming every key that is missing, impossible, unknown, or asks for another architecture.
        """
        given = dict(values)
        problems = _fold_rope_parameters(given)
        if given.get("model_type") == "llama":
            problems += _of_llama(given)
        for key, (is_plain, plain) in _FIXED.items():
            if key in given and not is_plain(value := given.pop(key)):
                problems.append(f"{key} is {value!r}: only {plain} is supported")
        sizes = {key: given.pop(key) for key in [field.name for field in fields(cls)] if key in given}
        _fill_fallbacks(sizes)
        missing = [f.name for f in fields(cls) if f.name not in sizes and f.name not in _WITH_DEFAULT]
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
        common = {"hidden_act": "silu", "tie_word_embeddings": False, "attention_dropout": 0.0, "rope_scaling": None}
        sizes = asdict(self)
        del sizes["sandwich_norms"]
        if not self.sandwich_norms:
            del sizes["total_ut_steps"]
            return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **sizes, **common, "use_cache": True}
        return {
            "architectures": ["OuroForCausalLM"],
            "model_type": "ouro",
            **sizes,
            **common,
            "use_sliding_window": False,
            "sliding_window": None,
            "layer_types": ["full_attention"] * self.num_hidden_layers,
            "early_exit_threshold": 1.0,
            "use_cache": True,
        }

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of each tensor of a checkpoint, in the order of the forward pass.

        There are 11 L + 5; 9 L + 3 of a plain transformer.
        """
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
        gate = {"model.early_exit_gate.weight": (1, hidden), "model.early_exit_gate.bias": (1,)}
        if not self.sandwich_norms:
            layer = {name: shape for name, shape in layer.items() if not name.endswith("_2")}
            gate = {}
        return {
            "model.embed_tokens.weight": (self.vocab_size, hidden),
            **{
                f"model.layers.{index}.{name}.weight": shape
                for index in range(self.num_hidden_layers)
                for name, shape in layer.items()
            },
            "model.norm.weight": (hidden,),
            **gate,
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


def _of_llama(given: dict[str, Any]) -> list[str]:
    """Says of a plain transformer what it is as a looped one; returns what is wrong."""
    foreign = [key for key in ("total_ut_steps", "sandwich_norms") if key in given]
    problems = [f"{key} is not a key of model_type llama" for key in foreign]
    if given.pop("attention_bias", False):
        problems.append("attention_bias is true: only false is supported")
    given["total_ut_steps"], given["sandwich_norms"] = 1, False
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
        elif name == "sandwich_norms":
            if not isinstance(value, bool):
                problems.append(f"sandwich_norms is {value!r}: it has to be true or false")
            elif not value and sizes.get("total_ut_steps") != 1:
                problems.append("sandwich_norms is false: a plain transformer has one loop, total_ut_steps 1")
        elif not _is_count(value):
            problems.append(f"{name} is {value!r}: it has to be a positive integer")
    heads, key_heads = sizes.get("num_attention_heads"), sizes.get("num_key_value_heads")
    if _is_count(heads) and _is_count(key_heads) and heads % key_heads:
        problems.append(f"num_attention_heads is {heads}: it has to be a multiple of num_key_value_heads, {key_heads}")
    head_dim = sizes.get("head_dim")
    if _is_count(head_dim) and head_dim % 2:
        problems.append(f"head_dim is {head_dim}: it has to be even, RoPE rotates its halves")
    return problems
