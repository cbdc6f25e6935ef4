"""The rollouts that a learner step is measured on, checked against the cell. No torch."""

from scalerlt.errors import UserError
from scalerlt.experiments.inputs import rollouts_path
from scalerlt.records.samples import Sample
from scalerlt.schema import Cell
from scalerlt.schema.task import RecordedTask
from scalerlt.schema.task.random_rollouts import RandomRollouts
from scalerlt.tasks.random_rollouts import random_rollouts
from scalerlt.tasks.rollouts_file import load_rollouts


def recorded_samples(cell: Cell) -> list[Sample]:
    """The responses of one learner step, prompt group after prompt group: recorded, or drawn at random.

    Raises:
        UserError: they do not serve the cell: too few responses, nothing but empty ones, token ids or lengths that the
            model has not, another temperature, or no advantages.
    """
    match cell.task:
        case RecordedTask() as task:
            return _recorded(cell, task)
        case RandomRollouts() as task:
            if fault := random_fault(cell, task):
                raise UserError(fault)
            return random_rollouts(
                task,
                prompts=cell.batch.prompts_per_step,
                group_size=cell.batch.group_size,
                vocab_size=cell.model.vocab_size,
                full_depth=cell.model.total_ut_steps,
                temperature=cell.rollout.temperature,
            )
        case task:
            raise UserError(f"task={task.name} has no rollouts to learn from; use random_rollouts, arithmetic or gsm8k")


def random_fault(cell: Cell, task: RandomRollouts) -> str | None:
    """Why rollouts of these lengths do not serve the cell, or None; nothing is drawn."""
    length, most = task.prompt_length + task.response_length, cell.model.max_position_embeddings
    if length > most:
        return (
            f"task.prompt_length={task.prompt_length} and task.response_length={task.response_length} are {length} "
            f"tokens, and model.max_position_embeddings={most}"
        )
    if cell.rollout.temperature == 0:
        return "rollout.temperature=0: a learner divides the logits by it; use a temperature above 0"
    return None


def _recorded(cell: Cell, task: RecordedTask) -> list[Sample]:
    path = rollouts_path(task)
    groups = load_rollouts(path, cell.batch.prompts_per_step, cell.batch.group_size, cell.model.vocab_size)
    samples = [sample for group in groups for sample in group]
    for sample in samples:
        if fault := _fault(cell, sample):
            raise UserError(f"rollouts file {path}: problem {sample.problem_id} {fault}")
    if not any(sample.response_tokens for sample in samples):
        raise UserError(f"rollouts file {path}: every response is empty; there is nothing to learn")
    return samples


def _fault(cell: Cell, sample: Sample) -> str | None:
    if sample.temperature != cell.rollout.temperature or sample.temperature == 0:
        return (
            f"was sampled at temperature {sample.temperature:g} and the cell has "
            f"rollout.temperature={cell.rollout.temperature:g}; they have to be equal and above 0"
        )
    if sample.advantage is None and cell.algorithm.name == "policy_gradient":
        return "has no advantage; record rollouts with advantages to learn from them"
    length = len(sample.prompt_tokens) + len(sample.response_tokens)
    if length > cell.model.max_position_embeddings:
        return f"is {length} tokens long, and model.max_position_embeddings={cell.model.max_position_embeddings}"
    depths, full = sample.exit_depths or [], cell.model.total_ut_steps
    if depths and (depths[0] != full or max(depths) > full):
        return (
            f"has exit depths {depths[0]} and up to {max(depths)}; the first has to be model.total_ut_steps={full}, "
            "and none above it"
        )
    return None
