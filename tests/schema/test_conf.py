"""The shipped configuration and its types agree: every option loads, and YAML keys are dataclass fields."""

import pytest
import yaml
from pydantic import TypeAdapter
from schema.plain_config import option as option_values
from schema.plain_config import plain_config

from scalerlt.errors import RequestErrors
from scalerlt.planning.hydra_bridge import CONF
from scalerlt.schema import load_cell
from scalerlt.schema.fields import parse_bytes
from scalerlt.schema.registry import GROUPS, keys_of, schema_of

SHIPPED = [(path.parent.name, path.stem) for group in GROUPS for path in sorted((CONF / group).glob("*.yaml"))]


@pytest.mark.parametrize(("group", "option"), SHIPPED, ids="/".join)
def test_keys_of_the_file_are_fields_of_the_dataclass(group: str, option: str) -> None:
    values = option_values(group, option)
    assert values["name"] == option, "an option is called what its file is called"
    nested = {"engine"} if group == "rollout" else set()
    optional = {"env"} if group == "device" else set()
    assert set(values) == set(keys_of(schema_of(group, option))) - nested - optional


# device=auto becomes cpu or cuda before it is checked: tests/planning.
@pytest.mark.parametrize(("group", "option"), [s for s in SHIPPED if s != ("device", "auto")], ids="/".join)
def test_every_shipped_option_is_valid(group: str, option: str) -> None:
    values = option_values(group, option)
    if group == "rollout":
        values["engine"] = option_values("rollout/engine", "native")
    if (group, option) == ("task", "gsm8k"):
        values["path"] = "somewhere"
    TypeAdapter(schema_of(group, option)).validate_python(values)


def test_every_group_has_a_default_and_a_folder() -> None:
    defaults = yaml.safe_load((CONF / "config.yaml").read_text())["defaults"]
    chosen = {key for entry in defaults if isinstance(entry, dict) for key in entry if not key.startswith("override")}
    assert chosen == set(GROUPS)


@pytest.mark.parametrize(
    ("text", "size"), [("512MiB", 512 * 2**20), ("2GiB", 2**31), ("1.5KiB", 1536), (7, 7), ("8", 8), ("9B", 9)]
)
def test_sizes(text: str | int, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["2GB", "", "-1", "0", 0, -5, "GiB", "1e3", "0.1B"])
def test_bad_sizes(text: str | int) -> None:
    with pytest.raises(ValueError, match="size"):
        parse_bytes(text)


def test_all_errors_of_a_cell_are_reported_at_once() -> None:
    values = plain_config()
    values["batch"]["group_size"] = 0
    values["batch"]["surplus"] = 1
    del values["task"]["split"]
    values["optimizer"]["beta1"] = True
    values["precision"] = "fp32"
    values["seed"] = -1
    with pytest.raises(RequestErrors) as caught:
        load_cell(values)
    text = "\n".join(caught.value.problems)
    for said in (
        "batch.group_size=0",
        "batch.surplus is not a key of batch",
        "task.split is missing",
        "optimizer.beta1=True",
        "precision='fp32' is not an option",
        "seed=-1",
    ):
        assert said in text


@pytest.mark.parametrize("task", ["arithmetic", "gsm8k"])
def test_what_is_evaluated_is_held_out_unless_asked_otherwise(task: str) -> None:
    assert option_values("task", task)["split"] == "test", "training takes the training split, whatever this says"
