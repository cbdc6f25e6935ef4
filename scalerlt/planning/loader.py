"""Hydra's own composition, for one request: every file is read once."""

import copy
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import ConfigRepository
from hydra.core.config_search_path import ConfigSearchPath
from hydra.errors import HydraException
from hydra.plugins.config_source import ConfigResult
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from scalerlt.errors import RequestErrors
from scalerlt.planning.presets import check_preset

CONFIG_NAME = "config"


class Loader(ConfigLoaderImpl):
    """Hydra's composition over a search path, for one request: every file is read once.

    What the request asks for again right away, such as the configuration without overrides, is composed once.
    """

    def __init__(self, search_path: ConfigSearchPath) -> None:
        super().__init__(search_path)
        self.repository = ReadOnce(search_path)
        self._composed = lru_cache(maxsize=4)(self._compose)

    def load(self, overrides: Sequence[str]) -> DictConfig:
        """The configuration of these overrides, read-only; what is wrong becomes RequestErrors."""
        return self._composed(tuple(overrides))

    def _compose(self, overrides: tuple[str, ...]) -> DictConfig:
        try:
            config = self.load_configuration(CONFIG_NAME, overrides=list(overrides), run_mode=RunMode.RUN)
        except (HydraException, OmegaConfBaseException) as error:
            raise RequestErrors([one_line(error)]) from error
        OmegaConf.set_readonly(config, True)
        return config


class ReadOnce(ConfigRepository):
    """Hydra's config files, each read and parsed once for all compositions of a request.

    Parsing takes half of the time of a composition; and a file that is edited meanwhile does not split the request.
    """

    def initialize_sources(self, config_search_path: ConfigSearchPath) -> None:
        """Another search path has other files."""
        super().initialize_sources(config_search_path)
        self._read: dict[str, ConfigResult | None] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> "ReadOnce":
        """Hydra composes with a copy: one that shares what is read until it gets another search path."""
        return copy.copy(self)

    def load_config(self, config_path: str) -> ConfigResult | None:
        """A copy of its own, since composing changes it."""
        if config_path not in self._read:
            try:
                found = super().load_config(config_path)
            except (YAMLError, UnicodeDecodeError) as error:
                where = " ".join(str(error).split())
                raise RequestErrors([f"{config_path}: not a readable config file ({where})"]) from error
            if found is not None:
                check_preset(config_path, found.config, found.defaults_list)
            self._read[config_path] = found
        return copy.deepcopy(self._read[config_path])


def one_line(error: Exception) -> str:
    """What Hydra or OmegaConf says, without its line breaks and types."""
    cause = error.__cause__
    parts = [str(error), str(cause) if isinstance(cause, HydraException | OmegaConfBaseException) else ""]
    lines = [line.strip() for part in parts for line in part.splitlines() if line.strip()]
    kept = [line for line in dict.fromkeys(lines) if not line.startswith(("object_type=", "reference_type="))]
    return " ".join(kept)
