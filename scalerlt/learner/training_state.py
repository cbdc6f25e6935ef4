"""Policies and the state of training on disk: written whole or not at all, checked by digest, resumed bit for bit.

    checkpoints/step-NNNNNN/policy/   a Hugging Face directory that `model.weights=` accepts
    checkpoints/step-NNNNNN/state/    master weights, moments, random states, position in the data
    checkpoints/step-NNNNNN/manifest.json

The manifest holds the SHA-256 of every file and is what makes a checkpoint count; the directory appears by one rename.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from scalerlt.records.base import write_atomically

MANIFEST = "manifest.json"
_STEP = re.compile(r"step-(\d{6,})$")


@dataclass(frozen=True)
class SavedPolicy:
    """One checkpoint that its manifest vouches for.

    Attributes:
        step: optimizer updates are at this training step.
        facts: what was saved beside the tensors (score, weight version, data cursor).
    """

    path: Path
    step: int
    facts: dict[str, Any]

    @property
    def policy(self) -> Path:
        """The Hugging Face directory."""
        return self.path / "policy"

    def state(self) -> dict[str, Any]:
        """The state of training."""
        loaded: dict[str, Any] = torch.load(self.path / "state" / "state.pt", weights_only=True, map_location="cpu")
        return loaded


def save(
    directory: Path, step: int, *, policy: Callable[[Path], None], state: dict[str, Any], facts: dict[str, Any]
) -> SavedPolicy:
    """Write one checkpoint.

    Args:
        directory: the attempt's `checkpoints`.
        policy: writes the Hugging Face directory to the path that it is given.
        state: tensors, numbers and texts, nested in dicts and lists.
        facts: goes into the manifest as it is; JSON.
    """
    target = directory / f"step-{step:06d}"
    building = directory / f".{target.name}.{os.getpid()}"
    shutil.rmtree(building, ignore_errors=True)
    (building / "state").mkdir(parents=True)
    policy(building / "policy")
    torch.save(state, building / "state" / "state.pt")
    manifest = {"step": step, "facts": facts, "sha256": _digests(building)}
    write_atomically(building / MANIFEST, json.dumps(manifest, indent=1) + "\n")
    shutil.rmtree(target, ignore_errors=True)  # of an earlier run that was resumed before this step
    building.rename(target)
    return SavedPolicy(target, step, facts)


def whole(directories: Iterable[Path]) -> list[SavedPolicy]:
    """The checkpoints below several `checkpoints` directories whose files match their manifests, by step."""
    found = [
        checked
        for directory in directories
        if directory.is_dir()
        for path in directory.iterdir()
        if _STEP.fullmatch(path.name) and (checked := _checked(path)) is not None
    ]
    return sorted(found, key=lambda saved: saved.step)


def prune(directory: Path, *, keep_last: int, keep_best: int, score: str) -> None:
    """Delete the checkpoints that are neither among the newest nor among the best by one of their facts.

    Of equal scores the earlier is the better. A checkpoint without the score is never among the best.
    """
    saved = whole([directory])
    scored = [one for one in saved if one.facts.get(score) is not None]
    best = sorted(scored, key=lambda one: (-one.facts[score], one.step))[:keep_best]
    newest = saved[max(0, len(saved) - keep_last) :]
    kept = {one.step for one in [*newest, *best]}
    for one in saved:
        if one.step not in kept:
            shutil.rmtree(one.path)


def _digests(directory: Path) -> dict[str, str]:
    digests = {}
    for path in sorted(entry for entry in directory.rglob("*") if entry.is_file() and entry.name != MANIFEST):
        with path.open("rb") as file:
            digests[path.relative_to(directory).as_posix()] = hashlib.file_digest(file, "sha256").hexdigest()
    return digests


def _checked(path: Path) -> SavedPolicy | None:
    """The checkpoint, or None where anything of it is missing or damaged."""
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        step, facts, digests = manifest["step"], manifest["facts"], manifest["sha256"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return SavedPolicy(path, step, facts) if _digests(path) == digests else None
