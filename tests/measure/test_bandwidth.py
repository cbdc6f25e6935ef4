import pytest
import torch

from scalerlt.measure import bandwidth
from scalerlt.measure.bandwidth import REPEATS, copy_bandwidth

CPU = torch.device("cpu")


def test_bytes_read_and_written_by_the_fastest_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    copies: list[tuple[int, bool]] = []
    honest = torch.Tensor.copy_

    def copied(self: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        copies.append((source.nbytes, bool((source != 0).all()) and self.data_ptr() != source.data_ptr()))
        return honest(self, source)

    def timed(fn, *, synchronize, repeats):
        assert len(copies) == 1, "one copy before, whose pages are new"
        return [0.5 * (fn() is not None) + index for index in reversed(range(repeats))]

    monkeypatch.setattr(torch.Tensor, "copy_", copied)
    monkeypatch.setattr(bandwidth, "timed", timed)
    found = copy_bandwidth(CPU, copied_bytes=3000)
    assert found.bytes_per_second == 2 * 3000 / 0.5
    assert copies == [(3000, True)] * (1 + REPEATS)
    assert found.reason is None


def test_the_method_says_what_was_done() -> None:
    threads = torch.get_num_threads()
    method = copy_bandwidth(CPU, copied_bytes=4096).method
    for said in ("4096 bytes", "read and written", f"fastest of {REPEATS}", f"{threads} threads"):
        assert said in method


def test_where_there_is_no_room_there_is_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(size: int, **options: object) -> torch.Tensor:
        raise RuntimeError(f"DefaultCPUAllocator: can't allocate memory: you tried to allocate {size} bytes.\nmore")

    monkeypatch.setattr(torch, "ones", refuse)
    found = copy_bandwidth(CPU, copied_bytes=4096)
    assert found.bytes_per_second is None
    assert found.reason == (
        "no room for the copy: DefaultCPUAllocator: can't allocate memory: you tried to allocate 4096 bytes."
    )
