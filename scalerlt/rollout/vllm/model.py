"""Ouro (arXiv 2510.25741) as a vLLM model: L physical layers that run K times, each loop with K/V of its own.

To vLLM it is a transformer of K L attention layers of one kind, so that its scheduler, prefix cache and block tables
serve it as they are. Depth is fixed: every token runs `total_ut_steps` loops, and the exit gate is not asked.
"""

from collections.abc import Iterable

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from vllm.compilation.decorators import support_torch_compile
from vllm.config import CacheConfig, VllmConfig
from vllm.distributed import get_tensor_model_parallel_world_size
from vllm.model_executor.layers.activation import SiluAndMul
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.linear import MergedColumnParallelLinear, QKVParallelLinear, RowParallelLinear
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.quantization import QuantizationConfig
from vllm.model_executor.layers.rotary_embedding import get_rope
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from vllm.model_executor.model_loader.weight_utils import default_weight_loader
from vllm.sequence import IntermediateTensors

from scalerlt.errors import UserError
from scalerlt.rollout.vllm.config import OuroHFConfig, shape_of

FUSED: dict[str, tuple[str, str | int]] = {
    "q_proj": ("qkv_proj", "q"),
    "k_proj": ("qkv_proj", "k"),
    "v_proj": ("qkv_proj", "v"),
    "gate_proj": ("gate_up_proj", 0),
    "up_proj": ("gate_up_proj", 1),
}
"""Of each projection of a checkpoint that runs as a part of a larger one: which, and which part."""


class OuroAttention(nn.Module):
    """Attention of one physical layer: projections that all loops share, and a K/V cache for each loop."""

    def __init__(
        self,
        config: OuroHFConfig,
        layer: int,
        cache_config: CacheConfig | None,
        quant_config: QuantizationConfig | None,
        prefix: str,
    ) -> None:
        super().__init__()
        shards = get_tensor_model_parallel_world_size()
        self.heads = config.num_attention_heads // shards
        self.key_heads = max(1, config.num_key_value_heads // shards)
        self.head_dim = config.head_dim
        self.qkv_proj = QKVParallelLinear(
            config.hidden_size,
            config.head_dim,
            config.num_attention_heads,
            config.num_key_value_heads,
            bias=False,
            quant_config=quant_config,
            prefix=f"{prefix}.layers.{layer}.self_attn.qkv_proj",
        )
        self.o_proj = RowParallelLinear(
            config.num_attention_heads * config.head_dim,
            config.hidden_size,
            bias=False,
            quant_config=quant_config,
            prefix=f"{prefix}.layers.{layer}.self_attn.o_proj",
        )
        self.rotary_emb = get_rope(
            config.head_dim,
            max_position=config.max_position_embeddings,
            is_neox_style=True,
            rope_parameters=config.rope_parameters,
        )
        # vLLM finds a cache by the one number in its name: that of the layer of an unrolled model.
        self.attn = nn.ModuleList(
            Attention(
                self.heads,
                config.head_dim,
                config.head_dim**-0.5,
                num_kv_heads=self.key_heads,
                cache_config=cache_config,
                quant_config=quant_config,
                prefix=f"{prefix}.layers.{loop * config.num_hidden_layers + layer}.self_attn.attn",
            )
            for loop in range(config.total_ut_steps)
        )

    def forward(self, loop: int, positions: Tensor, x: Tensor) -> Tensor:
        """[tokens, H] to [tokens, H]."""
        qkv, _ = self.qkv_proj(x)
        queries, keys = self.heads * self.head_dim, self.key_heads * self.head_dim
        q, k, v = qkv.split([queries, keys, keys], dim=-1)
        q, k = self.rotary_emb(positions, q, k)
        attended, _ = self.o_proj(self.attn[loop](q, k, v))
        return attended


class OuroMLP(nn.Module):
    """SwiGLU: down(silu(gate(x)) * up(x))."""

    def __init__(self, config: OuroHFConfig, quant_config: QuantizationConfig | None, prefix: str) -> None:
        super().__init__()
        self.gate_up_proj = MergedColumnParallelLinear(
            config.hidden_size,
            [config.intermediate_size] * 2,
            bias=False,
            quant_config=quant_config,
            prefix=f"{prefix}.gate_up_proj",
        )
        self.down_proj = RowParallelLinear(
            config.intermediate_size,
            config.hidden_size,
            bias=False,
            quant_config=quant_config,
            prefix=f"{prefix}.down_proj",
        )
        self.activation = SiluAndMul()

    def forward(self, x: Tensor) -> Tensor:
        """[tokens, H] to [tokens, H]."""
        both, _ = self.gate_up_proj(x)
        down, _ = self.down_proj(self.activation(both))
        return down


class OuroLayer(nn.Module):
    """One physical layer with its four norms: before each branch, and on its output before it is added.

    vLLM's norm that adds the residual as well is not used: it normalises the sum before rounding it, which in bf16 is
    not what the published code computes.
    """

    def __init__(
        self,
        config: OuroHFConfig,
        layer: int,
        cache_config: CacheConfig | None,
        quant_config: QuantizationConfig | None,
        prefix: str,
    ) -> None:
        super().__init__()
        self.self_attn = OuroAttention(config, layer, cache_config, quant_config, prefix)
        self.mlp = OuroMLP(config, quant_config, f"{prefix}.layers.{layer}.mlp")
        self.input_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.input_layernorm_2 = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm_2 = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, loop: int, positions: Tensor, x: Tensor) -> Tensor:
        """[tokens, H] to [tokens, H]."""
        x = x + self.input_layernorm_2(self.self_attn(loop, positions, self.input_layernorm(x)))
        return x + self.post_attention_layernorm_2(self.mlp(self.post_attention_layernorm(x)))


