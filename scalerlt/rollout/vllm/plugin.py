"""What vLLM calls in each of its processes (entry point `vllm.general_plugins`): Ouro models become known to it.

vLLM dropped Ouro after 0.26. Nothing of vLLM's is imported before it is asked for an Ouro model, nor anything of the
harness beside the shape of a checkpoint.
"""


def register() -> None:
    """Name the architecture and its configuration. May be called more than once."""
    from transformers import AutoConfig
    from vllm import ModelRegistry

    from scalerlt.rollout.vllm.config import OuroHFConfig

    AutoConfig.register(OuroHFConfig.model_type, OuroHFConfig, exist_ok=True)
    ModelRegistry.register_model("OuroForCausalLM", "scalerlt.rollout.vllm.model:OuroForCausalLM")
