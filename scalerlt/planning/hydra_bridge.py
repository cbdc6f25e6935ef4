"""All that ScaleRLT knows of Hydra's internals.

Hydra 1.3 accepts sweeper and launcher plugins from no namespace but `hydra_plugins`, so ours are put in place as the
module `hydra_plugins.scalerlt` before Hydra looks for them. Sweep files reach Hydra as the config group
`sweeps` through its ConfigStore.

One request takes one of two ways to the same cells: `launch` goes through `hydra.main` (`run`, `sweep`,
`python -m scalerlt`), `compose` does not start anything (`plan`).
"""

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import hydra
from hydra._internal.utils import create_config_search_path, get_args_parser
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.core.utils import setup_globals
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from scalerlt.errors import RequestErrors, UserError
from scalerlt.planning import overrides as checks
from scalerlt.planning import sweep_file
from scalerlt.planning.combinations import combinations as combinations_of
from scalerlt.planning.composing import compose_all, plain, resolved
from scalerlt.planning.launcher import SlurmSettings, as_text, machine_of, read_launcher
from scalerlt.planning.loader import CONFIG_NAME, Loader, one_line
from scalerlt.planning.parts import Axis, axes_of
from scalerlt.planning.request import ComposedCell, Request
from scalerlt.planning.resolve import resolve_all
from scalerlt.planning.retry import as_list, read_retry
from scalerlt.planning.ruling import judged
from scalerlt.planning.sweep_file import SweepFile
from scalerlt.schema.cell import REQUEST_KEYS
from scalerlt.schema.machine import Machine

CONF = Path(__file__).parent.parent / "conf"
PLUGINS = "hydra_plugins.scalerlt"


Execute = Callable[[Request], int]
"""Carries out a request and returns the exit code."""


def launch(arguments: Sequence[str], execute: Execute) -> int:
    """Run a command line as Hydra does: overrides, -m, --cfg, --help, --config-dir, shell completion.

    Raises:
        RequestErrors: everything that is wrong with the request; nothing was started or written.
    """
    arguments = _prepare(arguments)
    parsed = get_args_parser().parse_args(arguments)
    shows_something = parsed.cfg or parsed.help or parsed.hydra_help or parsed.info or parsed.shell_completion
    if parsed.multirun and (parsed.cfg or parsed.info or parsed.shell_completion):
        raise UserError("--cfg, --info and -sc tell of one cell and not of a sweep; leave out `sweep` or -m")
    if parsed.shell_completion and "COMP_LINE" in os.environ:
        os.environ["COMP_LINE"] = _without_command(os.environ["COMP_LINE"])
    if not shows_something:
        _check(parsed.overrides, _loader(parsed.config_dir), multirun=parsed.multirun)
    exit_codes: list[int] = []

    def run_one(config: DictConfig) -> None:
        overrides = [text for text in parsed.overrides if not _is_hydra(text)]
        try:
            cell = ComposedCell(overrides, plain(config))
            retry, limit = _retry(config), _max_gpu_hours(config)
            exit_codes.append(
                execute(Request(None, overrides, [], [cell], str(config.runs_dir), {}, retry, max_gpu_hours=limit))
            )
        except UserError as error:
            raise _Refused(error) from error

    PlanSweeper.execute = staticmethod(lambda request: exit_codes.append(execute(request)))
    argv, sys.argv = sys.argv, ["scalerlt", *arguments]
    try:
        hydra.main(version_base="1.3", config_path=str(CONF), config_name=CONFIG_NAME)(run_one)()
    except _Refused as refused:
        raise refused.error from None
    finally:
        sys.argv = argv
    return exit_codes[-1] if exit_codes else 0


def _without_command(line: str) -> str:
    """A line to be completed as Hydra knows it: before its last word no command of ours, name of a sweep, or flag."""
    program, *words = line.split(" ")
    return " ".join([program, *(word for word in words[:-1] if "=" in word), *words[-1:]])


