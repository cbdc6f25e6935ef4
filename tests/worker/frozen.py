"""Frozen cells whose experiment is one of the probes: the shipped default configuration with another `_target_`."""

import os
from pathlib import Path
from typing import Any

import yaml

import scalerlt
from scalerlt.planning.inputs import file_inputs
from scalerlt.records.cell import FrozenCell
from scalerlt.schema import load_cell
from scalerlt.schema.identity import axes, identity, scientific_keys
from scalerlt.worker.processes import search_path

CONF = Path(scalerlt.__file__).resolve().parent / "conf"

WITHOUT_TORCH = os.pathsep.join([str(Path(__file__).with_name("without_torch")), search_path()])
"""The PYTHONPATH of children that compute nothing: to import torch is most of what a new interpreter does."""


def option(group: str, name: str) -> dict[str, Any]:
    """One option of a config group, with the options that it takes in itself."""
    values: dict[str, Any] = yaml.safe_load((CONF / group / f"{name}.yaml").read_text())
    for entry in values.pop("defaults", []):
        if isinstance(entry, dict):
            for inner, inner_name in entry.items():
                values.setdefault(inner, option(f"{group}/{inner}", inner_name))
    return values


def probe_config(
    probe: str, device: dict[str, Any] | None, timeout_s: float | None, ranks: tuple[int, int]
) -> dict[str, Any]:
    main = yaml.safe_load((CONF / "config.yaml").read_text())
    config = {key: value for key, value in main.items() if key not in ("defaults", "hydra", "runs_dir")}
    for entry in main["defaults"]:
        if isinstance(entry, dict) and not next(iter(entry)).startswith("override"):
            ((group, name),) = entry.items()
            config[group] = option(group, name)
    config["experiment"] = {"name": "probe", "_target_": f"worker.probes.{probe}", "warmup": 0, "repeats": 1}
    config["device"] = {**option("device", "cpu"), **(device or {})}
    if ranks != (1, 1):
        config["parallel"] = {**option("parallel", "ranks"), "nodes": ranks[0], "ranks_per_node": ranks[1]}
    config["resources"] = {"timeout_s": timeout_s}
    return config


def freeze(
    sweep: Path,
    probe: str,
    *,
    device: dict[str, Any] | None = None,
    timeout_s: float | None = 60.0,
    cell_id: str | None = None,
    ranks: tuple[int, int] = (1, 1),
    experiment: dict[str, Any] | None = None,
) -> Path:
    """Write the frozen cell of a probe into a sweep's directory; returns the path of its cell.yaml.

    Args:
        ranks: nodes, and ranks on each.
        experiment: a whole experiment in the place of the probe's.
    """
    cell_id = cell_id or probe
    config = probe_config(probe, device, timeout_s, ranks) | ({"experiment": experiment} if experiment else {})
    (sweep / cell_id).mkdir(parents=True)
    return freeze_config(sweep / cell_id, config)


def freeze_config(directory: Path, config: dict[str, Any], **changed: Any) -> Path:
    """Write a configuration as the frozen cell of a directory, whatever its name; returns the path of its cell.yaml."""
    cell = load_cell(config)
    inputs = file_inputs(cell)
    for key, file in inputs.items():
        group, _, name = key.partition(".")
        config = {**config, group: {**config[group], name: file.path}}
    content = scientific_keys(cell, inputs)
    frozen = FrozenCell(
        identity_version=1,
        identity=identity(content),
        cell_id=directory.name,
        sweep=directory.parent.name,
        axes=axes(content),
        inputs=inputs,
        config=config,
    )
    frozen.model_copy(update=changed).write(directory / "cell.yaml")
    return directory / "cell.yaml"


def freeze_torchless(sweep: Path, probe: str, *, device: dict[str, Any] | None = None, **options: Any) -> Path:
    """Write the frozen cell of one of the `torchless_probes`, whose processes import none; else as `freeze`."""
    experiment = {"name": "probe", "_target_": f"worker.torchless_probes.{probe}", "warmup": 0, "repeats": 1}
    without = {"env": {"PYTHONPATH": WITHOUT_TORCH}, **(device or {})}
    return freeze(sweep, probe, device=without, experiment=experiment, **options)
