"""manifest.json: every output of a report with its digest, and what it was made from."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from scalerlt.analysis.figures import Picture
from scalerlt.analysis.gates import default_gates_file
from scalerlt.analysis.judging import frozen_gates
from scalerlt.analysis.reading import SweepResults
from scalerlt.analysis.tables import Table
from scalerlt.records.base import read_file

MANIFEST = "manifest.json"


def manifest(
    sweep: SweepResults,
    outputs: Mapping[str, bytes],
    tables: Sequence[Table],
    pictures: Sequence[Picture],
    definitions: Mapping[str, str],
) -> str:
    """The manifest's text: JSON, keys in a fixed order, paths relative to the sweep or the report.

    Args:
        outputs: every file of the report, by its name.
        definitions: digests of the files that define tables and figures, by the name that stands for them.
    """
    content = {
        "schema_version": 2,
        "sweep": sweep.name,
        "outputs": {name: sha256(content) for name, content in sorted(outputs.items())},
        "made_from": {
            **{f"tables/{table.name}": table.sources for table in tables},
            **{f"figures/{picture.name}": sorted(picture.sources) for picture in pictures},
        },
        "gates": sha256(default_gates_file().read_bytes()),
        "definitions": dict(sorted(definitions.items())),
        "plans": sweep.plans,
        "records": dict(sorted(sweep.records.items())),
        "superseded_records": dict(sorted(sweep.superseded.items())),
        "frozen_gates": _digests(sweep.path, frozen_gates(sweep.cells, sweep.path)),
        "series_and_samples": _digests(sweep.path, sweep.sources),
        "passed_over": sweep.problems,
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def sha256(content: bytes) -> str:
    """SHA-256 in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def outputs_of(directory: Path) -> list[str]:
    """The files that the manifest of a directory names; none where there is no manifest, or it is not ours."""
    try:
        outputs = json.loads(read_file(directory / MANIFEST))["outputs"]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return [name for name in outputs if isinstance(name, str)] if isinstance(outputs, dict) else []


def _digests(directory: Path, names: Iterable[str]) -> dict[str, str | None]:
    """Each file's digest; None of one that was removed since it was read."""
    digests: dict[str, str | None] = {}
    for name in names:
        try:
            digests[name] = sha256(read_file(directory / name))
        except OSError:
            digests[name] = None
    return digests
