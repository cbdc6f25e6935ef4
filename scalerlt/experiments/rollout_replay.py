"""The replay of a rollout: what it costs beside it, and how many of its log-probs it repeats bit for bit.

`engine`: the engine takes its own steps once more, forced to the tokens and depths that it recorded. `packed`: the
learner evaluates all positions of many responses at once. Neither is given a recorded log-prob.
"""

from collections.abc import Callable, Sequence

from scalerlt.experiments.building import device_of
from scalerlt.experiments.inputs import repeats
from scalerlt.experiments.rollout_batch import RolloutBatch
from scalerlt.measure.clock import synchronizer, timed
from scalerlt.records.recorder import Recorder
from scalerlt.rollout.request import Response

Logprobs = Sequence[Sequence[float]]
"""Of each response, of each of its tokens."""


def measure_replay(recorder: Recorder, batch: RolloutBatch, responses: Sequence[Response]) -> None:
    """Generate and replay by turns, and record times, ratios, and how the log-probs of `responses` are repeated."""
    synchronize = synchronizer(device_of(batch.cell))
    forced = batch.forced(responses)
    found: dict[str, Logprobs] = {}

    def engine() -> None:
        found["engine"] = [batch.logprobs_of(response) for response in forced.generate().responses]

    def packed() -> None:
        found["packed"] = batch.packed(responses)

    turns: dict[str, Callable[[], object]] = {"rollout": batch.generate, "engine": engine}
    if batch.packed_fault is None:
        turns["packed"] = packed
    seconds: dict[str, list[float]] = {name: [] for name in turns}
    with recorder.measuring("replay"):
        for _ in range(repeats(batch.cell).warmup + repeats(batch.cell).repeats):
            for name, work in turns.items():
                seconds[name] += timed(work, synchronize=synchronize, repeats=1)

    theirs = [batch.logprobs_of(response) for response in responses]
    recorder.metric("replay_tokens", sum(map(len, theirs)), "token")
    counted = {name: taken[repeats(batch.cell).warmup :] for name, taken in seconds.items()}
    for name, taken in counted.items():
        recorder.repeated(f"replay_seconds/{name}", taken, "s", scope="rollout" if name == "rollout" else "replay")
    for name, ours in found.items():
        ratios = [own / rollout for own, rollout in zip(counted[name], counted["rollout"], strict=True)]
        recorder.repeated(
            f"replay_over_rollout/{name}", ratios, "", method="of a replay and the rollout just before it"
        )
        differing = mismatches(ours, theirs)
        recorder.metric(f"replay_mismatches/{name}", differing, "token", method="log-probs that differ in any bit")
        recorder.metric(f"replay_largest_difference/{name}", largest_difference(ours, theirs), "nat")
    if batch.packed_fault is not None:
        for metric in ("seconds", "over_rollout", "mismatches", "largest_difference"):
            recorder.unsupported(f"replay_{metric}/packed", batch.packed_fault)


def mismatches(ours: Logprobs, theirs: Logprobs) -> int:
    """Tokens whose log-probs are not the same number."""
    return sum(a != b for a, b in _pairs(ours, theirs))


def largest_difference(ours: Logprobs, theirs: Logprobs) -> float:
    """The largest |difference| of two log-probs of one token."""
    return max(abs(a - b) for a, b in _pairs(ours, theirs))


def _pairs(ours: Logprobs, theirs: Logprobs) -> list[tuple[float, float]]:
    return [pair for mine, other in zip(ours, theirs, strict=True) for pair in zip(mine, other, strict=True)]
