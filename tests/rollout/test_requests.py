from dataclasses import replace

import pytest
from models.small import SMALL

from scalerlt.errors import UserError
from scalerlt.rollout.request import Request, check_requests

GOOD = Request(request_id="a", prompt_tokens=(1, 28), max_new_tokens=62)


def test_the_largest_allowed_request_passes() -> None:
    check_requests([GOOD, replace(GOOD, request_id="b", temperature=0.0, seed=2**63 - 1)], SMALL)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt_tokens": ()}, "'a': the prompt is empty"),
        ({"prompt_tokens": (1, 29, -1)}, r"prompt holds \[-1, 29\], outside the vocabulary of 29"),
        ({"stop_token_ids": (40,)}, r"stop_token_ids holds \[40\]"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"max_new_tokens": 63}, r"prompt \(2\) and max_new_tokens \(63\) are 65 positions, the model has 64"),
        ({"temperature": -0.5}, "temperature is -0.5"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"temperature": float("inf")}, "temperature is inf"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 2**63}, "seed is 9223372036854775808"),
    ],
)
def test_each_fault_is_named(change: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_requests([replace(GOOD, **change)], SMALL)


def test_all_faults_are_in_one_error() -> None:
    with pytest.raises(UserError) as caught:
        check_requests([replace(GOOD, temperature=-1.0, max_new_tokens=0), GOOD], SMALL)
    text = str(caught.value)
    assert "temperature is -1.0" in text
    assert "max_new_tokens is 0" in text
    assert "'a': the id is given more than once" in text
