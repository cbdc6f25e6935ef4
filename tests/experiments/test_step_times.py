"""Whole training steps by phase on a clock of the test's own, with what only observes them left out."""

from pathlib import Path

import pytest

from scalerlt.experiments.step_times import StepTimes
from scalerlt.records.recorder import Recorder


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def step(times: StepTimes, clock: Clock, generate: float, replay: float, observed: float) -> None:
    with times.step():
        with times.phase("generate"):
            clock.now += generate
        clock.now += 0.5
        with times.observing("samples"):
            clock.now += observed
        with times.phase("update_actor"):
            clock.now += 2.0
            with times.phase("replay"):
                clock.now += replay
            clock.now += 1.0


def test_a_step_is_the_sum_of_its_phases_and_the_rest(tmp_path: Path) -> None:
    clock = Clock()
    times = StepTimes(lambda: None, clock)
    step(times, clock, 100.0, 50.0, 7.0)
    assert times.row() == {
        "timing_s/generate": 100.0,
        "timing_s/replay": 50.0,
        "timing_s/update_actor": 3.0,
        "observing_s/samples": 7.0,
    }
    step(times, clock, 10.0, 4.0, 1000.0)
    step(times, clock, 12.0, 5.0, 2000.0)
    recorder = Recorder(tmp_path)
    times.record(recorder)
    recorder.close()
    values = {name: metric.values or metric.value for name, metric in recorder.metrics.items()}
    assert values == {
        "rl_step_warm_up_seconds": 153.5,
        "rl_step_seconds": [17.5, 20.5],
        "rl_step_seconds/generate": [10.0, 12.0],
        "rl_step_seconds/replay": [4.0, 5.0],
        "rl_step_seconds/update_actor": [3.0, 3.0],
        "rl_step_seconds/other": [0.5, 0.5],
        "observing_seconds/samples": [1000.0, 2000.0],
    }


@pytest.mark.parametrize("steps", [0, 1])
def test_an_attempt_without_a_second_step_has_no_time(steps: int, tmp_path: Path) -> None:
    clock = Clock()
    times = StepTimes(lambda: None, clock)
    for _ in range(steps):
        step(times, clock, 1.0, 1.0, 1.0)
    recorder = Recorder(tmp_path)
    times.record(recorder)
    recorder.close()
    assert recorder.metrics["rl_step_seconds"].status == "not_measured"
