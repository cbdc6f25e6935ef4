"""What a Hugging Face checkpoint directory holds, from its config.json and its files' headers alone. No torch."""

import json
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scalerlt.errors import UserError
from scalerlt.models.config import OuroConfig
from scalerlt.models.json_object import read_json_object

CONFIG_FILE = "config.json"
SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
_FLOATS = frozenset({"F64", "F32", "F16", "BF16"})


def read_config(path: str | Path) -> OuroConfig:
    """The shape of the checkpoint in directory `path`, from its config.json.

    Raises:
        UserError: the directory or the file is missing, is not JSON, or does not describe an Ouro model.
    """
    directory = Path(path)
    if not directory.is_dir():
        raise UserError(f"checkpoint {directory}: no such directory")
    return OuroConfig.from_hf(read_json_object(directory / CONFIG_FILE), str(directory / CONFIG_FILE))


@dataclass
class WeightFile:
    """What one safetensors file says it holds, `rotary_emb.inv_freq` left out."""

    path: Path
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)
    expected: frozenset[str] | None = None
    damage: str | None = None

    def read_header(self) -> None:
        """Read names, shapes and types, and see whether the file is as long as they say."""
        try:
            header, data_bytes = _header(self.path)
        except FileNotFoundError:
            self.damage = "no such file"
            return
        except (OSError, ValueError) as error:
            self.damage = f"truncated or not a safetensors file ({error})"
            return
        end = 0
        for name, entry in header.items():
            end = max(end, entry["data_offsets"][1])
            if not name.endswith("rotary_emb.inv_freq"):
                self.shapes[name] = tuple(entry["shape"])
                self.dtypes[name] = entry["dtype"]
        if end != data_bytes:
            self.damage = f"truncated or not a safetensors file (holds {data_bytes} of {end} bytes of data)"


def _header(path: Path) -> tuple[dict[str, Any], int]:
    """The header of a safetensors file, and the bytes behind it; ValueError where it is none.

    The format (github.com/huggingface/safetensors): the header's length as 8 bytes, little-endian; the header, JSON;
    the data.
    """
    with path.open("rb") as file:
        size = path.stat().st_size
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > size - 8:
            raise ValueError("the file ends within its header")
        header = json.loads(file.read(length))
    if not isinstance(header, dict):
        raise ValueError("its header is not a JSON object")
    header.pop("__metadata__", None)
    for name, entry in header.items():
        try:
            _, (start, end) = math.prod(entry["shape"]), map(int, entry["data_offsets"])
            str(entry["dtype"])
        except (TypeError, KeyError, ValueError):
            raise ValueError(f"its header describes {name} in a way that cannot be read") from None
        if not 0 <= start <= end:
            raise ValueError(f"its header puts {name} at bytes {start} to {end}")
    return header, size - 8 - length


def _scan(directory: Path) -> list[WeightFile]:
    """The weight files of a checkpoint with their headers read."""
    single, index = directory / SINGLE_FILE, directory / INDEX_FILE
    if single.exists():
        files = [WeightFile(single)]
    elif index.exists():
        places = read_json_object(index).get("weight_map")
        if not isinstance(places, dict) or not all(isinstance(place, str) for place in places.values()):
            raise UserError(f"{index}: weight_map has to map tensor names to file names")
        held: dict[str, set[str]] = {}
        for name, place in places.items():
            if not name.endswith("rotary_emb.inv_freq"):
                held.setdefault(place, set()).add(name)
        files = [WeightFile(directory / place, expected=frozenset(names)) for place, names in sorted(held.items())]
    else:
        others = sorted(p.name for p in directory.glob("*.bin")) + sorted(
            p.name for p in directory.glob("*.safetensors")
        )
        hint = f"; {', '.join(others)} cannot be used without it" if others else ""
        raise UserError(f"checkpoint {directory}: holds neither {SINGLE_FILE} nor {INDEX_FILE}{hint}")
    for file in files:
        file.read_header()
    return files


def check_files(path: str | Path, config: OuroConfig) -> list[WeightFile]:
    """The weight files of the checkpoint in directory `path`, known to hold exactly the tensors of `config`.

    Reads headers only: milliseconds, whatever the size of the checkpoint.

    Raises:
        UserError: one, naming every file that is missing or damaged and every tensor that is missing, unknown,
            mis-shaped, stored twice or not floating-point.
    """
    files = _scan(Path(path))
    wanted = config.tensor_shapes()
    damaged = [f"{file.path.name}: {file.damage}" for file in files if file.damage]
    whole = [file for file in files if not file.damage]
    places: dict[str, list[WeightFile]] = {}
    for file in whole:
        for name in file.shapes:
            places.setdefault(name, []).append(file)
    # What a damaged shard should hold is not reported a second time as missing.
    lost = {name for file in files if file.damage for name in file.expected or wanted}
    shapes = {name: holders[0].shapes[name] for name, holders in places.items()}
    groups = {
        "damaged files": damaged,
        "missing tensors": _listed((name, wanted[name]) for name in wanted.keys() - shapes.keys() - lost),
        "unknown tensors": _listed((name, shapes[name]) for name in shapes.keys() - wanted.keys()),
        "tensors of the wrong shape": _listed(
            (name, f"{list(shapes[name])} instead of {list(wanted[name])}")
            for name in shapes.keys() & wanted.keys()
            if shapes[name] != wanted[name]
        ),
        "tensors stored twice": _listed(
            (name, " and ".join(holder.path.name for holder in holders))
            for name, holders in places.items()
            if len(holders) > 1
        ),
        "tensors that are not floating-point": _listed(
            (name, file.dtypes[name]) for file in whole for name in file.shapes if file.dtypes[name] not in _FLOATS
        ),
        "tensors not in the file that the index names": _listed(
            (name, file.path.name)
            for file in whole
            for name in (file.expected or frozenset()) - file.shapes.keys()
            if name in shapes
        ),
    }
    problems = [f"{title}: {'; '.join(items)}" for title, items in groups.items() if items]
    if problems:
        raise UserError(f"checkpoint {path}: " + ". ".join(problems))
    return files


_LAYER = re.compile(r"^model\.layers\.(\d+)\.")


def _listed(named: Iterable[tuple[str, object]]) -> list[str]:
    """`name detail` of each, sorted; names that differ in the layer number alone are written as one."""
    layers: dict[tuple[str, str], list[int]] = {}
    for name, detail in named:
        text = str(list(detail)) if isinstance(detail, tuple) else str(detail)
        match = _LAYER.match(name)
        pattern = f"model.layers.{{}}.{name[match.end() :]}" if match else name
        layers.setdefault((pattern, text), []).extend([int(match[1])] if match else [])
    return [
        f"{pattern.replace('{}', ','.join(_runs(sorted(numbers))))} {text}"
        for (pattern, text), numbers in sorted(layers.items())
    ]


def _runs(numbers: list[int]) -> Iterator[str]:
    """Sorted numbers as `0-3`, `5`."""
    start = 0
    for end in range(1, len(numbers) + 1):
        if end == len(numbers) or numbers[end] != numbers[end - 1] + 1:
            first, last = numbers[start], numbers[end - 1]
            yield str(first) if first == last else f"{first}-{last}"
            start = end
