"""A copy of the package for the jobs of a submission, so that code edited while they wait is not what they run."""

import json
import shutil
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import scalerlt
from scalerlt.records.base import finite, write_atomically
from scalerlt.records.provenance import SNAPSHOT_FILE

CODE = "code"


def package_root() -> Path:
    """The directory from which the package is imported here."""
    return Path(scalerlt.__file__).resolve().parent.parent


def take_snapshot(folder: Path, provenance: Mapping[str, Any]) -> Path:
    """Copy the package, with its configuration and sweeps, to `folder/code`; returns that directory.

    Args:
        provenance: of the code that is copied; what runs from the copy tells it as its own.
    """
    code = folder / CODE
    shutil.copytree(
        package_root() / "scalerlt", code / "scalerlt", ignore=shutil.ignore_patterns("__pycache__", "*.pyc")
    )
    write_atomically(code / SNAPSHOT_FILE, json.dumps(finite(dict(provenance)), indent=1) + "\n")
    return code


def import_root(snapshot: Path | None) -> Path | None:
    """What has to stand first on a job's PYTHONPATH; None when the package is installed for the interpreter."""
    if snapshot is not None:
        return snapshot.resolve()
    root = package_root()
    return None if str(root) in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")) else root