@support_torch_compile
class OuroModel(nn.Module):
    """Embedding, layers, and the norm that ends every loop."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        config, quant_config = vllm_config.model_config.hf_config, vllm_config.quant_config
        self.loops = config.total_ut_steps
        self.embed_tokens = VocabParallelEmbedding(
            config.vocab_size, config.hidden_size, quant_config=quant_config, prefix=f"{prefix}.embed_tokens"
        )
        self.layers = nn.ModuleList(
            OuroLayer(config, layer, vllm_config.cache_config, quant_config, prefix)
            for layer in range(config.num_hidden_layers)
        )
        self.norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The normed state of the last loop, [tokens, H]."""
        x = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        for loop in range(self.loops):
            for layer in self.layers:
                x = layer(loop, positions, x)
            x = self.norm(x)
        return x


class OuroForCausalLM(nn.Module):
    """What vLLM makes of an Ouro directory; `hf_overrides={"total_ut_steps": k}` runs k loops of it."""

    packed_modules_mapping = {  # noqa: RUF012  (vLLM's name and form)
        "qkv_proj": ["q_proj", "k_proj", "v_proj"],
        "gate_up_proj": ["gate_proj", "up_proj"],
    }

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        self.config = vllm_config.model_config.hf_config
        self.name = vllm_config.model_config.model
        inner = f"{prefix}." if prefix else ""
        self.model = OuroModel(vllm_config=vllm_config, prefix=f"{inner}model")
        self.lm_head = ParallelLMHead(
            self.config.vocab_size,
            self.config.hidden_size,
            quant_config=vllm_config.quant_config,
            prefix=f"{inner}lm_head",
        )
        self.logits_processor = LogitsProcessor(self.config.vocab_size)

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        """[tokens] to [tokens, H]."""
        return self.model.embed_tokens(input_ids)

    def forward(
        self,
        input_ids: Tensor | None,
        positions: Tensor,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        """The states [tokens, H] that `compute_logits` reads."""
        return self.model(input_ids, positions, intermediate_tensors, inputs_embeds)

    def compute_logits(self, hidden_states: Tensor) -> Tensor | None:
        """[tokens, H] to [tokens, V]."""
        return self.logits_processor(self.lm_head, hidden_states)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Take the tensors of a checkpoint, by their published names; returns the parameters that were filled.

        The exit gate's are accepted and not kept. A stored `rotary_emb.inv_freq` is skipped.

        Raises:
            UserError: a file is truncated, or a tensor is missing, unknown, of another shape, or came twice.
        """
        parameters, wanted = dict(self.named_parameters()), shape_of(self.config).tensor_shapes()
        filled: set[str] = set()
        seen: set[str] = set()
        faults: list[str] = []
        try:
            for name, tensor in weights:
                if name.endswith("rotary_emb.inv_freq"):
                    continue
                if name not in wanted:
                    faults.append(f"unknown tensor {name} {list(tensor.shape)}")
                elif tuple(tensor.shape) != wanted[name]:
                    faults.append(f"{name} is {list(tensor.shape)} instead of {list(wanted[name])}")
                elif name in seen:
                    faults.append(f"{name} came twice")
                elif "early_exit_gate" not in name:
                    filled.add(_fill(parameters, name, tensor))
                seen.add(name)
        except SafetensorError as error:
            raise UserError(f"checkpoint {self.name}: truncated or not a safetensors file ({error})") from error
        faults += [f"{name} is missing" for name in wanted if name not in seen]
        if faults:
            more = f"; and {len(faults) - 5} more" if len(faults) > 5 else ""
            raise UserError(f"checkpoint {self.name}: {'; '.join(faults[:5])}{more}")
        return filled


def _fill(parameters: dict[str, nn.Parameter], name: str, tensor: Tensor) -> str:
    """Put a tensor of a checkpoint where it belongs; returns the parameter's name."""
    module, projection, kind = name.rsplit(".", 2) if name.count(".") > 1 else ("", *name.split("."))
    if projection in FUSED:
        fused, part = FUSED[projection]
        parameter = parameters[f"{module}.{fused}.{kind}"]
        getattr(parameter, "weight_loader")(parameter, tensor, part)  # noqa: B009  (vLLM's own attribute)
        return f"{module}.{fused}.{kind}"
    parameter = parameters[name]
    getattr(parameter, "weight_loader", default_weight_loader)(parameter, tensor)
    return name
