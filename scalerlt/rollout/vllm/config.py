"""The configuration of model type `ouro`, which transformers does not know."""

from dataclasses import asdict, fields
from typing import Any

from transformers import PretrainedConfig

from scalerlt.models.config import OuroConfig
from scalerlt.rollout.vllm.versions import check_installed


class OuroHFConfig(PretrainedConfig):
    """A published config.json as vLLM reads it.

    Raises:
        UserError: the version of vLLM was not tested, or the file asks for what no Ouro model is.
    """

    model_type = "ouro"

    def __init__(self, **values: Any) -> None:
        check_installed()
        # transformers makes an empty one to know what is a default
        if values.keys() >= {"vocab_size", "hidden_size"}:
            values |= asdict(OuroConfig.from_hf(_architecture(values), "config.json"))
        for name, value in values.items():
            setattr(self, name, value)
        super().__init__(**values)


def _architecture(values: dict[str, Any]) -> dict[str, Any]:
    """Without what transformers adds to any configuration."""
    shape = {field.name for field in fields(OuroConfig)}
    general = {*PretrainedConfig().to_dict(), "name_or_path"}
    return {key: value for key, value in values.items() if key in shape or key not in general}


def shape_of(config: OuroHFConfig) -> OuroConfig:
    """What the harness calls an Ouro model's shape."""
    return OuroConfig(**{field.name: getattr(config, field.name) for field in fields(OuroConfig)})
