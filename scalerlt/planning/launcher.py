"""The settings of `hydra/launcher`, typed: how the cells of a plan are run, here or by a Slurm cluster."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter, ValidationError

from scalerlt.errors import RequestErrors
from scalerlt.planning.suggestions import nearest
from scalerlt.schema.fields import Flag, NonNegativeFloat, NonNegativeInt, PositiveInt
from scalerlt.schema.machine import Machine, this_machine
from scalerlt.schema.registry import config

WHERE = "hydra.launcher"
KINDS = ("local", "slurm")
MOST_NODES = 4096
"""What a cell may ask of a cluster; whether there are so many sbatch says."""
OWN_OPTIONS = {
    "account": "account",
    "array": "array_parallelism",
    "comment": "comment",
    "constraint": "constraint",
    "cpus-per-task": "cpus_per_task",
    "dependency": "dependency",
    "exclude": "exclude",
    "gpus": "gpus_per_node",
    "gpus-per-node": "gpus_per_node",
    "gpus-per-socket": "gpus_per_node",
    "gpus-per-task": "gpus_per_node",
    "gres": "gres",
    "mem": "mem_gb",
    "nodelist": "nodelist",
    "nodes": "nodes",
    "partition": "partition",
    "qos": "qos",
    "requeue": "max_requeues",
    "no-requeue": "max_requeues",
    "signal": "signal_delay_s",
    "time": "timeout_min",
}
"""Options of sbatch that are settings of the launcher under names of their own, or ask for what such a setting tells
the plan: a job whose GPUs it does not see would have its cells planned for the CPU."""
FIXED_OPTIONS = ("error", "job-name", "ntasks", "ntasks-per-node", "open-mode", "output", "parsable", "wait", "wrap")
"""Options of sbatch that a submission cannot do without as they are."""
SHORT_OPTIONS = {
    "A": "account",
    "C": "constraint",
    "D": "chdir",
    "G": "gpus",
    "J": "job-name",
    "L": "licenses",
    "M": "clusters",
    "N": "nodes",
    "W": "wait",
    "a": "array",
    "c": "cpus-per-task",
    "d": "dependency",
    "e": "error",
    "n": "ntasks",
    "o": "output",
    "p": "partition",
    "q": "qos",
    "t": "time",
    "w": "nodelist",
    "x": "exclude",
}


def _text(value: Any) -> Any:
    """A number where a name is meant (`account=4711`) is that name."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        raise ValueError("give a text")
    if not value.strip():
        raise ValueError("give a text, or null for none")
    if re.search(r"[\x00-\x1f\x7f]", value):
        raise ValueError("holds a line break or another control character")
    return value


