"""The sample files of an attempt: `samples/step-NNNNNN.jsonl` and `samples/eval-NNNNNN.jsonl`, up to a size."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from scalerlt.records.recorder import Recorder
from scalerlt.records.samples import Sample, SamplesHeader, write_samples


class SamplesWriter:
    """Writes sample files until they reach a size together; what does not fit is left out, and noted once.

    Args:
        limit: bytes of all files of the attempt.
    """

    def __init__(self, recorder: Recorder, header: SamplesHeader, *, limit: int) -> None:
        self._recorder = recorder
        self._header = header
        self._left = limit
        self._full = False

    def write(self, kind: Literal["step", "eval"], step: int, samples: Sequence[Sample]) -> None:
        """Write one file, whole or not at all."""
        directory = self._recorder.attempt / "samples"
        directory.mkdir(exist_ok=True)
        path: Path = directory / f"{kind}-{step:06d}.jsonl"
        write_samples(path, self._header, samples)
        size = path.stat().st_size
        if size <= self._left:
            self._left -= size
            return
        path.unlink()
        if not self._full:
            self._full = True
            self._recorder.note(
                f"samples from {kind} {step} on are left out: they would exceed experiment.samples_max_bytes"
            )
