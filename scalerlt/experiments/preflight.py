"""Looks at what a cell needs before any work starts; asked when a cell is planned. No torch.

Each function returns what is wrong, one sentence per problem.
"""

from collections.abc import Callable

from scalerlt.errors import UserError
from scalerlt.experiments.inputs import differences, model_config, problems, weights_path
from scalerlt.experiments.recorded import random_fault, recorded_samples
from scalerlt.experiments.requests import encoded, prompts_of, tokenizer_of
from scalerlt.models.headers import check_files, read_config
from scalerlt.models.tokenizer import NoTokenizers
from scalerlt.schema import Cell
from scalerlt.schema.experiment.gsm8k_eval import Gsm8kEval
from scalerlt.schema.experiment.gsm8k_reward import Gsm8kReward
from scalerlt.schema.rollout.last_exited import LastExited
from scalerlt.schema.task.gsm8k import Gsm8k
from scalerlt.schema.task.random_rollouts import RandomRollouts
from scalerlt.schema.task.random_tokens import RandomTokens
from scalerlt.tasks.problem import Problem


def weights(cell: Cell) -> list[str]:
    """What keeps `model.weights` from being a whole checkpoint of the configured model."""
    path = weights_path(cell)
    if path is None:
        return []
    try:
        stored = read_config(path)
        if different := differences(stored, model_config(cell)):
            listed = [f"model.weights={cell.model.weights}: {difference}" for difference in different]
            return [*listed, "model.weights=null gives a model of another shape random weights"]
        check_files(path, stored)
    except UserError as error:
        return [f"model.weights={cell.model.weights}: {line}" for line in str(error).splitlines()]
    return []


def prompts(cell: Cell) -> list[str]:
    """What keeps the task from giving the cell its prompts, or the model from answering them."""
    if isinstance(cell.task, RandomTokens):  # any prompts of this length may be drawn
        return _beyond_positions(cell, cell.task.prompt_length)
    return _unanswerable(
        cell,
        prompts=lambda: prompts_of(cell),
        without_tokenizer=lambda: problems(cell, cell.batch.prompts_per_step),
    )


def recorded_rollouts(cell: Cell) -> list[str]:
    """What keeps the file of recorded rollouts, or the random ones, from serving the cell's batch and model."""
    if isinstance(cell.task, RandomRollouts):
        fault = random_fault(cell, cell.task)
        return [fault] if fault else []
    return _faults(lambda: recorded_samples(cell))


def evaluation(cell: Cell) -> list[str]:
    """What keeps `gsm8k_eval` from its problems."""
    experiment = cell.experiment
    assert isinstance(experiment, Gsm8kEval)
    return _unanswered(cell, lambda: problems(cell, experiment.problems))


def reward(cell: Cell) -> list[str]:
    """What keeps `gsm8k_reward` from its training and held-out problems."""
    experiment = cell.experiment
    assert isinstance(experiment, Gsm8kReward)
    whole = isinstance(cell.task, Gsm8k)  # every seed takes the problems in an order of its own
    faults = _unanswered(cell, lambda: problems(cell, None if whole else cell.batch.prompts_per_step, "train"))
    faults += _unanswered(cell, lambda: problems(cell, experiment.eval_problems, experiment.eval_split))
    if cell.rollout.temperature == 0:
        faults.append("rollout.temperature=0: all responses of a prompt would be the same; use a temperature above 0")
    if cell.batch.group_size < 2:
        faults.append(f"batch.group_size={cell.batch.group_size}: advantages need at least 2 responses per prompt")
    return faults


def exit_loops(cell: Cell) -> list[str]:
    """What is wrong with the loops between which decode tokens may stop."""
    rollout, full_depth = cell.rollout, cell.model.total_ut_steps
    assert isinstance(rollout, LastExited)
    most = full_depth if rollout.max_loops is None else rollout.max_loops
    if rollout.min_loops <= most <= full_depth:
        return []
    return [
        f"rollout.min_loops={rollout.min_loops}, rollout.max_loops={rollout.max_loops or 'null'}: "
        f"min_loops <= max_loops <= model.total_ut_steps={full_depth} has to hold"
    ]


def _unanswered(cell: Cell, questions: Callable[[], list[Problem]]) -> list[str]:
    return _unanswerable(
        cell, prompts=lambda: encoded(cell, tokenizer_of(cell), questions()), without_tokenizer=questions
    )


def _unanswerable(
    cell: Cell, *, prompts: Callable[[], list[tuple[int, ...]]], without_tokenizer: Callable[[], object]
) -> list[str]:
    """What keeps the prompts from being made, or from fitting into the model's positions with their answers."""
    try:
        longest = max(map(len, prompts()))
    except NoTokenizers:  # cells may be planned where none can run
        return _faults(without_tokenizer)
    except UserError as error:
        return str(error).splitlines()
    return _beyond_positions(cell, longest)


def _beyond_positions(cell: Cell, longest: int) -> list[str]:
    """What keeps the model from answering its longest prompt."""
    positions = longest + cell.rollout.max_new_tokens
    if positions <= cell.model.max_position_embeddings:
        return []
    return [
        f"the longest prompt of {longest} tokens and rollout.max_new_tokens={cell.rollout.max_new_tokens} need "
        f"{positions} positions, but model.max_position_embeddings={cell.model.max_position_embeddings}"
    ]


def _faults(look: Callable[[], object]) -> list[str]:
    try:
        look()
    except UserError as error:
        return str(error).splitlines()
    return []