def _variable(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise ValueError(f"{name!r} is not the name of an environment variable")
    return name


def _option(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", name):
        raise ValueError(f"{name!r} is not the name of an option of sbatch")
    long = SHORT_OPTIONS.get(name, name).replace("_", "-")
    if long in OWN_OPTIONS:
        raise ValueError(f"set {WHERE}.{OWN_OPTIONS[long]} instead")
    if long in FIXED_OPTIONS:
        raise ValueError("the submission sets this option itself")
    return long


def _memory(gib: float) -> float:
    if 0 < gib < 1 / 1024:
        raise ValueError("less than 1 MiB; give GiB, or 0 for all memory of a node")
    return gib


def _option_value(value: Any) -> Any:
    return value if value is None or isinstance(value, bool) else _text(value)


Text = Annotated[str, BeforeValidator(_text)]
OptionValue = Annotated[bool | str | None, BeforeValidator(_option_value)]
"""Of an option of sbatch: true for one without a value; false and null leave it out."""


@config
class LocalSettings:
    """`hydra/launcher=local`: one cell after another on this machine.

    Attributes:
        infer_oom: whether a cell that is out of memory rules out those with a larger batch that were never tried.
    """

    kind: Literal["local"]
    target: str = Field(alias="_target_")
    infer_oom: Flag = True


@config
class Pack:
    """What a job does at once.

    Attributes:
        slots: how many items run at the same time, each on its part of the job's CPUs and GPUs.
        timed: whether an item that measures time has the whole job for itself.
    """

    slots: PositiveInt = 1
    timed: Literal["exclusive", "shared"] = "exclusive"


@config
class SlurmSettings:
    """`hydra/launcher=slurm`: the cells are jobs of a Slurm cluster.

    What sbatch is asked for, as it calls it, and null for the cluster's own default: account, partition, qos,
    constraint, gres, gpus_per_node, nodes, cpus_per_task (of the one task on each node), nodelist, exclude, comment,
    dependency.

    A sweep's cells may need different things; those that need the same are a resource group, which is submitted apart.
    GPUs (gpus_per_node, and what gres and other options say of them) are for cells with device=cuda: jobs for the
    others ask for none. cpus_per_task is the least: where pack.slots cells of device.threads x parallel.ranks_per_node
    threads need more, their jobs ask for so many. All else holds for every job as it is set; array_parallelism and
    max_jobs hold for each resource group. `scalerlt plan` shows what each group asks for.

    Attributes:
        wait: whether to follow the jobs to their end, or to return with their ids.
        mem_gb: GiB of memory on each node; 0: all that it has.
        timeout_min: time limit of a job.
        signal_delay_s: seconds before the limit at which running cells are told to save what they have.
        array_parallelism: how many jobs of a resource group may run at the same time.
        max_jobs: how many jobs a resource group has at most; if fewer than items, they share the queue.
        setup: lines of shell before the job starts (modules, containers).
        env: variables of the job, set after `setup`.
        srun_args: further arguments of srun; use_srun=false starts the job's process without it.
        sbatch: further options of sbatch, by their long names.
        python: the command that starts Python on a node; null: this interpreter.
        snapshot: whether jobs import a copy of the package made when they are submitted.
        max_requeues: how often a job that was preempted, or ran into its limit, goes back into the queue.
        infer_oom: as of the local launcher.
    """

    kind: Literal["slurm"]
    target: str = Field(alias="_target_")
    wait: Flag = False
    account: Text | None = None
    partition: Text | None = None
    qos: Text | None = None
    constraint: Text | None = None
    gres: Text | None = None
    gpus_per_node: NonNegativeInt | None = None
    nodes: PositiveInt = 1
    cpus_per_task: PositiveInt | None = None
    mem_gb: Annotated[NonNegativeFloat, AfterValidator(_memory)] | None = None
    timeout_min: PositiveInt
    signal_delay_s: PositiveInt = 120
    nodelist: Text | None = None
    exclude: Text | None = None
    comment: Text | None = None
    dependency: Text | None = None
    array_parallelism: PositiveInt | None = None
    max_jobs: PositiveInt | None = None
    setup: list[str] = Field(default_factory=list)
    env: dict[Annotated[str, AfterValidator(_variable)], Text] = Field(default_factory=dict)
    srun_args: list[Text] = Field(default_factory=list)
    use_srun: Flag = True
    sbatch: dict[Annotated[str, AfterValidator(_option)], OptionValue] = Field(default_factory=dict)
    python: Text | None = None
    snapshot: Flag = False
    max_requeues: NonNegativeInt = 10
    pack: Pack = Field(default_factory=Pack)
    infer_oom: Flag = True

    @property
    def gpus(self) -> int:
        """GPUs of each node, as far as the settings tell."""
        return self.gpus_of_gres if self.gpus_per_node is None else self.gpus_per_node

    @property
    def gpus_of_gres(self) -> int:
        """GPUs of each node that `gres` asks for."""
        entries = [re.sub(r"\([^)]*\)", "", entry).split(":") for entry in _entries(self.gres)]
        return sum(int(entry[-1]) if entry[-1].isdigit() else 1 for entry in entries if entry[0] == "gpu")

    def without_gpus(self) -> "SlurmSettings":
        """The same for jobs that need no GPU: what asks for GPUs, or says how they are shared out, is left out."""
        if not self.gpus:
            return self
        others = [entry for entry in _entries(self.gres) if not re.match(r"gpu\b", entry)]
        return replace(
            self,
            gpus_per_node=None,
            gres=",".join(others) or None,
            sbatch={name: value for name, value in self.sbatch.items() if not _is_of_gpus(f"--{name}={value}")},
            srun_args=[word for one in _arguments(self.srun_args) if not _is_of_gpus("=".join(one)) for word in one],
        )


def _entries(gres: str | None) -> list[str]:
    """`gpu:a100:2(S:0,1),lscratch:20` are two."""
    return re.split(r",(?![^(]*\))", gres) if gres else []


def _arguments(words: Sequence[str]) -> Iterator[list[str]]:
    """Each option of a command line with what belongs to it: `--mem 1` is two words, `--mem=1` and `-n1` are one."""
    waiting: list[str] = []
    for word in words:
        if word.startswith("-") and waiting:
            yield waiting
            waiting = []
        waiting.append(word)
    if waiting:
        yield waiting


def _is_of_gpus(option: str) -> bool:
    """`--gpu-bind=none`, `--mem-per-gpu`, `-G2`, `--gres=gpu:1`, `--tres-per-task=gres/gpu:1`."""
    name, _, value = option.partition("=")
    return re.search(r"-gpus?(-|$)|^-G", name) is not None or (name.startswith(("--gres", "--tres")) and "gpu" in value)


Settings = LocalSettings | SlurmSettings


TEXTS = (
    *("account", "comment", "constraint", "dependency", "exclude"),
    *("gres", "nodelist", "partition", "python", "qos"),
)
"""Settings whose value is one text, whatever it holds; so is every value below `env` and `sbatch`."""


def as_text(override: str) -> str:
    """Quotes what is Slurm's text and no list of Hydra's: `hydra.launcher.partition=gpu,short`, `nodelist=n[1-4]`.

    So are the items of `srun_args=[--mpi=pmix,--export=ALL]` and of `setup=[export A=1]`, where it is plain which they
    are: arguments begin with a dash each, and a line of shell is alone.
    """
    key, _, value = override.partition("=")
    name = key.removeprefix(f"{WHERE}.")
    if not re.search(r"[^\w.-]", value) or "'" in value or value.startswith(('"', "$")) or value.endswith("\\"):
        return override
    if name in TEXTS or re.fullmatch(r"(env|sbatch)\.[^.]+", name):
        return f"{key}='{value}'"
    if name in ("setup", "srun_args") and (listed := re.fullmatch(r"\[([^\[\]\"]+)\]", value)) and "${" not in value:
        items = [item.strip() for item in listed[1].split(",")]
        if len(items) == 1 if name == "setup" else all(item.startswith("-") for item in items):
            quoted = ",".join(f"'{item}'" for item in items)
            return f"{key}=[{quoted}]"
    return override


def read_launcher(launcher: Mapping[str, Any]) -> Settings:
    """The settings of a request's launcher.

    Raises:
        RequestErrors: every unknown key and wrong value, and what does not go together.
    """
    kind = launcher.get("kind")
    if kind not in KINDS:
        raise RequestErrors([f"{WHERE}.kind={kind}: there are {', '.join(KINDS)}"])
    described: type[Settings] = SlurmSettings if kind == "slurm" else LocalSettings
    try:
        settings: Settings = TypeAdapter(described).validate_python(dict(launcher))
    except ValidationError as error:
        said = [_sentence(entry, described) for entry in error.errors(include_url=False)]
        raise RequestErrors(list(dict.fromkeys(said))) from error
    if problems := _contradictions(settings):
        raise RequestErrors(problems)
    return settings


def machine_of(launcher: Mapping[str, Any]) -> Machine:
    """The machine that cells are planned for: this one, or what the jobs of a cluster are asked to have.

    Raises:
        RequestErrors: the settings are wrong.
    """
    here = this_machine()
    if launcher.get("kind") != "slurm":
        return here
    settings = read_launcher(launcher)
    assert isinstance(settings, SlurmSettings)
    reason = f"its jobs ask for none: {WHERE}.gpus_per_node={settings.gpus_per_node}, {WHERE}.gres={settings.gres}"
    cpus = settings.cpus_per_task or here.cpus
    return Machine(settings.gpus, "" if settings.gpus else reason, cpus, MOST_NODES, called="a node")


def _contradictions(settings: Settings) -> list[str]:
    if isinstance(settings, LocalSettings):
        return []
    problems = []
    if settings.signal_delay_s >= settings.timeout_min * 60:
        problems.append(
            f"{WHERE}.signal_delay_s={settings.signal_delay_s}: a job of {WHERE}.timeout_min={settings.timeout_min} "
            f"lasts {settings.timeout_min * 60} s; the signal has to come after its start"
        )
    if settings.gpus_per_node is not None and settings.gpus_of_gres:
        problems.append(
            f"{WHERE}.gres={settings.gres}: {WHERE}.gpus_per_node={settings.gpus_per_node} asks for GPUs, too; set one "
            "of them to null"
        )
    slots = settings.pack.slots
    gpus = "gres" if settings.gpus_per_node is None else "gpus_per_node"
    for key, count in (("cpus_per_task", settings.cpus_per_task), (gpus, settings.gpus)):
        if count and count < slots:
            problems.append(
                f"{WHERE}.{key}={getattr(settings, key)}: {WHERE}.pack.slots={slots} items at once need at least "
                f"{slots}; each gets its own"
            )
    if settings.nodes > 1 and slots > 1:
        problems.append(f"{WHERE}.nodes={settings.nodes}: with {WHERE}.pack.slots={slots} a job has one node")
    if settings.nodes > 1 and not settings.use_srun:
        problems.append(f"{WHERE}.nodes={settings.nodes}: without srun (use_srun=false) only one of them would work")
    return problems


def _names(described: type[Any]) -> list[str]:
    return [field.name for field in fields(described) if field.name not in ("kind", "target")]


def _sentence(error: Any, described: type[Settings]) -> str:
    where = [str(part) for part in error["loc"] if str(part) not in ("[key]", "bool") and "(" not in str(part)]
    key = ".".join([WHERE, *where])
    message = error["msg"].removeprefix("Value error, ")
    match error["type"]:
        case "missing":
            return f"{key} is missing"
        case "unexpected_keyword_argument":
            owner = Pack if where[0] == "pack" and len(where) > 1 else described
            if described is LocalSettings and where[0] in _names(SlurmSettings):
                return f"{key} is not a setting of hydra/launcher=local; hydra/launcher=slurm has it"
            return f"{key} is not a setting of the launcher{nearest(where[-1], _names(owner))}"
        case "value_error":
            return f"{key}={error['input']!r}: {message}" if "[key]" not in error["loc"] else f"{key}: {message}"
        case _:
            return f"{key}={error['input']!r}: {message[0].lower()}{message[1:]}"
