"""A cell: one fully resolved configuration, typed and checked."""

from dataclasses import dataclass, fields
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from scalerlt.errors import RequestErrors
from scalerlt.schema.algorithm import Algorithm
from scalerlt.schema.batch import Batch
from scalerlt.schema.checkpoint import Checkpoint
from scalerlt.schema.correction import Correction, NoCorrection
from scalerlt.schema.device import Device
from scalerlt.schema.experiment import Experiment
from scalerlt.schema.fields import NonNegativeInt, PositiveFloat
from scalerlt.schema.gates import Gates
from scalerlt.schema.grader import Grader
from scalerlt.schema.logprob import Logprob
from scalerlt.schema.machine import Machine
from scalerlt.schema.model import Model
from scalerlt.schema.optimizer import Optimizer
from scalerlt.schema.parallel import Parallel
from scalerlt.schema.precision import Precision
from scalerlt.schema.prompt import Prompt
from scalerlt.schema.registry import ADDED_GROUPS, GROUPS, config, schema_of
from scalerlt.schema.rollout import Rollout
from scalerlt.schema.task import Task
from scalerlt.schema.tracker import NoTracker, Tracker


@config
class Resources:
    """What a cell may use; never changes a result.

    Attributes:
        timeout_s: wall-clock limit of an attempt in seconds, or null.
    """

    timeout_s: PositiveFloat | None


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One configuration.

    Attributes:
        seed: seed of everything random in the cell.
        cohort: an independent repetition in its own process; the unit of statistics.
        block: position pair within the order A B B A.
    """

    experiment: Experiment
    model: Model
    precision: Precision
    batch: Batch
    checkpoint: Checkpoint
    rollout: Rollout
    logprob: Logprob
    prompt: Prompt
    task: Task
    grader: Grader
    algorithm: Algorithm
    correction: Correction | NoCorrection
    optimizer: Optimizer
    parallel: Parallel
    device: Device
    gates: Gates
    tracker: Tracker | NoTracker
    resources: Resources
    seed: int
    cohort: int
    block: int

    def unsupported_on(self, machine: Machine) -> str | None:
        """The first reason why the cell cannot run on the machine, or None."""
        for group in GROUPS:
            supports = getattr(getattr(self, group), "supports", None)
            if supports is not None and (reason := supports(self, machine)) is not None:
                return str(reason)
        return None


# Below 2^31: the requests of a cell get the seeds from seed * 2^32 on, and a generator takes 63 bits.
_SINGLE = TypeAdapter[int](Annotated[NonNegativeInt, Field(lt=2**31)])
SCALAR_KEYS = ("seed", "cohort", "block")
REQUEST_KEYS = ("runs_dir", "retry", "max_gpu_hours")
"""Top-level keys that say what is done with cells: no part of any."""


def load_cell(config: dict[str, Any]) -> Cell:
    """Check a resolved configuration and make it a Cell.

    Args:
        config: one entry per config group, and `resources`, `seed`, `cohort`, `block`; other keys are ignored.

    Raises:
        RequestErrors: every missing key, unknown key and wrong value, each naming its full key.
    """
    problems: list[str] = []
    parts: dict[str, Any] = {}
    for group in GROUPS:
        values = config.get(group, {"name": ADDED_GROUPS[group]} if group in ADDED_GROUPS else None)
        if not isinstance(values, dict) or not isinstance(values.get("name"), str):
            problems.append(f"{group}={values!r} is not an option of the config group {group}")
            continue
        parts[group] = _checked(_adapter(schema_of(group, values["name"])), values, group, problems)
    parts["resources"] = _checked(_adapter(Resources), config.get("resources"), "resources", problems)
    for key in SCALAR_KEYS:
        parts[key] = _checked(_SINGLE, config.get(key), key, problems)
    if problems:
        raise RequestErrors(problems)
    return Cell(**{field.name: parts[field.name] for field in fields(Cell)})


_adapters: dict[type[Any], TypeAdapter[Any]] = {}
"""Making one takes longer than checking a cell with it."""


def _adapter(described: type[Any]) -> TypeAdapter[Any]:
    if described not in _adapters:
        _adapters[described] = TypeAdapter(described)
    return _adapters[described]


def _checked(adapter: TypeAdapter[Any], value: Any, where: str, problems: list[str]) -> Any:
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        problems.extend(_sentence(entry, where) for entry in error.errors(include_url=False))
        return None


def _sentence(error: Any, where: str) -> str:
    key = ".".join([where, *(str(part) for part in error["loc"] if not str(part).startswith("function-"))])
    message = error["msg"].removeprefix("Value error, ")
    match error["type"]:
        case "missing":
            return f"{key} is missing"
        case "unexpected_keyword_argument" | "extra_forbidden":
            return f"{key} is not a key of {where}"
        case "value_error" if not error["loc"]:
            return f"{where}: {message}"
        case _:
            return f"{key}={error['input']!r}: {message[0].lower()}{message[1:]}"
