"""`experiment=test_accounting`: how many tests pass, are skipped, and are expected to fail."""

import importlib.util
from typing import TYPE_CHECKING, Annotated

from scalerlt.schema.experiment import Experiment
from scalerlt.schema.fields import FileInput
from scalerlt.schema.registry import config_group

if TYPE_CHECKING:
    from scalerlt.schema.cell import Cell
    from scalerlt.schema.machine import Machine


@config_group("experiment", "test_accounting")
class TestAccounting(Experiment):
    """Runs pytest on a directory of tests, in a process of its own.

    Attributes:
        suite: a word for the tests.
        tests: the directory; its Python files are part of the identity, the code that they test is provenance.
    """

    __test__ = False  # pytest would take the class for tests

    suite: str
    tests: Annotated[str, FileInput(("**/*.py",))]

    def supports(self, cell: "Cell", machine: "Machine") -> str | None:
        """Why there is nothing to run the tests with, or None."""
        if importlib.util.find_spec("pytest") is None:
            return "experiment=test_accounting runs pytest, which is not installed here; install the extra dev"
        return None
