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
    "rollout": "dense",
    "logprob": "dense",
    "prompt": "question_answer",
    "task": "arithmetic",
    "grader": "canonical",
    "algorithm": "policy_gradient",
    "correction": "none",
    "optimizer": "adamw",
    "parallel": "single",
    "device": "cpu",
    "gates": "default",
    "tracker": "none",
}


def option(group: str, name: str) -> dict[str, Any]:
    """The values of one shipped option."""
    values: dict[str, Any] = yaml.safe_load((CONF / group / f"{name}.yaml").read_text())
    values.pop("defaults", None)
    return values


def plain_config(values: dict[str, Any] | None = None, **options: str) -> dict[str, Any]:
    """A whole configuration; `options` choose config groups, `values` replace values by dotted key."""
    composed: dict[str, Any] = {group: option(group, name) for group, name in (OPTIONS | options).items()}
    composed["rollout"]["engine"] = option("rollout/engine", "native")
    composed |= {"seed": 0, "cohort": 0, "block": 0, "resources": {"timeout_s": 60.0}}
    for key, value in (values or {}).items():
        group, _, name = key.partition(".")
        if name:
            composed[group][name] = value
        else:
            composed[group] = value
    return composed
