"""Who may know whom: the import rules of the design, held by reading the sources and by running them."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import scalerlt

PACKAGE = Path(scalerlt.__file__).resolve().parent

ALLOWED = {
    "errors": set(),
    "power": set(),
    "records": {"errors"},
    "schema": {"errors", "records"},
    "planning": {"errors", "power", "records", "schema", "measure.environment"},
    "launching": {"errors", "records", "schema", "planning", "worker.supervisor", "worker.slurm_job"},
    "worker": {"errors", "records", "schema", "experiments", "measure", "tracking"},
    "experiments": {
        "errors",
        "records",
        "schema",
        "models",
        "numerics",
        "rollout",
        "learner",
        "publication",
        "tasks",
        "measure",
    },
    "models": {"errors", "records", "schema", "numerics"},
    "numerics": {"errors", "records", "schema"},
    "rollout": {"errors", "records", "schema", "models", "numerics"},
    "learner": {"errors", "records", "schema", "models", "numerics", "measure"},
    "publication": {"errors", "records", "schema", "models", "numerics", "rollout"},
    "tasks": {"errors", "records", "schema"},
    "measure": {"errors", "records"},
    "tracking": {"errors", "records"},
    "analysis": {"errors", "power", "records"},
    "cli": {"errors", "records", "launching", "planning", "analysis", "doctor", "tracking.sync"},
    "doctor": {"errors", "records", "schema"},
}
"""For each package the others that it may import; a dotted entry allows that one module."""

TORCH_FREE = (
    "schema",
    "planning",
    "launching",
    "records",
    "tracking",
    "analysis",
    "cli",
    "doctor",
    "errors",
    "power",
    "worker.supervisor",
    "worker.slurm_job",
)


def modules(package: str) -> Iterator[tuple[str, Path]]:
    """Name and file of each module below a package, or of a module."""
    path = PACKAGE.joinpath(*package.split("."))
    if path.with_suffix(".py").is_file():
        yield f"scalerlt.{package}", path.with_suffix(".py")
        return
    for file in sorted(path.rglob("*.py")):
        parts = [package, *file.relative_to(path).with_suffix("").parts]
        yield ".".join(["scalerlt", *parts]).removesuffix(".__init__"), file


def imports(file: Path) -> Iterator[str]:
    """Every module of this package that a file imports, wherever in the file; names imported from one appended."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (name.removeprefix("scalerlt.") for name in names if name.startswith("scalerlt."))


@pytest.mark.parametrize("package", ALLOWED)
def test_the_arrows(package: str) -> None:
    allowed = ALLOWED[package] | {package, "__version__"}
    wrong = [
        f"{name} imports {imported}"
        for name, file in modules(package)
        for imported in imports(file)
        if not any(imported == entry or imported.startswith(f"{entry}.") for entry in allowed)
    ]
    assert wrong == []


def test_every_package_has_its_arrows() -> None:
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")} - {"conf", "sweeps"}
    assert packages <= set(ALLOWED)


WITHOUT_TORCH = """
import importlib, sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "safetensors", "tokenizers"):
            raise AssertionError(f"{importing} imports {name}")

sys.meta_path.insert(0, NoTorch())
for importing in sys.argv[1:]:
    importlib.import_module(importing)
"""


def test_they_import_without_torch() -> None:
    """All in one fresh interpreter in which importing torch is an error."""
    names = [name for package in TORCH_FREE for name, _ in modules(package) if not name.endswith("__main__")]
    assert len(names) > 30
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, *names], capture_output=True, text=True, check=False, cwd=PACKAGE.parent
    )
    assert ran.returncode == 0, ran.stderr
