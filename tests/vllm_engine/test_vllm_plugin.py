"""An Ouro directory in vLLM with nothing but the plugin: what `vllm serve DIRECTORY` does."""

import json
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from vllm import LLM, SamplingParams
from vllm_engine.small_model import CONFIG, TOLERANCE, largest_difference, model_of, requests_of

from scalerlt.errors import UserError
from scalerlt.models.checkpoint import save_hf
from scalerlt.rollout.native import NativeEngine

PUBLISHED = {
    "auto_map": {"AutoConfig": "configuration_ouro.OuroConfig"},
    "max_window_layers": 2,
    "transformers_version": "4.55.0",
}
"""What a published config.json has besides."""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("checkpoint") / "ouro"
    save_hf(model_of(seed=4), path)
    values = json.loads((path / "config.json").read_text()) | PUBLISHED
    (path / "config.json").write_text(json.dumps(values))
    return path


def start(directory: Path, **options: object) -> LLM:
    return LLM(
        str(directory),
        skip_tokenizer_init=True,
        dtype="float32",
        enforce_eager=True,
        max_model_len=128,
        max_num_seqs=4,
        kv_cache_memory_bytes=2**24,
        **options,
    )


def test_vllm_finds_the_plugin_and_it_needs_nothing_of_the_harness() -> None:
    assert [one.value for one in entry_points(group="vllm.general_plugins", name="scalerlt_ouro")] == [
        "scalerlt.rollout.vllm.plugin:register"
    ]
    script = (
        "import sys; from scalerlt.rollout.vllm.plugin import register; register(); register();"
        "import scalerlt.rollout.vllm.model;"
        "print(*[name for name in sys.modules if name.partition('.')[0] in ('scalerlt', 'hydra', 'submitit')])"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    *_, last = ran.stdout.strip().splitlines()
    names = {"scalerlt", *(f"scalerlt.{name}" for name in ("errors", "models", "models.config", "rollout"))}
    names |= {f"scalerlt.rollout.vllm{name}" for name in ("", ".config", ".model", ".plugin", ".versions")}
    assert set(last.split()) == names


def test_two_loops_by_override_and_a_broken_reload(directory: Path) -> None:
    """One start: two loops are those of a model that has two, with half the K/V; then bad weights are refused."""
    llm = start(directory, hf_overrides={"total_ut_steps": 2})
    shallow = model_of(4, replace(CONFIG, total_ut_steps=2))
    asked = requests_of(4)
    native = NativeEngine(shallow, concurrency=4).generate(asked).responses
    parameters = SamplingParams(temperature=0, max_tokens=12, logprobs=0, ignore_eos=True, detokenize=False)
    prompts = [{"prompt_token_ids": list(request.prompt_tokens)} for request in asked]
    for output, wanted in zip(llm.generate(prompts, parameters, use_tqdm=False), native, strict=True):
        completion = output.outputs[0]
        assert tuple(completion.token_ids) == wanted.tokens
        pairs = zip(completion.token_ids, completion.logprobs, strict=True)
        found = [position[token].logprob for token, position in pairs]
        assert largest_difference(found, wanted.logprobs) < TOLERANCE
    layers = llm.apply_model(lambda model: sum(1 for one in model.modules() if type(one).__name__ == "Attention"))
    assert layers == [2 * CONFIG.num_hidden_layers]
    groups = llm.llm_engine.engine_core.engine_core.scheduler.kv_cache_config.kv_cache_groups
    assert [len(group.layer_names) for group in groups] == [2 * CONFIG.num_hidden_layers]

    weights = {name: parameter.detach() for name, parameter in shallow.named_parameters()}
    for change, said in (
        ({"model.norm.weight": None}, "model.norm.weight is missing"),
        ({"model.extra": weights["model.norm.weight"]}, r"unknown tensor model.extra \[128\]"),
        ({"lm_head.weight": weights["lm_head.weight"][:5]}, r"lm_head.weight is \[5, 128\] instead of \[512, 128\]"),
        ({"model.early_exit_gate.weight": None}, "model.early_exit_gate.weight is missing"),
    ):
        pairs = [(name, tensor) for name, tensor in (weights | change).items() if tensor is not None]
        with pytest.raises(UserError, match=said):
            llm.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(pairs)})


@pytest.mark.parametrize("fault", ["truncated", "missing"])
def test_a_broken_checkpoint_is_one_clear_error(directory: Path, tmp_path: Path, fault: str) -> None:
    (tmp_path / "config.json").write_bytes((directory / "config.json").read_bytes())
    file = tmp_path / "model.safetensors"
    if fault == "truncated":
        file.write_bytes((directory / "model.safetensors").read_bytes()[:-1000])
        said = "checkpoint .*truncated or not a safetensors file"
    else:
        tensors = load_file(directory / "model.safetensors")
        save_file({name: tensor for name, tensor in tensors.items() if "layers.1.mlp.up" not in name}, file)
        said = r"checkpoint .*: model.layers.1.mlp.up_proj.weight is missing"
    with pytest.raises(UserError, match=said):
        start(tmp_path)
