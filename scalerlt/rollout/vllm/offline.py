"""vLLM's offline engine, in this process, over the weights of one of our models."""

import importlib.util
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from scalerlt.errors import Unsupported, UserError
from scalerlt.models.ouro import OuroForCausalLM
from scalerlt.schema.rollout.other_engines import CPU_BLOCK, pool_bytes

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine runs in this process, so that weights need no copy between two
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
"""What is set before vLLM is imported, unless it is set already."""


@dataclass(frozen=True, kw_only=True)
class OfflineSettings:
    """How the engine is started.

    Attributes:
        prefix_caching: whether a prompt's blocks of K/V serve other requests that begin alike.
        kv_cache_tokens: positions of the K/V pool; None: what vLLM finds free on a GPU, on a CPU enough for every slot,
            within `DEFAULT_POOL`.
        max_model_len: positions that a sequence may have; None: those of the model.
        gpu_memory_utilization: share of a GPU's memory that vLLM takes in all.
        enforce_eager: whether vLLM runs without compiling the model and without CUDA graphs; on a CPU it always does.
        sleep: whether vLLM may give back its memory on a GPU; see `OfflineModel.sleep`.
    """

    prefix_caching: bool = False
    kv_cache_tokens: int | None = None
    max_model_len: int | None = None
    gpu_memory_utilization: float = 0.9
    enforce_eager: bool = False
    sleep: bool = False


class OfflineModel:
    """A running vLLM engine whose weights are those of a model of ours.

    It is started from the model's config.json alone; the weights come as every later version does.

    Attributes:
        engine: vLLM's `LLMEngine`.
        slots: most sequences in flight.
        kv_cache_bytes: size of the K/V pool.
    """

    def __init__(self, model: OuroForCausalLM, slots: int, settings: OfflineSettings) -> None:
        self.settings, self.slots = settings, slots
        self._loaded: tuple[int, ...] | None = None
        self._asleep = False
        self.engine = _start(model, slots, settings)
        cache = self.engine.vllm_config.cache_config
        self.kv_cache_bytes: int = cache.num_gpu_blocks * cache.block_size * position_bytes(model)
        self.take_weights(model)

    def take_weights(self, model: OuroForCausalLM) -> int:
        """Take the model's weights, if they have changed since they were taken last; drops what was computed of older
        ones. Returns the bytes read and written.

        Raises:
            UserError: requests are unfinished.
        """
        versions = tuple(parameter._version for parameter in model.parameters())
        if versions == self._loaded:
            return 0
        if self.engine.has_unfinished_requests():
            raise UserError("vLLM's weights cannot be replaced while it generates")
        self.wake()
        self._loaded = None  # should it fail halfway
        pairs = [(name, parameter.detach()) for name, parameter in model.named_parameters()]
        self.engine.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(pairs)})
        self.forget()
        self._loaded = versions
        return sum(2 * tensor.nbytes for _, tensor in pairs)

    def forget(self) -> None:
        """Drop the prefix cache."""
        if not self.engine.reset_prefix_cache():
            raise RuntimeError("vLLM did not reset its prefix cache: some of its blocks are in use")

    def sleep(self) -> None:
        """Move the weights to the host and give up the K/V pool, so that a learner has the GPU."""
        self.engine.sleep(level=1)
        self._asleep = True

    def wake(self) -> None:
        """Take both back, if they were given up."""
        if self._asleep:
            self.engine.wake_up()
            self._asleep = False


_running: WeakKeyDictionary[OuroForCausalLM, OfflineModel] = WeakKeyDictionary()


def offline_model(model: OuroForCausalLM, slots: int, settings: OfflineSettings) -> OfflineModel:
    """The running engine of a model; started if there is none, or none with so many slots and these settings.

    Raises:
        Unsupported: vLLM is not installed, or it is not made for the model's device.
    """
    running = _running.get(model)
    if running is None or running.slots < slots or running.settings != settings:
        _running.pop(model, None)
        running = _running[model] = OfflineModel(model, slots, settings)
    return running


def position_bytes(model: OuroForCausalLM) -> int:
    """Of the K and V of one position, in all layers of all loops."""
    config = model.config
    planes = config.total_ut_steps * config.num_hidden_layers
    return 2 * planes * config.num_key_value_heads * config.head_dim * model.dtype.itemsize


def _start(model: OuroForCausalLM, slots: int, settings: OfflineSettings) -> Any:
    if importlib.util.find_spec("vllm") is None:
        raise Unsupported("vllm is not installed here: see docs/vllm.md")
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    on_cpu = model.device.type == "cpu"
    if on_cpu:
        import torch._dynamo.config as dynamo

        dynamo.disable = True  # it would compile for longer than a small rollout takes
    from vllm import LLM
    from vllm.platforms import current_platform

    if current_platform.device_type != model.device.type:
        raise Unsupported(
            f"the vLLM that is installed here runs on {current_platform.device_type or 'nothing that is here'}, not on "
            f"{model.device.type}: see docs/vllm.md"
        )
    length = settings.max_model_len or model.config.max_position_embeddings
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(model.config.to_hf()), encoding="utf-8")
        return LLM(
            folder,
            load_format="dummy",
            skip_tokenizer_init=True,
            dtype=str(model.dtype).removeprefix("torch."),
            max_model_len=length,
            max_num_seqs=slots,
            kv_cache_memory_bytes=_pool_bytes(model, slots, length, settings),
            gpu_memory_utilization=settings.gpu_memory_utilization,
            enable_prefix_caching=settings.prefix_caching,
            block_size=CPU_BLOCK if on_cpu else None,
            enforce_eager=settings.enforce_eager or on_cpu,
            enable_sleep_mode=settings.sleep,
            logprobs_mode="processed_logprobs",
            disable_log_stats=True,
        ).llm_engine


def _pool_bytes(model: OuroForCausalLM, slots: int, length: int, settings: OfflineSettings) -> int | None:
    """The K/V pool in bytes; None: vLLM decides."""
    if settings.kv_cache_tokens is None and model.device.type != "cpu":
        return None
    return pool_bytes(slots, length, settings.kv_cache_tokens, position_bytes(model))
