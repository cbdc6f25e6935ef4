"""`experiment=gsm8k_reward`: rollout, grade, advantages, update, publish, again; measured to a reward curve."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from scalerlt.errors import Preempted
from scalerlt.experiments.answers import Answer, answer
from scalerlt.experiments.building import device_of
from scalerlt.experiments.calibrating import calibrate_auto, chosen_steps, expected_responses, record_chosen
from scalerlt.experiments.evaluation import Evaluation, evaluate
from scalerlt.experiments.gradient_bias import bias_of_step
from scalerlt.experiments.inputs import problems
from scalerlt.experiments.io_metrics import record_bandwidth, record_share
from scalerlt.experiments.learning import advantages_of, training_responses, with_old_logprobs, with_reference_logprobs
from scalerlt.experiments.policy import Policy
from scalerlt.experiments.replaying import replays_before_updates, with_replay_logprobs
from scalerlt.experiments.requests import encoded
from scalerlt.experiments.resume import save_policy, take_up
from scalerlt.experiments.rewards import dealt_rewards
from scalerlt.experiments.samples_writer import SamplesWriter
from scalerlt.experiments.step_row import StepDone, step_row
from scalerlt.experiments.step_times import StepTimes
from scalerlt.experiments.training_problems import TrainingProblems
from scalerlt.learner.advantages import Advantages, group_advantages
from scalerlt.learner.batching import TrainingResponse, minibatches_of
from scalerlt.measure.clock import synchronizer
from scalerlt.records.recorder import Recorder
from scalerlt.records.samples import SamplesHeader
from scalerlt.rollout.stats import RolloutStats
from scalerlt.rollout.traffic import rollout_traffic
from scalerlt.schema import Cell
from scalerlt.schema.experiment.gsm8k_reward import Gsm8kReward


@dataclass
class Totals:
    """What a run has used up, over all its attempts.

    Attributes:
        samples: responses generated for training.
        tokens: response tokens of these.
        seconds: wall time of training steps; evaluations, saving and what only observes a step are apart.
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
        full_depth: the same at full depth.
        moved: bytes moved by this attempt's steps, by phase.
        seconds: their time, by phase.
    """

    cell: Cell
    recorder: Recorder
    step: int = 0
    totals: Totals = field(default_factory=Totals)
    accuracies: dict[int, float] = field(default_factory=dict)
    full_depth: dict[int, float] = field(default_factory=dict)
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
            made_by=f"gsm8k_reward, {self.cell.rollout.engine.name} engine, seed {self.cell.seed}",
        )
        self.samples = SamplesWriter(self.recorder, header, limit=self.experiment.samples_limit)
        self.times = StepTimes(synchronizer(device_of(self.cell)))
        take_up(self)
        prompts = encoded(self.cell, self.policy.tokenizer, self.problems.of_step(1))
        expected = expected_responses(self.cell, prompts)
        calibrate_auto(self.cell, self.recorder, self.policy.learner, self.policy.schedule, expected)

    def run(self) -> None:
        """All steps that are left."""
        self.evaluate_if_due()
        while self.step < self.experiment.steps:
            self.train_step()
            self.recorder.progress(self.step, self.experiment.steps, "steps")
            last = self.step == self.experiment.steps
            if self.recorder.preempted and not last:  # before an evaluation, which may take longer than there is left
                save_policy(self, keep_last=max(1, self.experiment.keep_last))
                raise Preempted(f"saved after step {self.step} of {self.experiment.steps}")
            self.evaluate_if_due()
            if self.experiment.checkpoint_every and (last or self.step % self.experiment.checkpoint_every == 0):
                save_policy(self)
        self.record_outcome()

    def train_step(self) -> None:
        """One rollout batch and the updates on it."""
        self.step += 1
        with self.times.step():
            done = self.rollout_and_updates()
        self.totals.samples += len(done.answers)
        self.totals.tokens += done.stats.generated_tokens
        self.totals.seconds += self.times.steps[-1].seconds
        moved = self.bytes_moved(done)
        self.moved.update(moved)
        for phase in moved:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + self.times.steps[-1].phases[phase]
        self.recorder.series(**self.position(), **step_row(self.step, done, moved), **self.times.row())

    def rollout_and_updates(self) -> StepDone:
        """What is timed of a training step."""
        with self.times.phase("generate"):
            answers, stats = self.generate()
        with self.times.phase("reward"):
            rewards = dealt_rewards(self.cell, self.step, [one.reward for one in answers])
            groups = [one.prompt_group for one in answers]
            advantages = advantages_of(self.cell, rewards, groups) or group_advantages(
                rewards, groups, estimator="group_std"
            )
        samples = [one.sample(advantage=value) for one, value in zip(answers, advantages.values, strict=True)]
        responses = training_responses(samples, advantages)
        by_engine = self.policy.replay is not None and self.cell.logprob.old == "replay"
        with self.times.phase("replay" if by_engine else "old_log_prob"):
            responses = with_old_logprobs(self.cell, self.policy.model, responses, self.policy.replay)
        with self.times.phase("old_log_prob"):
            if self.policy.reference is not None:
                responses = with_reference_logprobs(self.cell, self.policy.reference, responses)
        self.save_samples(answers, advantages, responses)
        bias = self.gradient_bias(responses)
        chosen_before = chosen_steps(self.policy.schedule)
        results = []
        for minibatch in minibatches_of(responses, self.cell.batch.minibatch_responses):
            replayed = self.replayed(minibatch)
            with self.times.phase("update_actor"):
                results.append(self.policy.learner.step(replayed))
        chosen = chosen_steps(self.policy.schedule) - chosen_before
        with self.times.phase("publish"):
            self.policy.publish(self.step)
        with self.times.observing("depth_match"):
            matched = self.policy.depth_match_fraction(responses)
        return StepDone(answers, rewards, advantages, stats, results, chosen, bias, matched)

    def generate(self) -> tuple[list[Answer], RolloutStats]:
        """The rollout batch of the present step."""
        size = self.cell.batch.group_size
        return answer(
            self.cell,
            self.policy.engine(self.step),
            self.policy.tokenizer,
            self.problems.of_step(self.step),
            group_size=size,
            temperature=self.cell.rollout.temperature,
            first_seed=(self.step - 1) * self.cell.batch.responses_per_step,
        )

    def replayed(self, minibatch: list[TrainingResponse]) -> list[TrainingResponse]:
        """An optimizer step's responses with the values that their replay has under the weights before it."""
        if not replays_before_updates(self.cell):
            return with_replay_logprobs(self.cell, minibatch, None)
        with self.times.phase("replay"):
            return with_replay_logprobs(self.cell, minibatch, self.policy.replay)

    def save_samples(
        self, answers: list[Answer], advantages: Advantages, responses: Sequence[TrainingResponse]
    ) -> None:
        """The step's samples file, where it has one; the learner's log-probs are those before the updates."""
        if not self.experiment.save_every or self.step % self.experiment.save_every:
            return
        with self.times.observing("samples"):
            learner = self.policy.learner_logprobs(responses)
            lines = zip(answers, advantages.values, learner, strict=True)
            saved = [one.sample(advantage=value, learner_logprobs=logprobs) for one, value, logprobs in lines]
            self.samples.write("step", self.step, saved)

    def gradient_bias(self, responses: Sequence[TrainingResponse]) -> dict[str, float]:
        """What the first update's gradient would be in fp64 over all responses, against the policy that generated."""
        every, size = self.experiment.grad_bias_every, self.cell.batch.group_size
        if not every or (self.step - 1) % every:
            return {}
        responses = with_replay_logprobs(self.cell, responses, None)  # in fp64 an engine's replay is a packed one
        with self.times.observing("grad_bias"):
            served = self.policy.engine(self.step).model
            return bias_of_step(self.cell, self.policy.model, served, minibatches_of(responses, size))

    def bytes_moved(self, done: StepDone) -> dict[str, int]:
        """By the newest step, by phase."""
        replayed = {} if self.policy.replay is None else {"replay": self.policy.replay.take_bytes()}
        return {
            **replayed,
            "generate": rollout_traffic(self.policy.engine(self.step).model, done.stats).total,
            "update_actor": sum(self.policy.learner.traffic(result).total for result in done.results),
            "publish": self.policy.publication_bytes,
        }

    def record_io(self) -> None:
        """The bandwidth that this attempt's steps had, by phase, as a share of the device's."""
        bandwidth = record_bandwidth(self.recorder, device_of(self.cell))
        for phase, nbytes in self.moved.items():
            record_share(self.recorder, nbytes, [self.seconds[phase]], bandwidth, scope=phase, suffix=f"/{phase}")

    def evaluate_if_due(self) -> None:
        """Evaluate at the steps that have an evaluation, unless an earlier attempt has done it."""
        due = self.step % self.experiment.evaluate_every == 0 or self.step == self.experiment.steps
        if due and self.step not in self.accuracies:
            self.evaluate()

    def evaluate(self) -> None:
        """Held-out accuracy of the newest published policy: greedy, at the rollout's schedule and at full depth."""
        found = self.policy.greedy(self.held_out)
        self.samples.write("eval", self.step, [one.sample() for one in found])
        schedule = evaluate(found)
        row: dict[str, Any] = {**self.position(), **_held_out(schedule, "")}
        if self.cell.rollout.schedule != "dense":
            full_depth = evaluate(self.policy.greedy(self.held_out, full_depth=True))
            row |= _held_out(full_depth, "/full_depth")
            self.full_depth[self.step] = full_depth.accuracy
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
        if (full_depth := self.full_depth.get(self.experiment.steps)) is not None:
            self.recorder.metric("accuracy/full_depth", full_depth, "fraction", n=n, method=f"{method}, at full depth")
        self.recorder.metric("accuracy_gain", last - first, "fraction", n=n, method="accuracy less accuracy_before")
        self.recorder.metric("accuracy_best", max(self.accuracies.values()), "fraction", n=n, method=method)
        self.recorder.metric("steps", self.step, "step")
        for total in fields(self.totals):
            unit = {"samples": "response", "tokens": "token", "seconds": "s"}[total.name]
            scope = "rl_step" if total.name == "seconds" else None
            self.recorder.metric(f"train_{total.name}", getattr(self.totals, total.name), unit, scope=scope)
        self.times.record(self.recorder)
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
