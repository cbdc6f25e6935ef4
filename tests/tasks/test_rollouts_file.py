from pathlib import Path

import pytest
from experiments.actor_cells import write_rollouts

from scalerlt.errors import UserError
from scalerlt.tasks.rollouts_file import load_rollouts


@pytest.fixture
def rollouts(tmp_path: Path) -> Path:
    return write_rollouts(tmp_path / "rollouts.jsonl", groups=3, group_size=4)


def test_the_first_groups_and_their_first_responses(rollouts: Path):
    chosen = load_rollouts(rollouts, prompts=2, group_size=3, vocab_size=64)
    assert [[(s.prompt_group, s.seed) for s in group] for group in chosen] == [
        [(0, 0), (0, 1), (0, 2)],
        [(1, 0), (1, 1), (1, 2)],
    ]


@pytest.mark.parametrize(("prompts", "group_size", "held"), [(4, 4, 3), (1, 5, 0)])
def test_too_few(rollouts: Path, prompts: int, group_size: int, held: int):
    with pytest.raises(UserError, match=f"holds {held} prompt groups of at least {group_size} .* asks for {prompts}"):
        load_rollouts(rollouts, prompts, group_size, vocab_size=64)


def test_token_ids_outside_the_vocabulary(rollouts: Path):
    with pytest.raises(UserError, match=r"token id \d+, outside the model's vocabulary of 20"):
        load_rollouts(rollouts, 1, 1, vocab_size=20)
