"""`experiment=gsm8k_eval`: accuracy without training, at the rollout's own schedule and at full depth.

Greedy, one answer per problem. With `experiment.answers=reference` the task's own answers are graded in place of the
policy's: what is then below 1 is a fault of task or grader.
"""

import time

from scalerlt.experiments.answers import Answer, answer
from scalerlt.experiments.building import build_engine, build_model, device_of
from scalerlt.experiments.evaluation import Evaluation, evaluate
from scalerlt.experiments.inputs import problems
from scalerlt.experiments.requests import tokenizer_of
from scalerlt.experiments.samples_writer import SamplesWriter
from scalerlt.measure.clock import synchronizer
from scalerlt.numerics.precision import number_format
from scalerlt.records.recorder import Recorder
from scalerlt.records.samples import SamplesHeader
from scalerlt.rollout.stats import RolloutStats
from scalerlt.schema import Cell
from scalerlt.schema.experiment.gsm8k_eval import Gsm8kEval
from scalerlt.tasks.grader import grade
from scalerlt.tasks.problem import Problem

SAMPLES_LIMIT = 256 * 2**20


def run(cell: Cell, recorder: Recorder) -> None:
    """Measure accuracy."""
    assert isinstance(cell.experiment, Gsm8kEval)
    with recorder.phase("load"):
        questions = problems(cell, cell.experiment.problems)
    recorder.metric("problems", len(questions), "problem")
    if cell.experiment.answers == "reference":
        with recorder.measuring("evaluate"):
            _grade_references(cell, recorder, questions)
        return
    with recorder.phase("load"):
        model = build_model(cell, number_format(cell.precision.name).dtype)
        tokenizer = tokenizer_of(cell)
    header = SamplesHeader(
        model=cell.model.name,
        vocab_size=cell.model.vocab_size,
        made_by=f"gsm8k_eval, {cell.rollout.engine.name} engine, greedy",
    )
    samples = SamplesWriter(recorder, header, limit=SAMPLES_LIMIT)
    synchronize = synchronizer(device_of(cell))

    def greedy(*, full_depth: bool) -> tuple[list[Answer], RolloutStats, float]:
        engine = build_engine(cell, model, full_depth=full_depth)
        synchronize()
        started = time.perf_counter()
        answers, stats = answer(cell, engine, tokenizer, questions, group_size=1, temperature=0.0)
        synchronize()
        return answers, stats, time.perf_counter() - started

    with recorder.measuring("evaluate"):
        answers, stats, seconds = greedy(full_depth=False)
    samples.write("eval", 0, [one.sample() for one in answers])
    record_evaluation(recorder, evaluate(answers), method=f"greedy, schedule {cell.rollout.schedule}")
    recorder.metric("rollout_seconds", seconds, "s", scope="rollout", n=1)
    recorder.metric("generated_tokens", stats.generated_tokens, "token")
    if cell.rollout.schedule != "dense":
        with recorder.measuring("evaluate_full_depth"):
            deep, _, _ = greedy(full_depth=True)
        record_evaluation(recorder, evaluate(deep), suffix="/full_depth", method="greedy, every token at full depth")


def record_evaluation(recorder: Recorder, found: Evaluation, *, method: str, suffix: str = "") -> None:
    """Record an evaluation's figures, each name followed by `suffix`."""
    recorder.metric(f"accuracy{suffix}", found.accuracy, "fraction", n=found.n, method=method)
    recorder.metric(f"accuracy_standard_error{suffix}", found.standard_error, "fraction", method="binomial")
    recorder.metric(f"accuracy_strict{suffix}", found.strict, "fraction", n=found.n)
    recorder.metric(f"accuracy_flexible{suffix}", found.flexible, "fraction", n=found.n)
    recorder.metric(f"format_rate{suffix}", found.format_rate, "fraction", n=found.n)
    recorder.metric(f"completions/clipped_ratio{suffix}", found.clipped_ratio, "fraction", n=found.n)
    recorder.metric(f"completions/mean_length{suffix}", found.mean_length, "token")
    recorder.metric(f"loop/exit_depth_mean{suffix}", found.mean_depth, "loop")


def _grade_references(cell: Cell, recorder: Recorder, questions: list[Problem]) -> None:
    grades = [grade(problem.answer, problem.gold, cell.grader.extraction) for problem in questions]
    n = len(grades)
    recorder.metric("accuracy", sum(one.reward for one in grades) / n, "fraction", n=n, method="reference answers")
    recorder.metric("accuracy_strict", sum(one.strict.correct for one in grades) / n, "fraction", n=n)
    recorder.metric("accuracy_flexible", sum(one.flexible.correct for one in grades) / n, "fraction", n=n)