def compose(arguments: Sequence[str], config_dir: str | None = None) -> Request:
    """The request of a command line, composed and not started; raises RequestErrors like `launch`."""
    arguments = _prepare(arguments)
    loader = _loader(config_dir)
    return _request(loader, arguments, _check(arguments, loader, multirun=True))


class PlanSweeper(Sweeper):
    """Composes every cell of a multirun and hands them over as one request."""

    execute: Callable[[Request], None]

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Keep what Hydra offers."""
        self.loader = Loader(hydra_context.config_loader.get_search_path())
        self.base = config

    def sweep(self, arguments: list[str]) -> Any:
        """Compose and execute."""
        try:
            return type(self).execute(_request(self.loader, arguments, self.base))
        except UserError as error:
            raise _Refused(error) from error


class PlanLauncher(Launcher):
    """Names the way in which a plan's cells are run; the settings are read from its configuration."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Nothing to keep."""

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Any:
        """Refuses: a foreign sweeper has no plan."""
        raise _Refused(UserError("this launcher runs plans; use it with hydra/sweeper=scalerlt"))


class _Refused(SystemExit):
    """Carries a UserError through Hydra, which would print a traceback for any other exception."""

    def __init__(self, error: UserError) -> None:
        self.error = error
        super().__init__(2)


class _HydraOptions:
    """The config groups on Hydra's search path."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def groups(self) -> list[str]:
        found, waiting = [], [""]
        while waiting:
            parent = waiting.pop()
            for name in self.loader.list_groups(parent):
                group = f"{parent}/{name}".lstrip("/")
                if group != "hydra":
                    found.append(group)
                    waiting.append(group)
        return found

    def options(self, group: str) -> list[str]:
        return list(self.loader.get_group_options(group))


def _check(arguments: Sequence[str], loader: Loader, *, multirun: bool) -> DictConfig:
    """What is the same for all cells of a sound request.

    Raises:
        RequestErrors: all that is wrong with the request: in form, groups, keys, and, of what remains, in values.
    """
    problems: list[str] = []
    parsed = checks.parse(arguments, problems, loader)
    defaults = _defaults(loader)
    named = _named_by_sweep(parsed, loader)
    found, sound = checks.check(parsed, _HydraOptions(loader), defaults, multirun=multirun, beside=named)
    problems += found
    texts = [override.input_line or "" for override in sound]
    try:
        base = _base(loader, texts)
        problems += _wrong_launcher(base, multirun=multirun)
        if problems:  # else the values are checked when each cell is composed
            resolve_all(_request(loader, texts, base).cells, _machine(base))
    except RequestErrors as error:
        problems += [problem for problem in error.problems if problem not in problems]
    if problems:
        raise RequestErrors(problems)
    return base


def _named_by_sweep(overrides: Sequence[Override], loader: Loader) -> list[Override]:
    """What the chosen sweep's file says, as overrides; none where there is no sweep, or a faulty one."""
    chosen = [override.input_line or "" for override in overrides if override.key_or_group == "sweeps"]
    try:
        base = loader.load(chosen)
        sweep = sweep_file.read(Path(base.sweep.file)) if "sweep" in base else None
    except UserError:
        return []  # what is wrong with it is said where it is read for good
    axes = [axis for axes in axes_of(sweep.cells) for axis in axes] if sweep else []
    return checks.parse([f"{key}={values}" for key, values in dict.fromkeys(axes)], [], loader)


def _base(loader: Loader, arguments: Sequence[str]) -> DictConfig:
    """What is the same for all cells: Hydra's own settings, the sweep, where records go."""
    common = {"sweeps", *REQUEST_KEYS, *_HydraOptions(loader).groups()}
    single = [override for override in checks.parse(arguments, [], loader) if not override.is_sweep_override()]
    texts = [override.input_line or "" for override in single if override.key_or_group in common or _of_hydra(override)]
    base = loader.load(texts)
    _check_runs_dir(base)
    _retry(base)
    _max_gpu_hours(base)
    sweeper, launcher = base.hydra.sweeper.get("_target_"), base.hydra.launcher.get("_target_")
    if launcher != f"{PLUGINS}.{PlanLauncher.__name__}":
        raise RequestErrors(
            [f"hydra/launcher: {launcher} runs Hydra's jobs and knows no plans; use hydra/launcher=local"]
        )
    if sweeper != f"{PLUGINS}.{PlanSweeper.__name__}":
        raise RequestErrors([f"hydra/sweeper: {sweeper} makes no plans; use hydra/sweeper=scalerlt"])
    return base


