"""The rules of a sweep file: which combinations are ruled out, and which cells get other resources.

    rules:
      - skip: {precision: fp16, device: cpu}        # every key has to match
        reason: half precision has no kernels there
      - skip: {batch.microbatch_tokens: {min: 8192}, checkpoint: [none, layer]}
        reason: would not fit
    resources:
      - where: {batch: large}
        set: {timeout_s: 7200}

Rules look at the composed configuration before it is validated, so that a combination that is ruled out need not be a
valid one: a config group by its option's name, a value by its full key, `device: auto` as the device that it becomes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

from scalerlt.planning.suggestions import nearest
from scalerlt.records.base import Scalar
from scalerlt.schema.cell import Resources


@dataclass(frozen=True)
class Span:
    """The numbers from a minimum to a maximum, both included."""

    minimum: float | None
    maximum: float | None


@dataclass(frozen=True)
class Condition:
    """One key, and what it may be.

    Attributes:
        key: a config group or a full key, with dots.
        allowed: values, or a span of numbers.
    """

    key: str
    allowed: tuple[Scalar, ...] | Span

    def __str__(self) -> str:
        if isinstance(self.allowed, Span):
            low, high = self.allowed.minimum, self.allowed.maximum
            bounds = [f"from {low}"] if low is not None else []
            return " ".join([self.key, *bounds, *([f"to {high}"] if high is not None else [])])
        return f"{self.key}={' or '.join(map(repr, self.allowed))}"

    def holds(self, config: dict[str, Any]) -> bool:
        """Whether a composed configuration has the key with such a value."""
        found, value = lookup(config, self.key)
        if not found:
            return False
        if isinstance(self.allowed, Span):
            if not isinstance(value, int | float) or isinstance(value, bool):
                return False
            low, high = self.allowed.minimum, self.allowed.maximum
            return (low is None or value >= low) and (high is None or value <= high)
        return any(_same(value, allowed) for allowed in self.allowed)


@dataclass(frozen=True)
class Rule:
    """Rules out the cells for which every condition holds."""

    conditions: tuple[Condition, ...]
    reason: str


@dataclass(frozen=True)
class ResourceRule:
    """Gives other resources to the cells for which every condition holds."""

    conditions: tuple[Condition, ...]
    settings: dict[str, Any]


def matches(conditions: Sequence[Condition], config: dict[str, Any]) -> bool:
    """Whether every condition holds."""
    return all(condition.holds(config) for condition in conditions)


def lookup(config: dict[str, Any], key: str) -> tuple[bool, Scalar]:
    """Whether a composed configuration has a key, and its value; of a config group its option's name."""
    node: Any = config
    for name in key.split("."):
        if not isinstance(node, dict) or name not in node:
            return False, None
        node = node[name]
    if isinstance(node, dict):
        return ("name" in node), node.get("name")
    return not isinstance(node, list), node if not isinstance(node, list) else None


def read_rules(content: Any, problems: list[str]) -> tuple[Rule, ...]:
    """The `rules` of a sweep file; what is wrong is added to `problems`."""
    rules = []
    for where, entry in _entries(content, "rules", "skip", "reason", problems):
        conditions = _conditions(entry["skip"], f"{where}, skip", problems)
        reason = entry["reason"]
        if not isinstance(reason, str) or not reason.strip():
            problems.append(f"{where} gives no reason; it is what the plan says of the cells that it rules out")
        else:
            rules.append(Rule(conditions, reason.strip()))
    return tuple(rules)


def read_resources(content: Any, problems: list[str]) -> tuple[ResourceRule, ...]:
    """The `resources` of a sweep file; what is wrong is added to `problems`."""
    known = [field.name for field in fields(Resources)]
    rules = []
    for where, entry in _entries(content, "resources", "where", "set", problems):
        conditions, settings = _conditions(entry["where"], f"{where}, where", problems), entry["set"]
        if not isinstance(settings, dict) or not settings:
            problems.append(f"{where}: `set` is a mapping from resources to values")
            continue
        wrong = [str(key) for key in settings if key not in known]
        problems += [f"{where}: {key} is not a resource{nearest(key, known)}" for key in wrong]
        rules.append(ResourceRule(conditions, settings))
    return tuple(rules)


def _entries(
    content: Any, what: str, first: str, second: str, problems: list[str]
) -> Iterator[tuple[str, dict[str, Any]]]:
    if content is None:
        return
    if not isinstance(content, list) or not content:
        problems.append(f"`{what}` is a list of mappings with the keys `{first}` and `{second}`")
        return
    for number, entry in enumerate(content, start=1):
        where = f"{what}, entry {number}"
        if not isinstance(entry, dict) or set(entry) - {first, second} or first not in entry:
            problems.append(f"{where} is not a mapping with the keys `{first}` and `{second}`")
        else:
            yield where, {second: None, **entry}


def _conditions(content: Any, where: str, problems: list[str]) -> tuple[Condition, ...]:
    if not isinstance(content, dict) or not content:
        problems.append(f"{where}: give a mapping from keys to the values that they must have")
        return ()
    conditions = []
    for key, value in content.items():
        allowed = _allowed(value)
        if not isinstance(key, str) or allowed is None:
            problems.append(f"{where}: {key!r} has {value!r}; give a value, a list of values, or {{min: A, max: B}}")
        else:
            conditions.append(Condition(key.replace("/", "."), allowed))
    return tuple(conditions)


def _allowed(value: Any) -> tuple[Scalar, ...] | Span | None:
    if isinstance(value, dict):
        bounds = value.values()
        numbers = all(isinstance(bound, int | float) and not isinstance(bound, bool) for bound in bounds)
        if not value or not numbers or set(value) - {"min", "max"}:
            return None
        return Span(value.get("min"), value.get("max"))
    values = value if isinstance(value, list) else [value]
    if not values or not all(entry is None or isinstance(entry, str | int | float | bool) for entry in values):
        return None
    return tuple(values)


def _same(one: Scalar, other: Scalar) -> bool:
    return one == other and isinstance(one, bool) == isinstance(other, bool)
