"""Config group `model`: the looped transformer, by its Hugging Face config's names."""

from typing import TYPE_CHECKING, Annotated

from pydantic import Field, model_validator

from scalerlt.schema.fields import (
    FileInput,
    Flag,
    IdentityDefault,
    NonNegativeInt,
    NotIdentity,
    PositiveFloat,
    PositiveInt,
    Target,
)
from scalerlt.schema.registry import config_group

if TYPE_CHECKING:
    from typing import Self

    from scalerlt.schema.cell import Cell
    from scalerlt.schema.machine import Machine


@config_group("model")
class Model:
    """An Ouro-style looped language model: L physical layers, run `total_ut_steps` (K) times per token.

    Attributes:
        check: a torch-free function that looks at the weights before work starts and says what is wrong.
        weights: a Hugging Face directory (config.json, safetensors, a tokenizer), or null for random weights.
        init_seed: seed of the random weights.
        sandwich_norms: whether layers norm what their branches add, as Ouro's do; false: a plain transformer (Llama's),
            which has one loop and no exit gate.
    """

    name: str
    target: Target = Field(alias="_target_")
    check: Annotated[Target | None, Field(alias="_check_"), NotIdentity()]
    vocab_size: PositiveInt
    hidden_size: PositiveInt
    intermediate_size: PositiveInt
    num_hidden_layers: PositiveInt
    num_attention_heads: PositiveInt
    num_key_value_heads: PositiveInt
    head_dim: Annotated[PositiveInt, Field(multiple_of=2)]
    total_ut_steps: PositiveInt
    rope_theta: PositiveFloat
    rms_norm_eps: PositiveFloat
    max_position_embeddings: PositiveInt
    initializer_range: PositiveFloat
    sandwich_norms: Annotated[Flag, IdentityDefault(True)] = True
    bos_token_id: NonNegativeInt
    eos_token_id: NonNegativeInt
    pad_token_id: NonNegativeInt | None
    weights: Annotated[
        str | None, FileInput(("config.json", "*.safetensors", "*.safetensors.index.json", "*tokenizer*.json"))
    ]
    init_seed: NonNegativeInt

    @model_validator(mode="after")
    def _check(self) -> "Self":
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads={self.num_attention_heads} is not a multiple of "
                f"num_key_value_heads={self.num_key_value_heads}"
            )
        for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
            token = getattr(self, key)
            if token is not None and token >= self.vocab_size:
                raise ValueError(f"{key}={token} is outside the vocabulary of {self.vocab_size}")
        if not self.sandwich_norms and self.total_ut_steps != 1:
            raise ValueError(f"total_ut_steps={self.total_ut_steps}: a model without sandwich_norms has one loop")
        return self

    def supports(self, cell: "Cell", machine: "Machine") -> str | None:
        """The reason why a plain transformer does not serve, or None."""
        if self.sandwich_norms:
            return None
        if cell.rollout.schedule != "dense":
            return (
                f"rollout={cell.rollout.name}: model={self.name} has one loop, which no token can leave out; use "
                "rollout=dense or greedy"
            )
        if cell.algorithm.name == "rltt":
            return f"algorithm=rltt deals rewards among loops, and model={self.name} has one"
        return None
