"""The tables and figures that exist, as plain data: what stands in them, not how they are made."""

from dataclasses import dataclass
from typing import Literal

from scalerlt.analysis.seeds import Over

Form = Literal["number", "error", "one_minus", "count"]


@dataclass(frozen=True)
class Column:
    """One figure of a table.

    Attributes:
        metric: name of the metric; `name/*` stands for every recorded `name/<part>`.
        header: what people read above it; a part's name follows it where there are parts.
        form: `number`; `error` is always scientific; `one_minus` is 1 - value, scientific, for values close to 1;
            `count` is a number of cells, which always exists.
        device: the kind of device that has such a figure, where it is only one.
        spread: whether the range of the repeats is part of the CSV.
        over: how the cells of a row become one entry.
    """

    metric: str
    header: str
    form: Form = "number"
    device: Literal["cpu", "cuda"] | None = None
    spread: bool = False
    over: Over = "median"


@dataclass(frozen=True)
class TableSpec:
    """A table with a row per configuration of one experiment.

    Attributes:
        rows: the axes that always name a row; others join them where they vary.
        per_device: one table per kind of device instead of one for all.
    """

    name: str
    experiment: str
    caption: str
    rows: tuple[str, ...]
    columns: tuple[Column, ...]
    per_device: bool = False


@dataclass(frozen=True)
class FigureSpec:
    """A figure: bars over an axis in one or more panels, or one figure drawn against another.

    Attributes:
        kind: `bars`: one panel per column, over the values of `x`; `tradeoff`: the second column over the first, one
            marker per value of `x`.
        x: config group along the bars, or of the markers.
        series: config group of the colours.
    """

    name: str
    kind: Literal["bars", "tradeoff"]
    experiment: str
    caption: str
    x: str
    series: str
    columns: tuple[Column, ...]


LIVE_PEAK = "live_peak_bytes"
PHASES = (
    *("load", "generate", "prefill", "decode", "reward", "logprob", "log_prob", "old_log_prob", "forward", "backward"),
    *("optimizer", "update_actor", "publish", "other"),
)
"""The order in which the parts of a metric are listed; others follow by name."""

TIME = Column("actor_update_seconds", "actor update", spread=True)
GATE = Column("gate", "gate")
ROLLOUT_MEMORY = (
    Column(LIVE_PEAK, "live peak", spread=True),
    Column(f"{LIVE_PEAK}/*", "live peak, "),
    Column("kv_cache_bytes", "KV cache"),
    Column("rss_baseline_bytes", "RSS baseline", device="cpu"),
    Column("rss_peak_bytes", "RSS peak", device="cpu"),
    Column("cuda_peak_allocated_bytes", "peak allocated", device="cuda"),
    Column("cuda_peak_reserved_bytes", "peak reserved", device="cuda"),
)
UPDATE_MEMORY = (
    Column("saved_bytes", "saved", spread=True),
    Column(LIVE_PEAK, "live peak", spread=True),
    Column(f"{LIVE_PEAK}/*", "live peak, "),
    Column("parameter_bytes", "parameters"),
    Column("optimizer_bytes", "optimizer state"),
    Column("rss_baseline_bytes", "RSS baseline", device="cpu"),
    Column("rss_peak_bytes", "RSS peak", device="cpu"),
    Column("cuda_peak_allocated_bytes", "peak allocated", device="cuda"),
    Column("cuda_peak_reserved_bytes", "peak reserved", device="cuda"),
    GATE,
)

