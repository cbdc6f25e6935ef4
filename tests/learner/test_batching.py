import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalerlt.learner.batching import TrainingResponse, microbatches, minibatches_of, pack


@given(st.lists(st.integers(1, 40), max_size=20), st.integers(1, 100))
def test_micro_batches_hold_every_response_once_and_keep_to_the_budget(lengths: list[int], tokens: int):
    batches = list(microbatches(lengths, tokens))
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    for batch in batches:
        padded = len(batch) * max(lengths[index] for index in batch)
        assert padded <= tokens or len(batch) == 1


def test_a_response_longer_than_the_budget_stands_alone_and_the_rest_are_packed():
    assert list(microbatches([3, 50, 4, 4], 8)) == [[1], [2, 3], [0]]


def test_minibatches_are_consecutive():
    assert minibatches_of([1, 2, 3, 4, 5], 2) == [[1, 2], [3, 4], [5]]


def test_packed_rows_and_those_that_predict():
    batch = pack(
        [TrainingResponse([7, 8], [1, 2, 3], 1.0), TrainingResponse([9], [4], 1.0), TrainingResponse([5], [], 1.0)]
    )
    assert batch.inputs.tolist() == [7, 8, 1, 2, 9]
    assert batch.positions.tolist() == [0, 1, 2, 3, 0]
    assert (batch.places.sequences, batch.places.width, batch.places.rows.tolist()) == (3, 4, [0, 1, 2, 3, 4])
    assert batch.response_mask.tolist() == [[True, True, True], [True, False, False], [False, False, False]]
    assert batch.predictors.tolist() == [1, 2, 3, 4]  # the last prompt token predicts the first response token
    assert batch.targets.tolist() == [1, 2, 3, 4]
    inputs, predictors = batch.padded()
    assert inputs.tolist() == [[7, 8, 1, 2], [9, 0, 0, 0], [0, 0, 0, 0]]
    assert inputs.flatten()[predictors].tolist() == [8, 1, 2, 9]


@pytest.mark.parametrize("mask", [None, [True, False]])
def test_trained_tokens_of_a_response(mask):
    assert TrainingResponse([1], [2, 3], 1.0, mask).trained == (mask or [True, True])
