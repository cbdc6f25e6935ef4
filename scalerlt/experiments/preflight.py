"""Looks at what a cell needs before any work starts; asked when a cell is planned. No torch.

Each function returns what is wrong, one sentence per problem.
"""

from scalerlt.errors import UserError
from scalerlt.experiments.inputs import differences, model_config, problems, weights_path
from scalerlt.experiments.recorded import recorded_samples
from scalerlt.models.headers import check_files, read_config
from scalerlt.schema import Cell
from scalerlt.schema.task.random_tokens import RandomTokens


def weights(cell: Cell) -> list[str]:
    """What keeps `model.weights` from being a whole checkpoint of the configured model."""
    path = weights_path(cell)
    if path is None:
        return []
    try:
        stored = read_config(path)
        if different := differences(stored, model_config(cell)):
            return [f"model.weights={cell.model.weights}: {difference}" for difference in different]
        check_files(path, stored)
    except UserError as error:
        return [f"model.weights={cell.model.weights}: {line}" for line in str(error).splitlines()]
    return []


def prompts(cell: Cell) -> list[str]:
    """What keeps the task from giving the cell its prompts."""
    if isinstance(cell.task, RandomTokens):
        positions = cell.task.prompt_length + cell.rollout.max_new_tokens
        if positions > cell.model.max_position_embeddings:
            return [
                f"task.prompt_length={cell.task.prompt_length} and rollout.max_new_tokens="
                f"{cell.rollout.max_new_tokens} need {positions} positions, but model.max_position_embeddings="
                f"{cell.model.max_position_embeddings}"
            ]
        return []
    try:
        problems(cell, cell.batch.prompts_per_step)
    except UserError as error:
        return str(error).splitlines()
    return []


def recorded_rollouts(cell: Cell) -> list[str]:
    """What keeps the file of recorded rollouts from serving the cell's batch and model."""
    try:
        recorded_samples(cell)
    except UserError as error:
        return str(error).splitlines()
    return []