TABLES = (
    TableSpec(
        name="rollout_throughput",
        experiment="rollout_throughput",
        caption="Rollout throughput: generated, unpadded response tokens per second, with the work behind them and the "
        "largest difference of their log-probabilities from the learner's and from fp64. Prefill and decode were timed "
        "in a pass of their own.",
        rows=("precision", "batch"),
        columns=(
            Column("tokens_per_second", "throughput", spread=True),
            Column("decode_tokens_per_second", "decode throughput", spread=True),
            Column("rollout_seconds", "rollout", spread=True),
            Column("prefill_seconds", "prefill", spread=True),
            Column("decode_seconds", "decode", spread=True),
            Column("generated_tokens", "generated"),
            Column("prompt_tokens", "prompt"),
            Column("padded_tokens", "padded"),
            Column("recurrent_rows", "recurrent"),
            Column("mean_executed_depth", "mean depth"),
            Column("logprob_error_learner", "log-prob error, learner", "error"),
            Column("logprob_error_fp64", "log-prob error, fp64", "error"),
        ),
    ),
    TableSpec(
        name="rollout_memory",
        experiment="rollout_throughput",
        caption="Memory of a rollout: peak of live bytes above the start of the step, over all and per phase, and of "
        "the process. Kinds of memory are not to be added.",
        rows=("precision", "batch"),
        columns=ROLLOUT_MEMORY,
        per_device=True,
    ),
    TableSpec(
        name="actor_update",
        experiment="actor_update",
        caption="Time of one actor update and of its parts, with the gate on what the checkpoint schedule changes in "
        "gradient and update.",
        rows=("precision", "batch", "checkpoint"),
        columns=(
            TIME,
            Column("forward_seconds", "forward", spread=True),
            Column("backward_seconds", "backward", spread=True),
            Column("optimizer_seconds", "optimizer", spread=True),
            Column("trained_tokens_per_second", "throughput", spread=True),
            Column("trained_tokens", "trained"),
            Column("prompt_tokens", "prompt"),
            Column("padded_tokens", "padded"),
            GATE,
        ),
    ),
    TableSpec(
        name="actor_update_memory",
        experiment="actor_update",
        caption="Memory of one actor update: bytes saved for the backward pass, peak of live bytes above the start of "
        "the step (parameters and optimizer state excluded), over all and per phase, and of the process. Kinds of "
        "memory are not to be added.",
        rows=("precision", "batch", "checkpoint"),
        columns=UPDATE_MEMORY,
        per_device=True,
    ),
    TableSpec(
        name="gradient_error",
        experiment="actor_update",
        caption="Gradient error: of the checkpoint schedule, against checkpoint=none in the same precision (bounded by "
        "the gates), and of rounding, against fp64, beside the floor that checkpoint=none itself has.",
        rows=("precision", "batch", "checkpoint"),
        columns=(
            GATE,
            Column("grad_sched_relative_l2", "schedule, rel. L2", "error"),
            Column("gate/gradient_relative_l2/allowed", "allowed rel. L2", "error"),
            Column("grad_sched_max_abs", "schedule, max abs", "error"),
            Column("grad_sched_cosine", "schedule, 1 − cos", "one_minus"),
            Column("grad_sched_elementwise", "schedule, elementwise"),
            Column("grad_sched_mismatches", "unequal elements"),
            Column("grad_round_relative_l2", "rounding, rel. L2", "error"),
            Column("grad_round_floor_relative_l2", "floor, rel. L2", "error"),
            Column("grad_round_max_abs", "rounding, max abs", "error"),
            Column("grad_round_cosine", "rounding, 1 − cos", "one_minus"),
            Column("grad_norm", "gradient norm"),
        ),
    ),
    TableSpec(
        name="gradient_error_groups",
        experiment="actor_update",
        caption="Gradient error of the checkpoint schedule and of rounding by parameter group, relative L2.",
        rows=("precision", "batch", "checkpoint"),
        columns=(
            Column("grad_sched_relative_l2/*", "schedule, ", "error"),
            Column("grad_round_relative_l2/*", "rounding, ", "error"),
        ),
    ),
    TableSpec(
        name="update_error",
        experiment="actor_update",
        caption="Error of the checkpoint schedule after two updates, against checkpoint=none in the same precision: "
        "elementwise errors in units of their tolerance (1 is its edge), and each gate's verdict.",
        rows=("precision", "batch", "checkpoint"),
        columns=(
            Column("gate/loss", "gate, loss"),
            Column("loss_sched_abs", "loss, abs", "error"),
            Column("gate/gradient", "gate, gradient"),
            Column("gate/gradient_relative_l2", "gate, rel. L2"),
            Column("gate/parameter_change", "gate, parameters"),
            Column("update_sched_parameters_elementwise", "parameters"),
            Column("gate/moments", "gate, moments"),
            Column("update_sched_exp_avg_elementwise", "first moment"),
            Column("update_sched_exp_avg_sq_elementwise", "second moment"),
            Column("update_norm", "update norm"),
            Column("loss", "loss"),
        ),
    ),
)

FIGURES = (
    FigureSpec(
        name="throughput",
        kind="bars",
        experiment="rollout_throughput",
        caption="Rollout throughput by batch and precision.",
        x="batch",
        series="precision",
        columns=(Column("tokens_per_second", "throughput"),),
    ),
    FigureSpec(
        name="memory",
        kind="bars",
        experiment="actor_update",
        caption="Bytes saved for the backward pass (above) and peak of live bytes (below) of one actor update, by "
        "checkpoint schedule and precision. Different kinds of memory, not to be added.",
        x="checkpoint",
        series="precision",
        columns=(Column("saved_bytes", "saved"), Column(LIVE_PEAK, "live peak")),
    ),
    FigureSpec(
        name="time_memory",
        kind="tradeoff",
        experiment="actor_update",
        caption="What a checkpoint schedule costs and saves: time of one actor update against its peak of live bytes.",
        x="checkpoint",
        series="precision",
        columns=(Column(LIVE_PEAK, "live peak"), TIME),
    ),
)
