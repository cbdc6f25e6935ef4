"""What a plan says of the jobs that it would become."""

import pytest

from scalerlt.launching.slurm.outlook import Outlook


@pytest.mark.parametrize(
    ("cells", "items", "arrays", "at_once", "sentence"),
    [
        (1, 1, [1], 1, "1 job for 1 cell (1 node, 60 min)"),
        (4, 1, [1], 1, "1 job for 4 cells (1 node, 60 min)"),
        (5, 5, [1], 1, "1 job for 5 cells (1 node, 60 min); it works through 5 items"),
        (4, 2, [2], 2, "2 jobs in 1 array for 4 cells (1 node, 60 min); each has its own cells"),
        (5, 5, [2], 2, "2 jobs in 1 array for 5 cells (1 node, 60 min); they share a queue of 5 items"),
        (4, 4, [2, 2], 3, "4 jobs in 2 arrays for 4 cells (1 node, 60 min), at most 3 at once; each has its own cells"),
    ],
)
def test_the_sentence_counts(cells: int, items: int, arrays: list[int], at_once: int, sentence: str) -> None:
    assert Outlook(cells, items, arrays, "1 node, 60 min", at_once, []).sentence == sentence
