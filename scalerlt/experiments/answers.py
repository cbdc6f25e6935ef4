"""Answers to problems: generated, read as text, graded."""

from collections.abc import Sequence
from dataclasses import dataclass

from scalerlt.experiments.requests import encoded, requests_for
from scalerlt.models.tokenizer import Tokenizer
from scalerlt.records.samples import Sample
from scalerlt.rollout.engine import RolloutEngine
from scalerlt.rollout.request import Request, Response
from scalerlt.rollout.stats import RolloutStats
from scalerlt.schema import Cell
from scalerlt.tasks.grader import Grade, grade
from scalerlt.tasks.problem import Problem


@dataclass(frozen=True)
class Answer:
    """One response to one problem, with its grade."""

    problem: Problem
    prompt_group: int
    request: Request
    response: Response
    text: str
    grade: Grade

    @property
    def reward(self) -> float:
        """1 where the grader's chosen extraction is correct, else 0."""
        return self.grade.reward

    def sample(self, *, advantage: float | None = None, learner_logprobs: list[float] | None = None) -> Sample:
        """The line of a samples file."""
        return Sample(
            problem_id=self.problem.problem_id,
            prompt_group=self.prompt_group,
            prompt_tokens=list(self.request.prompt_tokens),
            response_tokens=list(self.response.tokens),
            logprobs=list(self.response.logprobs),
            raw_logprobs=list(self.response.raw_logprobs),
            learner_logprobs=learner_logprobs,
            temperature=self.request.temperature,
            finish_reason=self.response.finish_reason,
            seed=self.response.seed,
            weight_version=self.response.weight_version,
            reward=self.reward,
            advantage=advantage,
            exit_depths=list(self.response.exit_depths),
            question=self.problem.question,
            gold=str(self.problem.gold),
            text=self.text,
            extracted=self.grade.strict.extracted or self.grade.flexible.extracted,
            strict=self.grade.strict.reason,
            flexible=self.grade.flexible.reason,
        )


def answer(
    cell: Cell,
    engine: RolloutEngine,
    tokenizer: Tokenizer,
    questions: Sequence[Problem],
    *,
    group_size: int,
    temperature: float,
    first_seed: int = 0,
) -> tuple[list[Answer], RolloutStats]:
    """Generate `group_size` answers to each problem, group after group, and grade them."""
    prompts = encoded(cell, tokenizer, questions)
    requests = requests_for(cell, prompts, group_size=group_size, temperature=temperature, first_seed=first_seed)
    result = engine.generate(requests)
    return graded(cell, tokenizer, questions, requests, result.responses, group_size), result.stats


def graded(
    cell: Cell,
    tokenizer: Tokenizer,
    questions: Sequence[Problem],
    requests: Sequence[Request],
    responses: Sequence[Response],
    group_size: int,
) -> list[Answer]:
    """Responses as graded answers; the end-of-text token is not part of the text."""
    answers = []
    for index, (request, response) in enumerate(zip(requests, responses, strict=True)):
        problem = questions[index // group_size]
        stopped = response.finish_reason == "stop"
        text = tokenizer.decode(response.tokens[:-1] if stopped else response.tokens)
        verdicts = grade(text, problem.gold, cell.grader.extraction)
        answers.append(Answer(problem, index // group_size, request, response, text, verdicts))
    return answers
