import statistics

import pytest
import torch

from scalerlt.measure.clock import PhaseTimer, synchronizer, timed


class QueueDevice:
    """A device that takes work at once and does it when somebody waits for it; its own clock counts seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self.queued = 0.0

    def launch(self, seconds: float) -> None:
        self.queued += seconds

    def synchronize(self) -> None:
        self.now += self.queued
        self.queued = 0.0

    def clock(self) -> float:
        return self.now


def test_queued_work_is_part_of_the_time():
    device = QueueDevice()
    seconds = timed(lambda: device.launch(2.5), synchronize=device.synchronize, repeats=3, clock=device.clock)
    assert seconds == [2.5, 2.5, 2.5]


def test_work_queued_before_the_first_repeat_is_not():
    device = QueueDevice()
    device.launch(100.0)
    assert timed(lambda: device.launch(1.0), synchronize=device.synchronize, repeats=1, clock=device.clock) == [1.0]


def test_warm_up_is_apart_and_the_median_does_not_see_it():
    device = QueueDevice()
    durations = iter([10.0, 1.0, 1.0, 1.0])

    def step() -> None:
        device.launch(next(durations))

    warm_up = timed(step, synchronize=device.synchronize, repeats=1, clock=device.clock)
    seconds = timed(step, synchronize=device.synchronize, repeats=3, clock=device.clock)
    assert warm_up == [10.0]
    assert statistics.median(seconds) == 1.0


def test_a_rate_from_each_repeat_does_not_grow():
    device = QueueDevice()
    seconds = timed(lambda: device.launch(1.0), synchronize=device.synchronize, repeats=5, clock=device.clock)
    assert [100 / value for value in seconds] == [100.0] * 5


def test_phases_hold_their_own_queued_work_and_sum_over_entries():
    device = QueueDevice()
    timer = PhaseTimer(device.synchronize, device.clock)
    for _ in range(2):
        with timer.phase("forward"):
            device.launch(1.0)
        with timer.phase("backward"):
            device.launch(2.0)
        device.launch(7.0)  # belongs to no phase
    assert timer.take() == {"forward": 2.0, "backward": 4.0}
    assert timer.take() == {}


def test_a_phase_inside_another_is_not_part_of_it():
    device = QueueDevice()
    timer = PhaseTimer(device.synchronize, device.clock)
    with timer.phase("update"):
        device.launch(1.0)
        with timer.phase("replay"):
            device.launch(10.0)
            with timer.phase("log_prob"):
                device.launch(100.0)
        with timer.phase("replay"):
            device.launch(20.0)
        device.launch(2.0)
    with timer.phase("publish"):
        device.launch(5.0)
    assert timer.take() == {"update": 3.0, "replay": 30.0, "log_prob": 100.0, "publish": 5.0}


def test_a_cpu_needs_no_wait_and_an_unknown_device_is_refused():
    synchronizer(torch.device("cpu"))()
    with pytest.raises(ValueError, match="'meta'"):
        synchronizer(torch.device("meta"))