def _wrong_launcher(base: DictConfig, *, multirun: bool) -> list[str]:
    try:
        settings = read_launcher(resolved(base.hydra.launcher))
    except RequestErrors as error:
        return error.problems
    if not multirun and isinstance(settings, SlurmSettings):
        return ["hydra/launcher=slurm submits a sweep, and this measures one cell here; use scalerlt sweep"]
    return []


def _machine(base: DictConfig) -> Machine | None:
    """That the cells are planned for; None where the launcher's settings, which are to tell, are wrong."""
    try:
        return machine_of(resolved(base.hydra.launcher))
    except RequestErrors:
        return None  # said by _wrong_launcher


def _check_runs_dir(base: DictConfig) -> None:
    try:
        given = base.runs_dir
    except OmegaConfBaseException as error:
        raise RequestErrors([one_line(error)]) from error
    if not isinstance(given, str | int | float) or not str(given).strip():
        raise RequestErrors([f"runs_dir={given}: give the directory where records go"])


def _max_gpu_hours(config: DictConfig) -> float | None:
    try:
        given = config.max_gpu_hours
    except OmegaConfBaseException as error:
        raise RequestErrors([one_line(error)]) from error
    if given is None or (isinstance(given, int | float) and not isinstance(given, bool) and given >= 0):
        return None if given is None else float(given)
    raise RequestErrors([f"max_gpu_hours={given}: give a number of hours, or null for no limit"])


def _retry(config: DictConfig) -> frozenset[str]:
    try:
        return read_retry(config.retry)
    except OmegaConfBaseException as error:
        raise RequestErrors([one_line(error)]) from error


def _defaults(loader: Loader) -> dict[str, str]:
    return _chosen(loader.load([]))


def _chosen(config: DictConfig) -> dict[str, str]:
    """The option of each config group that Hydra has chosen."""
    choices = config.hydra.runtime.choices
    return {str(group): str(option) for group, option in choices.items() if not str(group).startswith("hydra")}


def _request(loader: Loader, arguments: Sequence[str], base: DictConfig) -> Request:
    """Compose every cell.

    Args:
        arguments: overrides, the choice of a sweep among them.
        base: the configuration of the whole multirun, which names the sweep's file and the launcher.
    """
    sweep = sweep_file.read(Path(base.sweep.file)) if "sweep" in base else None
    of_hydra = [text for text in arguments if _is_hydra(text)]
    own = [override for override in checks.parse(arguments, [], loader) if _is_value(override)]
    if sweep is not None:
        _check_sweep_keys(sweep, own, loader, _chosen(base))
    own_axes: list[Axis] = [(_left(override), ",".join(checks.values_of(override))) for override in own]
    combinations = combinations_of(sweep, own_axes, partial(_values, loader=loader))
    values: dict[str, set[str]] = {}
    for text in dict.fromkeys(text for combination in combinations for text in combination):
        key, _, value = text.partition("=")
        values.setdefault(key.lstrip("+"), set()).add(value)
    composed = compose_all(loader, of_hydra, list(combinations))
    return judged(
        Request(
            sweep=sweep,
            overrides=[override.input_line or "" for override in own],
            swept=[key for key, distinct in values.items() if len(distinct) > 1],
            cells=[ComposedCell(list(key), config, combinations[key]) for key, config in composed.items()],
            runs_dir=str(base.runs_dir),
            launcher=resolved(base.hydra.launcher),
            retry=_retry(base),
            max_gpu_hours=_max_gpu_hours(base),
        )
    )


