"""A whole configuration as plain data, read from the shipped files without Hydra."""

from typing import Any

import yaml

from scalerlt.planning.hydra_bridge import CONF

OPTIONS = {
    "experiment": "actor_update",
    "model": "tiny_ouro",
    "precision": "fp32",
    "batch": "small",
    "checkpoint": "none",
    "logprob": "dense",
    "task": "arithmetic",
    "algorithm": "policy_gradient",
    "optimizer": "adamw",
    "device": "cpu",
    "gates": "default",
}


def plain_config() -> dict[str, Any]:
    composed: dict[str, Any] = {
        group: yaml.safe_load((CONF / group / f"{option}.yaml").read_text()) for group, option in OPTIONS.items()
    }
    rollout = yaml.safe_load((CONF / "rollout" / "dense.yaml").read_text())
    del rollout["defaults"]
    composed["rollout"] = rollout | {"engine": yaml.safe_load((CONF / "rollout/engine/native.yaml").read_text())}
    return composed | {"seed": 0, "cohort": 0, "block": 0, "resources": {"timeout_s": 60.0}}
