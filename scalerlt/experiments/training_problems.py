"""Which problems a training step works on: a function of the cell's seed and the step alone."""

from scalerlt.errors import UserError
from scalerlt.experiments.inputs import problems
from scalerlt.schema import Cell
from scalerlt.schema.experiment.gsm8k_reward import Gsm8kReward
from scalerlt.schema.task.gsm8k import Gsm8k
from scalerlt.tasks.counter_random import RandomPermutation, stream_key
from scalerlt.tasks.problem import Problem


class TrainingProblems:
    """The training split in an order of the seed's own, again from its beginning when it is used up."""

    def __init__(self, cell: Cell) -> None:
        assert isinstance(cell.experiment, Gsm8kReward)
        self._count = cell.batch.prompts_per_step
        wanted = self._count * cell.experiment.steps
        split = "train"
        if cell.experiment.eval_split == split:
            raise UserError("experiment.eval_split=train: held-out problems cannot be the training split's")
        if isinstance(cell.task, Gsm8k):
            whole = problems(cell, None, split)
            order = RandomPermutation(stream_key("training_problems", cell.seed), len(whole))
            self._problems = [whole[order(index)] for index in range(min(wanted, len(whole)))]
        else:
            self._problems = problems(cell, wanted, split, seed=cell.seed)

    def of_step(self, step: int) -> list[Problem]:
        """The problems of training step `step`, from 1."""
        first = (step - 1) * self._count
        return [self._problems[index % len(self._problems)] for index in range(first, first + self._count)]
