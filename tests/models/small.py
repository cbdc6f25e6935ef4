"""A small model with everything that could go wrong in it, and its plain twin."""

import torch
from models.plain_ouro import PlainOuro

from scalerlt.models.checkpoint import build
from scalerlt.models.config import OuroConfig
from scalerlt.models.ouro import OuroForCausalLM

# Grouped K/V heads, and heads * head_dim (24) is not the hidden size.
SMALL = OuroConfig(
    vocab_size=29,
    hidden_size=20,
    intermediate_size=28,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=6,
    total_ut_steps=3,
    rope_theta=50.0,
    rms_norm_eps=1e-5,
    max_position_embeddings=64,
    initializer_range=0.5,
)


def small_model(dtype: torch.dtype = torch.float64, seed: int = 3) -> OuroForCausalLM:
    """SMALL with norms and gate bias that are not what they start as."""
    model = build(SMALL, dtype=dtype, device="cpu", seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.copy_(0.5 + torch.rand(parameter.shape, generator=generator))
        model.model.early_exit_gate.bias.fill_(0.25)
    return model


def plain_twin(model: OuroForCausalLM) -> PlainOuro:
    config = model.config
    return PlainOuro(
        weights={name: p.detach().double().numpy() for name, p in model.named_parameters()},
        layers=config.num_hidden_layers,
        loops=config.total_ut_steps,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        theta=config.rope_theta,
        eps=config.rms_norm_eps,
    )
