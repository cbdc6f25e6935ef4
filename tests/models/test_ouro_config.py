import ast
import inspect
import json
import re
from dataclasses import replace

import pytest
from models.small import SMALL

import scalerlt.models.config
from scalerlt.errors import UserError
from scalerlt.models.config import OuroConfig

# The published config.json of Ouro-1.4B, with the leftovers that Hugging Face files carry.
PUBLISHED = {
    "architectures": ["OuroForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "auto_map": {
        "AutoConfig": "configuration_ouro.OuroConfig",
        "AutoModel": "modeling_ouro.OuroModel",
        "AutoModelForCausalLM": "modeling_ouro.OuroForCausalLM",
    },
    "bos_token_id": 0,
    "early_exit_threshold": 1.0,
    "eos_token_id": 0,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 5632,
    "layer_types": ["full_attention"] * 24,
    "max_position_embeddings": 65536,
    "max_window_layers": 24,
    "model_type": "ouro",
    "num_attention_heads": 16,
    "num_hidden_layers": 24,
    "num_key_value_heads": 16,
    "pad_token_id": None,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "total_ut_steps": 4,
    "transformers_version": "4.55.0",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 49152,
}


def test_the_published_sizes_give_the_published_counts() -> None:
    small = OuroConfig.from_hf(PUBLISHED, "config.json")
    assert len(small.tensor_shapes()) == 269
    assert small.parameter_count == 1_434_652_673
    large = replace(small, num_hidden_layers=48)
    assert large.parameter_count == 2_667_974_657
    assert small.tensor_shapes()["model.layers.23.mlp.down_proj.weight"] == (2048, 5632)
    assert small.pad_token_id is None


def test_the_spelling_of_transformers_5() -> None:
    values = {
        key: value for key, value in PUBLISHED.items() if key not in ("rope_theta", "rope_scaling", "torch_dtype")
    }
    values |= {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}, "dtype": "bfloat16"}
    assert OuroConfig.from_hf(values, "config.json") == OuroConfig.from_hf(PUBLISHED, "config.json")


def test_fallbacks_and_nothing_else_is_assumed() -> None:
    without = {
        key: value
        for key, value in PUBLISHED.items()
        if key not in ("head_dim", "num_key_value_heads", "total_ut_steps")
    }
    assert OuroConfig.from_hf(without, "config.json") == OuroConfig.from_hf(PUBLISHED, "config.json")
    for key in ("rope_theta", "rms_norm_eps", "max_position_embeddings", "vocab_size", "hidden_size"):
        with pytest.raises(UserError, match=f"missing: {key}$"):
            OuroConfig.from_hf({k: v for k, v in PUBLISHED.items() if k != key}, "config.json")


def test_it_survives_being_written_and_read() -> None:
    for config in (SMALL, OuroConfig.from_hf(PUBLISHED, "x"), replace(SMALL, eos_token_id=None)):
        assert OuroConfig.from_hf(json.loads(json.dumps(config.to_hf())), "x") == config


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rope_scaling": {"rope_type": "yarn"}}, "rope_scaling is"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6}}, "rope_type is 'yarn'"),
        ({"rope_parameters": {"rope_theta": 1e4}}, "rope_theta is 1000000.0, but"),
        ({"rope_parameters": 7}, "rope_parameters is 7"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings is True"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu': only 'silu'"),
        ({"use_sliding_window": True}, "use_sliding_window is True"),
        ({"sliding_window": 4096}, "sliding_window is 4096"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types is"),
        ({"layer_types": 3}, "layer_types is 3"),
        ({"attention_dropout": 0.1}, "attention_dropout is 0.1"),
        ({"model_type": "mistral"}, "model_type is 'mistral'"),
        ({"logit_softcap": 30.0}, "unknown: logit_softcap"),
        ({"num_key_value_heads": 5}, "num_attention_heads is 16: it has to be a multiple of num_key_value_heads, 5"),
        ({"head_dim": 127}, "head_dim is 127: it has to be even"),
        ({"total_ut_steps": 0}, "total_ut_steps is 0: it has to be a positive integer"),
        ({"hidden_size": "2048"}, "hidden_size is '2048': it has to be a positive integer"),
        ({"hidden_size": True}, "hidden_size is True"),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps is -1.0"),
        ({"eos_token_id": 49152}, "eos_token_id is 49152"),
        ({"eos_token_id": [0, 2]}, r"eos_token_id is \[0, 2\]"),
    ],
)
def test_each_fault_is_named(change: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        OuroConfig.from_hf(PUBLISHED | change, "some/config.json")
    assert str(caught.value).startswith("some/config.json: ")


def test_all_faults_are_in_one_error() -> None:
    broken = {key: value for key, value in PUBLISHED.items() if key != "vocab_size"}
    broken |= {"hidden_act": "gelu", "sliding_window": 7, "head_dim": -2, "extra": 1}
    with pytest.raises(UserError) as caught:
        OuroConfig.from_hf(broken, "config.json")
    for part in ("vocab_size", "hidden_act", "sliding_window", "head_dim is -2", "unknown: extra"):
        assert part in str(caught.value)


def test_impossible_sizes_are_refused_without_a_file_too() -> None:
    with pytest.raises(UserError, match=r"head_dim is 3.*even"):
        replace(SMALL, head_dim=3)


# The config.json of TinyLlama-1.1B's shape, as transformers writes one.
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 5632,
    "max_position_embeddings": 2048,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 22,
    "num_key_value_heads": 4,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 32000,
}


def test_a_plain_transformer_is_one_loop_without_norms_behind_its_branches() -> None:
    plain = OuroConfig.from_hf(LLAMA, "config.json")
    assert (plain.total_ut_steps, plain.sandwich_norms, plain.head_dim) == (1, False, 64)
    assert plain.parameter_count == 1_100_048_384  # as published for TinyLlama-1.1B
    assert len(plain.tensor_shapes()) == 9 * 22 + 3
    assert OuroConfig.from_hf(json.loads(json.dumps(plain.to_hf())), "config.json") == plain
    assert plain.to_hf()["model_type"] == "llama" and "total_ut_steps" not in plain.to_hf()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attention_bias": True}, "attention_bias is true: only false is supported"),
        ({"mlp_bias": True}, "mlp_bias is True: only false is supported"),
        ({"tie_word_embeddings": True}, "the output head is a tensor of its own"),
        ({"total_ut_steps": 4}, "total_ut_steps is not a key of model_type llama"),
        ({"rope_parameters": {"rope_type": "llama3"}}, "only 'default' is supported"),
    ],
)
def test_what_no_plain_transformer_of_ours_is(change: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        OuroConfig.from_hf(LLAMA | change, "config.json")
    with pytest.raises(UserError, match="a plain transformer has one loop"):
        replace(SMALL, sandwich_norms=False)


def test_it_needs_no_torch() -> None:
    modules = {
        name
        for node in ast.walk(ast.parse(inspect.getsource(scalerlt.models.config)))
        for name in (
            [alias.name for alias in node.names] if isinstance(node, ast.Import)
            else [node.module] if isinstance(node, ast.ImportFrom) else []
        )
    }  # fmt: skip
    assert modules <= {"math", "collections.abc", "dataclasses", "typing", "scalerlt.errors"}
