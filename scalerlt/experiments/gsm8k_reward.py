"""`experiment=gsm8k_reward`: rollout, grade, advantages, update, publish, again; measured to a reward curve."""

import time
from collections import Counter
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from scalerlt.experiments.answers import Answer, answer
from scalerlt.experiments.building import device_of
from scalerlt.experiments.calibrating import calibrate_auto, chosen_steps, expected_responses, record_chosen
from scalerlt.experiments.evaluation import Evaluation, evaluate
from scalerlt.experiments.inputs import problems
from scalerlt.experiments.io_metrics import record_bandwidth, record_share
from scalerlt.experiments.learning import advantages_of, training_responses, with_old_logprobs, with_reference_logprobs
from scalerlt.experiments.policy import Policy
from scalerlt.experiments.requests import encoded
from scalerlt.experiments.resume import save_policy, take_up
from scalerlt.experiments.rewards import dealt_rewards
from scalerlt.experiments.samples_writer import SamplesWriter
from scalerlt.experiments.training_problems import TrainingProblems
from scalerlt.learner.advantages import Advantages, group_advantages
from scalerlt.learner.batching import minibatches_of
from scalerlt.learner.step import StepResult
from scalerlt.measure.clock import PhaseTimer, synchronizer
from scalerlt.records.recorder import Recorder
from scalerlt.records.samples import SamplesHeader
from scalerlt.rollout.native import RolloutStats
from scalerlt.rollout.traffic import rollout_traffic
from scalerlt.schema import Cell
from scalerlt.schema.experiment.gsm8k_reward import Gsm8kReward


@dataclass
class Totals:
    """What a run has used up, over all its attempts.

    Attributes:
        samples: responses generated for training.
        tokens: response tokens of these.
        seconds: wall time of training steps; evaluations and saving are apart.
    """

    samples: int = 0
    tokens: int = 0
    seconds: float = 0.0


def run(cell: Cell, recorder: Recorder) -> None:
    """Train the cell's policy and record its curve."""
    with recorder.phase("load"):
        training = Training(cell, recorder)
    with recorder.measuring("train"):
        training.run()
    training.record_io()