def _check_sweep_keys(sweep: SweepFile, own: Sequence[Override], loader: Loader, defaults: dict[str, str]) -> None:
    """The keys and options that a sweep file names are checked like the command line's."""
    problems: list[str] = []
    named = list(own)
    options = _HydraOptions(loader)
    for axes in dict.fromkeys(axes_of(sweep.cells)):
        parsed = checks.parse([f"{key}={values}" for key, values in axes], problems, loader)
        problems += checks.check(parsed, options, defaults, multirun=True)[0]
        named += parsed
    problems += checks.check_conditions(sweep.conditions, named, options, defaults)
    if problems:
        raise RequestErrors([f"sweep {sweep.name}: {problem}" for problem in dict.fromkeys(problems)])


def _values(axis: Axis, loader: Loader) -> list[str]:
    """The values that an axis names; RequestErrors when it does not parse."""
    problems: list[str] = []
    parsed = checks.parse([f"{axis[0]}={axis[1]}"], problems, loader)
    if problems:
        raise RequestErrors(problems)
    return checks.values_of(parsed[0])


def _is_value(override: Override) -> bool:
    return override.key_or_group != "sweeps" and not _of_hydra(override)


def _of_hydra(override: Override) -> bool:
    return _is_hydra(override.input_line or "")


def _left(override: Override) -> str:
    return (override.input_line or "").partition("=")[0]


def _is_hydra(text: str) -> bool:
    return text.lstrip("+~").split("=")[0].split(".")[0].split("/")[0] == "hydra"


def _register_plugins() -> None:
    """Make our plugins known as `hydra_plugins.scalerlt`, beside whatever other plugins are installed."""
    if PLUGINS in sys.modules:
        return
    try:
        importlib.import_module("hydra_plugins")
    except ImportError:
        sys.modules["hydra_plugins"] = ModuleType("hydra_plugins")
        sys.modules["hydra_plugins"].__path__ = []
    sys.modules[PLUGINS] = module = ModuleType(PLUGINS)
    for plugin in (PlanSweeper, PlanLauncher):
        plugin.__module__ = PLUGINS
        setattr(module, plugin.__name__, plugin)
        Plugins.instance().register(plugin)


def _store_sweeps(given: Sequence[Path]) -> None:
    store = ConfigStore.instance()
    files = sweep_file.available() | {path.stem: path for path in given}
    for name, path in files.items():
        node = {"sweep": {"name": name, "file": str(path.absolute())}}
        store.store(group="sweeps", name=name, package="_global_", node=node)


def _prepare(arguments: Sequence[str]) -> list[str]:
    """Make plugins and sweeps known; a sweep given by its path is named to Hydra by its file's name."""
    _register_plugins()
    setup_globals()  # the resolvers ${now:} and ${hydra:}, for `plan` as hydra.main does for the others
    prepared, given = [], []
    for text in arguments:
        key, _, value = text.partition("=")
        if key in ("sweeps", "+sweeps"):
            if sweep_file.is_path(value):
                given.append(sweep_file.find(value))
                value = given[-1].stem
            text = f"+sweeps={_as_text(value)}"
        if key == "retry":
            text = as_list(text)
        if key.lstrip("+").startswith("hydra.launcher."):
            text = f"++{as_text(text.lstrip('+'))}"  # a wrong name is said with all else that is wrong
        prepared.append(text)
    _store_sweeps(given)
    return prepared


def _as_text(name: str) -> str:
    """A sweep's name, quoted where Hydra would read a number, a truth value or null."""
    if not sweep_file.NAME.fullmatch(name):
        return name
    return name if isinstance(OverridesParser.create().parse_override(f"sweeps={name}").value(), str) else f"'{name}'"


def _loader(config_dir: str | None) -> Loader:
    """A config loader over our configuration, with the directory of --config-dir before it."""
    search_path = create_config_search_path(f"file://{CONF}")
    if config_dir is not None:
        if not Path(config_dir).is_dir():
            raise RequestErrors([f"--config-dir {config_dir}: there is no such directory"])
        search_path.prepend("command-line", f"file://{Path(config_dir).resolve()}", SearchPathQuery(provider="schema"))
    return Loader(search_path)
