"""`tracker=tensorboard`: an attempt as event files in its own folder, scalars against the step, and hyperparameters."""

import time
from collections.abc import Mapping
from typing import Any

from scalerlt.errors import UserError
from scalerlt.records.record import Record
from scalerlt.tracking.following import Answers, Mirrored, Row


class TensorBoardMirror:
    """One run: TensorBoard names it by its folder. A continued attempt is a run beside the one it continues.

    Raises:
        UserError: tensorboard is not installed.
    """

    def __init__(self, mirrored: Mirrored, values: Mapping[str, Any]) -> None:
        try:
            from tensorboard.compat.proto.event_pb2 import Event
            from tensorboard.compat.proto.summary_pb2 import Summary
            from tensorboard.plugins.hparams import summary_v2
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError as error:
            raise UserError(f"tensorboard cannot be imported ({error}); pip install 'scalerlt[tensorboard]'") from error
        self.notes: list[str] = []
        self._event, self._summary = Event, Summary
        self._writer = EventFileWriter(str(mirrored.folder / "tensorboard"))
        self._step = 0
        axes = {key: value for key, value in mirrored.frozen.axes.items() if value is not None}
        trial = f"{mirrored.frozen.cell_id}/{mirrored.attempt.name}"
        self._write(summary_v2.hparams_pb(axes, trial_id=trial))

    def row(self, row: Row) -> None:
        """Write the numbers of one row."""
        step = row.get("step")
        if isinstance(step, int):
            self._step = step
        self._scalars({name: value for name, value in row.items() if name != "step"})

    def answers(self, answers: Answers) -> None:
        """Answers are no scalars: they stand in the samples, and in `scalerlt show`."""

    def end(self, record: Record | None) -> None:
        """Write the record's figures, as `record/<name>` at the last step, and close the file."""
        if record is not None:
            measured = {name: metric.value for name, metric in record.metrics.items() if metric.status == "measured"}
            self._scalars({f"record/{name}": value for name, value in measured.items()})
        self._writer.close()

    def _scalars(self, values: Mapping[str, Any]) -> None:
        numbers = {name: float(value) for name, value in values.items() if isinstance(value, int | float)}
        self._write(self._summary(value=[self._summary.Value(tag=tag, simple_value=n) for tag, n in numbers.items()]))
        self._writer.flush()

    def _write(self, summary: Any) -> None:
        self._writer.add_event(self._event(summary=summary, step=self._step, wall_time=time.time()))
