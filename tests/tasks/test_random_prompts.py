from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from scalerlt.errors import UserError
from scalerlt.tasks.counter_random import RandomPermutation, random_below, random_word, stream_key
from scalerlt.tasks.random_tokens import random_prompts


def test_words_are_splitmix64():
    """Published outputs: Vigna's splitmix64.c for seed 0; Rosetta Code for seed 1234567."""
    assert [random_word(0, i) for i in range(4)] == [
        0xE220A8397B1DCDAF,
        0x6E789E6AA1B965F4,
        0x06C45D188009454F,
        0xF88BB8A8724C81EC,
    ]
    assert [random_word(1234567, i) for i in range(5)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


@given(st.integers(0, 2**64 - 1), st.integers(1, 3000))
def test_a_permutation_is_a_bijection(key, size):
    permutation = RandomPermutation(key, size)
    assert sorted(map(permutation, range(size))) == list(range(size))


def test_permutations_differ_by_key_and_move_what_they_permute():
    images = [[RandomPermutation(key, 1000)(i) for i in range(1000)] for key in range(20)]
    assert len(set(map(tuple, images))) == 20
    # a random permutation of 1000 has one fixed point on average, Poisson
    assert sum(image[i] == i for image in images for i in range(1000)) < 50
    # and as many ascents as descents, with a standard deviation of 9 for neighbours and 13 for far ones
    for image in images:
        for stride in (1, 2, 32):
            ascents = sum(later > earlier for earlier, later in zip(image, image[stride:], strict=False))
            assert abs(ascents - (1000 - stride) / 2) < 5 * 13
    for index in (-1, 1000):
        with pytest.raises(IndexError):
            RandomPermutation(0, 1000)(index)


def test_keys_tell_their_parts_apart():
    keys = [stream_key(*parts) for parts in [("a", 1), ("a1",), ("a", "1"), ("a", 1, 1), (1, "a"), ("a", -1), ()]]
    assert len(set(keys)) == 7
    assert all(0 <= key < 2**64 for key in keys)


@given(st.integers(), st.integers(0, 10**6), st.integers(1, 2**40))
def test_below_stays_below(seed, counter, bound):
    assert 0 <= random_below(stream_key(seed), counter, bound) < bound


def test_tokens_are_uniform():
    tokens = Counter(token for prompt in random_prompts(50, 200, 100, seed=1) for token in prompt)
    assert set(tokens) == set(range(50))
    assert chisquare([tokens[token] for token in range(50)]).pvalue > 1e-4


@given(
    vocab_size=st.integers(1, 50_000),
    length=st.integers(1, 20),
    count=st.integers(1, 8),
    group_size=st.integers(1, 4),
    seed=st.integers(),
)
def test_shape_determinism_prefixes_and_groups(vocab_size, length, count, group_size, seed):
    prompts = random_prompts(vocab_size, length, count, seed)
    assert prompts == random_prompts(vocab_size, length, count, seed)
    assert len(prompts) == count
    assert all(len(prompt) == length and 0 <= min(prompt) <= max(prompt) < vocab_size for prompt in prompts)
    assert prompts == [prompt[:length] for prompt in random_prompts(vocab_size, length + 5, count + 2, seed)][:count]
    grouped = random_prompts(vocab_size, length, count, seed, group_size)
    assert grouped == [prompt for prompt in prompts for _ in range(group_size)]


def test_prompts_and_seeds_differ():
    prompts = [tuple(prompt) for seed in range(20) for prompt in random_prompts(4096, 16, 20, seed)]
    assert len(set(prompts)) == 400


@pytest.mark.parametrize("wrong", ["vocab_size", "prompt_length", "count", "group_size"])
def test_sizes_must_be_positive(wrong):
    sizes = {"vocab_size": 8, "prompt_length": 4, "count": 2, "group_size": 2}
    for value in (0, -1):
        with pytest.raises(UserError, match=f"{wrong} is {value}; it must be at least 1"):
            random_prompts(**{**sizes, wrong: value}, seed=0)