@dataclass
class Training:
    """One attempt at a run.

    Attributes:
        step: training steps done.
        accuracies: held-out accuracy by step.
        moved: bytes moved by this attempt's steps, by phase.
        seconds: their time, by phase.
    """

    cell: Cell
    recorder: Recorder
    step: int = 0
    totals: Totals = field(default_factory=Totals)
    accuracies: dict[int, float] = field(default_factory=dict)
    moved: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert isinstance(self.cell.experiment, Gsm8kReward)
        self.experiment = self.cell.experiment
        self.policy = Policy(self.cell)
        self.problems = TrainingProblems(self.cell)
        self.held_out = problems(self.cell, self.experiment.eval_problems, self.experiment.eval_split)
        header = SamplesHeader(
            model=self.cell.model.name,
            vocab_size=self.cell.model.vocab_size,
            made_by=f"gsm8k_reward, native engine, seed {self.cell.seed}",
        )
        self.samples = SamplesWriter(self.recorder, header, limit=self.experiment.samples_limit)
        self.timer = PhaseTimer(synchronizer(device_of(self.cell)))
        take_up(self)
        prompts = encoded(self.cell, self.policy.tokenizer, self.problems.of_step(1))
        expected = expected_responses(self.cell, prompts)
        calibrate_auto(self.cell, self.recorder, self.policy.learner, self.policy.schedule, expected)

    def run(self) -> None:
        """All steps that are left."""
        if self.step == 0:
            self.evaluate()
        while self.step < self.experiment.steps:
            self.train_step()
            self.recorder.progress(self.step, self.experiment.steps, "steps")
            last = self.step == self.experiment.steps
            if last or self.step % self.experiment.evaluate_every == 0:
                self.evaluate()
            if self.experiment.checkpoint_every and (last or self.step % self.experiment.checkpoint_every == 0):
                save_policy(self)
        self.record_outcome()

    def train_step(self) -> None:
        """One rollout batch and the updates on it."""
        self.step += 1
        started = time.perf_counter()
        with self.timer.phase("generate"):
            answers, stats = self.generate()
        with self.timer.phase("reward"):
            rewards = dealt_rewards(self.cell, self.step, [one.reward for one in answers])
            groups = [one.prompt_group for one in answers]
            advantages = advantages_of(self.cell, rewards, groups) or group_advantages(
                rewards, groups, estimator="group_std"
            )
        samples = [one.sample(advantage=value) for one, value in zip(answers, advantages.values, strict=True)]
        responses = training_responses(samples, advantages)
        with self.timer.phase("old_log_prob"):
            responses = with_old_logprobs(self.cell, self.policy.model, responses)
            if self.policy.reference is not None:
                responses = with_reference_logprobs(self.cell, self.policy.reference, responses)
        if self.experiment.save_every and self.step % self.experiment.save_every == 0:
            learner = self.policy.learner_logprobs(responses)
            lines = zip(answers, advantages.values, learner, strict=True)
            saved = [one.sample(advantage=value, learner_logprobs=logprobs) for one, value, logprobs in lines]
            self.samples.write("step", self.step, saved)
        with self.timer.phase("update_actor"):
            minibatches = minibatches_of(responses, self.cell.batch.minibatch_responses)
            chosen_before = chosen_steps(self.policy.schedule)
            results = [self.policy.learner.step(minibatch) for minibatch in minibatches]
        with self.timer.phase("publish"):
            self.policy.publish(self.step)
        with self.timer.phase("depth_match"):
            matched = self.policy.depth_match_fraction(responses)
        self.totals.samples += len(answers)
        self.totals.tokens += stats.generated_tokens
        self.totals.seconds += time.perf_counter() - started
        chosen = chosen_steps(self.policy.schedule) - chosen_before
        self.record_step(answers, rewards, advantages, stats, results, matched, chosen)

    def generate(self) -> tuple[list[Answer], RolloutStats]:
        """The rollout batch of the present step."""
        size = self.cell.batch.group_size
        return answer(
            self.cell,
            self.policy.engine,
            self.policy.tokenizer,
            self.problems.of_step(self.step),
            group_size=size,
            temperature=self.cell.rollout.temperature,
            first_seed=(self.step - 1) * self.cell.batch.responses_per_step,
        )

    def record_step(
        self,
        answers: list[Answer],
        rewards: list[float],
        advantages: Advantages,
        stats: RolloutStats,
        results: list[StepResult],
        matched: float | None,
        chosen: Counter[str],
    ) -> None:
        """One row of the series."""
        graded = evaluate(answers)
        mean = sum(rewards) / len(rewards)
        lengths = [len(one.response.tokens) for one in answers]
        logprobs = [value for one in answers for value in one.response.logprobs]
        timings = self.timer.take()
        trained = sum(result.trained_tokens for result in results)
        moved = {
            "generate": rollout_traffic(self.policy.engine.model, stats).total,
            "update_actor": sum(self.policy.learner.traffic(result).total for result in results),
            "publish": self.policy.publication_bytes,
        }
        self.moved.update(moved)
        for phase in moved:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + timings[phase]
        row: dict[str, Any] = {
            **self.position(),
            "reward": mean,
            "reward_std": (sum((reward - mean) ** 2 for reward in rewards) / len(rewards)) ** 0.5,
            "frac_reward_zero_std": advantages.frac_reward_zero_std,
            "train/accuracy": graded.accuracy,
            "train/format_rate": graded.format_rate,
            "completions/mean_length": graded.mean_length,
            "completions/min_length": min(lengths),
            "completions/max_length": max(lengths),
            "completions/clipped_ratio": graded.clipped_ratio,
            "entropy": -sum(logprobs) / len(logprobs),
            "loop/exit_depth_mean": graded.mean_depth,
            **{f"loop/exit_depth_hist_{depth}": count for depth, count in sorted(stats.decode_depths.items())},
            "loss": sum(result.loss for result in results) / len(results),
            "grad_norm": sum(result.grad_norm for result in results) / len(results),
            "updates": sum(result.updated for result in results),
            **_means([result.statistics for result in results]),
            "io_bytes_per_generated_token": moved["generate"] / stats.generated_tokens,
            "publication_bytes": moved["publish"],
            **{f"timing_s/{name}": seconds for name, seconds in timings.items()},
        }
        if trained:
            row["io_bytes_per_trained_token"] = moved["update_actor"] / trained
        row |= {f"auto_optimizer_steps/{name}": count for name, count in chosen.items()}
        if matched is not None:
            row["loop/depth_match_fraction"] = matched
        self.recorder.series(**row)

    def record_io(self) -> None:
        """The bandwidth that this attempt's steps had, by phase, as a share of the device's."""
        bandwidth = record_bandwidth(self.recorder, device_of(self.cell))
        for phase, nbytes in self.moved.items():
            record_share(self.recorder, nbytes, [self.seconds[phase]], bandwidth, scope=phase, suffix=f"/{phase}")

    def evaluate(self) -> None:
        """Held-out accuracy of the published policy: greedy, at the rollout's schedule and at full depth."""
        found = self.policy.greedy(self.held_out)
        self.samples.write("eval", self.step, [one.sample() for one in found])
        schedule = evaluate(found)
        row: dict[str, Any] = {**self.position(), **_held_out(schedule, "")}
        if self.cell.rollout.schedule != "dense":
            row |= _held_out(evaluate(self.policy.greedy(self.held_out, full_depth=True)), "/full_depth")
        self.accuracies[self.step] = schedule.accuracy
        self.recorder.series(**row)

    def position(self) -> dict[str, Any]:
        """What series are drawn against."""
        return {"step": self.step, **asdict(self.totals)}

    def record_outcome(self) -> None:
        """The figures of the whole run."""
        first, last = self.accuracies[0], self.accuracies[self.experiment.steps]
        n = len(self.held_out)
        method = f"greedy on {n} held-out problems, {self.cell.grader.extraction} extraction"
        self.recorder.metric("accuracy_before", first, "fraction", n=n, method=method)
        self.recorder.metric("accuracy", last, "fraction", n=n, method=method)
        self.recorder.metric("accuracy_gain", last - first, "fraction", n=n, method="accuracy less accuracy_before")
        self.recorder.metric("accuracy_best", max(self.accuracies.values()), "fraction", n=n, method=method)
        self.recorder.metric("steps", self.step, "step")
        for total in fields(self.totals):
            unit = {"samples": "response", "tokens": "token", "seconds": "s"}[total.name]
            scope = "rl_step" if total.name == "seconds" else None
            self.recorder.metric(f"train_{total.name}", getattr(self.totals, total.name), unit, scope=scope)
        record_chosen(self.recorder, self.policy.schedule)


def _held_out(found: Evaluation, suffix: str) -> dict[str, float]:
    return {
        f"accuracy{suffix}": found.accuracy,
        f"accuracy_standard_error{suffix}": found.standard_error,
        f"accuracy_flexible{suffix}": found.flexible,
        f"format_rate{suffix}": found.format_rate,
        f"eval/clipped_ratio{suffix}": found.clipped_ratio,
        f"eval/exit_depth_mean{suffix}": found.mean_depth,
    }


def _means(statistics: list[dict[str, float]]) -> dict[str, float]:
    """Each figure over the optimizer steps of a rollout batch; of maxima the largest."""
    names = dict.fromkeys(name for one in statistics for name in one)
    values = {name: [one[name] for one in statistics if name in one] for name in names}
    return {name: max(of) if name.endswith("_max") else sum(of) / len(of) for name, of in values.items()}
