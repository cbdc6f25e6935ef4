"""The same requests in other company: what of a rollout depends on the batch that it was generated in."""

from collections.abc import Sequence
from dataclasses import replace

from scalerlt.experiments.rollout_batch import RolloutBatch
from scalerlt.records.recorder import Recorder
from scalerlt.rollout.request import Response


def measure_company(recorder: Recorder, batch: RolloutBatch, responses: Sequence[Response]) -> None:
    """Generate once more, in reverse order and in half as many slots, and count what came out otherwise.

    Tokens are compared up to where a response takes another one: two were nearly equally probable, or the random number
    fell between them.
    """
    slots = max(1, min(batch.cell.batch.rollout_concurrency, len(batch.requests)) // 2)
    other = replace(batch, requests=list(reversed(batch.requests)), slots=slots)
    with recorder.measuring("company"):
        again = list(reversed(other.generate().responses))
    compared = [_until_another_token(batch, *pair) for pair in zip(responses, again, strict=True)]
    differences = [abs(one - two) for pairs in compared for one, two in pairs]
    diverged = sum(one.tokens != two.tokens for one, two in zip(responses, again, strict=True))
    method = f"against the same requests in reverse order in {slots} slots"
    recorder.metric("company_tokens", len(differences), "token", method="compared, up to a near tie")
    recorder.metric("company_near_ties", diverged, "response", method=f"tokens differ, {method}")
    recorder.metric("company_mismatches", sum(difference > 0 for difference in differences), "token", method=method)
    recorder.metric("company_largest_difference", max(differences, default=0.0), "nat", method=method)


def _until_another_token(batch: RolloutBatch, one: Response, two: Response) -> list[tuple[float, float]]:
    """The log-probs of the tokens that two responses to one request begin with alike."""
    same = 0
    for ours, theirs in zip(one.tokens, two.tokens, strict=False):
        if ours != theirs:
            break
        same += 1
    return list(zip(batch.logprobs_of(one)[:same], batch.logprobs_of(two)[:same], strict=True))
