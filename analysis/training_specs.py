"""The tables and figures of reinforcement learning and of accuracy, as plain data."""

from dataclasses import dataclass
from typing import Literal

from scalerlt.analysis.specs import Column, TableSpec

CONFIGURATION = ("rollout", "logprob", "algorithm", "experiment.rewards")
"""The axes that always name a configuration of reinforcement learning; others join them where they vary."""


@dataclass(frozen=True)
class Panel:
    """One panel of curves.

    Attributes:
        column: of the series.
        kind: of the rows that hold it.
        header: what people read beside it.
        scale: `fit`: linear, over the values; `zero`: linear, from zero; `log`: logarithmic where the values span more
            than a decade, else from zero.
    """

    column: str
    kind: Literal["train", "eval"]
    header: str
    scale: Literal["fit", "zero", "log"] = "fit"


@dataclass(frozen=True)
class TrainingFigure:
    """A figure over the training of the configurations of one experiment.

    Attributes:
        kind: `curves`: the panels over `x`, a line per seed; `depths`: shares of exit depths over the steps, a panel
            per configuration; `phases`: shares of the training time, a bar per configuration.
        x: column of the series along the curves, and what people read below it.
        rows: the axes that always name a configuration.
    """

    name: str
    kind: Literal["curves", "depths", "phases"]
    caption: str
    x: tuple[str, str] = ("step", "training step")
    panels: tuple[Panel, ...] = ()
    experiment: str = "gsm8k_reward"
    rows: tuple[str, ...] = CONFIGURATION


def _mean(column: str, header: str, form: Literal["number", "error"] = "number") -> Column:
    return Column(f"train_mean/{column}", header, form, over="mean")


TRAINING_TABLES = (
    TableSpec(
        name="reward",
        experiment="gsm8k_reward",
        caption="Reward: held-out greedy accuracy before and after training. Entries are means over seeds; from 5 "
        "seeds on the gain has a 95 % Student t interval over the seeds' gains, with fewer it has none. The paired "
        "bound of one seed is the lower end of the two-sided 95 % interval of its gain over the same problems before "
        "and after (Newcombe's score interval for paired proportions, method 10): the smallest one, and how many seeds "
        "exceed 5 points. rewards=shuffled is the control, which must not gain. Time and tokens are training's alone.",
        rows=CONFIGURATION,
        columns=(
            Column("accuracy_before", "accuracy before", over="mean"),
            Column("accuracy", "after", over="mean"),
            Column("gain", "gain", over="mean"),
            Column("gain", "gain, 95 % from", over="interval from"),
            Column("gain", "gain, 95 % to", over="interval to"),
            Column("gain", "smallest gain", over="smallest"),
            Column("gain_lower", "smallest paired bound", over="smallest"),
            Column("gain_lower", "bounds above 5", over="above 5"),
            Column("eval_problems", "held-out", over="smallest"),
            Column("steps", "trained", over="smallest"),
            Column("train_seconds", "training", over="mean"),
            Column("train_tokens", "generated", over="mean"),
        ),
    ),
    TableSpec(
        name="reward_mismatch",
        experiment="gsm8k_reward",
        caption="How far the learner's policy is from the rollout's, token by token: means over training steps and "
        "seeds, and the largest difference in any step of any seed. Δ: learner's less rollout's log-prob of a sampled "
        "token; k1, k3: estimators of the KL divergence (rollout from learner); ratio: e^Δ; ESS: effective sample "
        "size, 1 at no mismatch; clipped: share of tokens; depth match: share of decode tokens that the updated policy "
        "would stop where the rollout did.",
        rows=CONFIGURATION,
        columns=(
            _mean("train_rollout_logprob_abs_diff", "|Δ|, mean", "error"),
            Column("train_max/train_rollout_logprob_abs_diff_max", "|Δ|, largest", "error", over="largest"),
            _mean("rollout_corr/kl", "k1", "error"),
            _mean("rollout_corr/k3_kl", "k3", "error"),
            _mean("rollout_corr/rollout_is_p99", "ratio, p99"),
            _mean("rollout_corr/rollout_is_eff_sample_size", "ESS"),
            _mean("actor/pg_clipfrac", "clipped"),
            _mean("loop/depth_match_fraction", "depth match"),
            _mean("loop/exit_depth_mean", "mean depth"),
        ),
    ),
    TableSpec(
        name="reward_time",
        experiment="gsm8k_reward",
        caption="Where training time goes: share of each phase, mean over seeds. Evaluations and saving are not part "
        "of it; other is what no phase covers.",
        rows=CONFIGURATION,
        columns=(
            Column("train_seconds", "training", over="mean"),
            Column("time_share/*", "", over="mean"),
        ),
    ),
    TableSpec(
        name="evaluation",
        experiment="gsm8k_eval",
        caption="Accuracy without training: greedy, one answer per problem, at the rollout's own schedule and with "
        "every token at full depth. The standard errors are binomial, over problems.",
        rows=("precision", "rollout", "rollout.exit_threshold", "experiment.answers"),
        columns=(
            Column("problems", "held-out"),
            Column("accuracy", "accuracy"),
            Column("accuracy_standard_error", "±"),
            Column("accuracy_strict", "strict"),
            Column("accuracy_flexible", "flexible"),
            Column("format_rate", "format"),
            Column("completions/clipped_ratio", "truncated"),
            Column("loop/exit_depth_mean", "mean depth"),
            Column("accuracy/full_depth", "accuracy, full depth"),
            Column("accuracy_standard_error/full_depth", "± , full depth"),
            Column("accuracy_flexible/full_depth", "flexible, full depth"),
            Column("completions/clipped_ratio/full_depth", "truncated, full depth"),
        ),
    ),
)

REWARD_PANELS = (
    Panel("reward", "train", "training reward"),
    Panel("accuracy", "eval", "held-out accuracy"),
)
TRAINING_FIGURES = (
    TrainingFigure(
        name="reward",
        kind="curves",
        caption="Mean training reward and held-out accuracy against training steps.",
        panels=REWARD_PANELS,
    ),
    TrainingFigure(
        name="reward_tokens",
        kind="curves",
        caption="Mean training reward and held-out accuracy against tokens generated for training.",
        x=("tokens", "generated tokens"),
        panels=REWARD_PANELS,
    ),
    TrainingFigure(
        name="reward_seconds",
        kind="curves",
        caption="Mean training reward and held-out accuracy against training time, without evaluations and saving.",
        x=("seconds", "training time (s)"),
        panels=REWARD_PANELS,
    ),
    TrainingFigure(
        name="mismatch",
        kind="curves",
        caption="Mean |Δ log-prob| of the learner against the rollout, and the share of decode tokens that the updated "
        "policy would stop at the rollout's depth.",
        panels=(
            Panel("train_rollout_logprob_abs_diff", "train", "mean |Δ log-prob| (nat)", "log"),
            Panel("loop/depth_match_fraction", "train", "depth match", "zero"),
        ),
    ),
    TrainingFigure(
        name="time_by_phase",
        kind="phases",
        caption="Share of training time by phase, mean over seeds. Evaluations and saving are not part of it; other is "
        "what no phase covers.",
    ),
    TrainingFigure(
        name="exit_depths",
        kind="depths",
        caption="Exit depths of the decode tokens generated for training, as shares of each step's tokens.",
    ),
)
