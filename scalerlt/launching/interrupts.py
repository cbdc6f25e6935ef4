"""What Ctrl-C means to a queue: once, finish the running cell; twice, end it now."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

from scalerlt.worker.supervisor import Raised

_AT_ONCE = (signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Signals to this process while a queue runs; the handlers before are put back afterwards.

    Attributes:
        finish: nothing further is to start (Ctrl-C once).
        end_now: the running cell, too, is to end (Ctrl-C again, SIGTERM, or the terminal is gone).
    """

    def __init__(self) -> None:
        self.finish = Raised()
        self.end_now = Raised()
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():  # Python allows handlers nowhere else
            for number in (signal.SIGINT, *_AT_ONCE):
                if signal.getsignal(number) is not signal.SIG_IGN:  # what nohup or a script ignores stays ignored
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        # only flags: printing here could fall into the middle of a line that is being printed
        if self.finish.is_set() or number in _AT_ONCE:
            self.end_now.set()
        self.finish.set()
