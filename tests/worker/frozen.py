"""Frozen cells whose experiment is one of the probes: the shipped default configuration with another `_target_`."""

import hashlib
import os
from pathlib import Path
from typing import Any

import yaml

import scalerlt
from scalerlt.records.cell import FrozenCell
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
    directory = sweep / cell_id
    directory.mkdir(parents=True)
    FrozenCell(
        identity_version=1,
        identity=hashlib.sha256(cell_id.encode()).hexdigest(),
        cell_id=cell_id,
        sweep=sweep.name,
        axes={"experiment": "probe", "probe": probe},
        config=probe_config(probe, device, timeout_s, ranks) | ({"experiment": experiment} if experiment else {}),
    ).write(directory / "cell.yaml")
    return directory / "cell.yaml"


def freeze_torchless(sweep: Path, probe: str, *, device: dict[str, Any] | None = None, **options: Any) -> Path:
    """Write the frozen cell of one of the `torchless_probes`, whose processes import none; else as `freeze`."""
    experiment = {"name": "probe", "_target_": f"worker.torchless_probes.{probe}", "warmup": 0, "repeats": 1}
    without = {"env": {"PYTHONPATH": WITHOUT_TORCH}, **(device or {})}
    return freeze(sweep, probe, device=without, experiment=experiment, **options)
