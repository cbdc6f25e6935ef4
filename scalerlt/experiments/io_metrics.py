"""How bytes moved enter a record: per token and in parts, and as a share of what the device's memory sustains."""

from collections.abc import Mapping, Sequence
from typing import Literal

import torch

from scalerlt.learner.traffic import LearnerTraffic
from scalerlt.measure.bandwidth import copy_bandwidth
from scalerlt.records.recorder import Recorder
from scalerlt.rollout.traffic import RolloutTraffic

TRAFFIC_METHOD = "algorithmic: each operand once for each product that ran; no activations, no padding"
SHARE_METHOD = "algorithmic bytes per second of the timed work, over copy_bandwidth"


def record_bandwidth(recorder: Recorder, device: torch.device) -> float | None:
    """Measure the device's copy bandwidth, in a pass of its own, and record it in B/s; None where there was no room."""
    with recorder.measuring("bandwidth"):
        found = copy_bandwidth(device)
    if found.bytes_per_second is None:
        recorder.not_measured("copy_bandwidth", found.reason or "", "B/s")
    else:
        recorder.metric("copy_bandwidth", found.bytes_per_second, "B/s", method=found.method)
    return found.bytes_per_second


def record_traffic(
    recorder: Recorder,
    kind: Literal["generated", "trained"],
    traffic: Sequence[RolloutTraffic] | Sequence[LearnerTraffic],
    tokens: int,
) -> None:
    """Record the bytes moved per token, all and by part.

    Args:
        kind: of the tokens.
        traffic: of everything that was done for them.
        tokens: how many they are.
    """
    name = f"io_bytes_per_{kind}_token"
    if not tokens:
        recorder.not_measured(name, f"no token was {kind}", "B/token")
        return
    recorder.metric(name, sum(one.total for one in traffic) / tokens, "B/token", method=TRAFFIC_METHOD)
    parts: list[Mapping[str, int]] = [vars(one) for one in traffic]
    for part in parts[0]:
        moved = sum(one[part] for one in parts)
        recorder.metric(f"{name}/{part}", moved / tokens, "B/token", method=TRAFFIC_METHOD)


def record_share(
    recorder: Recorder, nbytes: int, seconds: Sequence[float], bandwidth: float | None, *, scope: str, suffix: str = ""
) -> None:
    """Record what share of the copy bandwidth work of `nbytes` bytes had in each of its timed runs.

    Args:
        nbytes: of one run.
        seconds: of each run.
        bandwidth: in B/s, or None.
        scope: what the seconds are of.
        suffix: behind the metric's name.
    """
    name = f"io_bandwidth_share{suffix}"
    if bandwidth is None:
        recorder.not_measured(name, "copy_bandwidth was not measured", "fraction")
        return
    shares = [nbytes / (second * bandwidth) for second in seconds]
    recorder.repeated(name, shares, "fraction", scope=scope, method=SHARE_METHOD)
