"""The soak: a sweep of small cells that fail, hang and die, in queues that are interrupted and killed.

`python -m soak.course` runs it and prints its figures; the tests' folder must be on PYTHONPATH (make soak).
"""

import argparse
import secrets
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from soak import reader
from soak.orders import ANSWERS
from soak.processes import Queue, Soak, Strikes, interrupt, marked, wait_for
from soak.report import Report, figures, judge

SETTLE_SECONDS = 60.0
"""In which the processes of a queue that was killed have to be gone."""
MOST_STARTS_UNDISTURBED = 6


class Course:
    """One soak on this machine, from its first start to the reading of its files.

    Args:
        say: told what happens.
    """

    def __init__(self, soak: Soak, say: Callable[[str], None]) -> None:
        self._soak = soak
        self._say = say
        self._interruptions: Counter[str] = Counter()
        self._ends: list[tuple[Queue, set[int]]] = []
        """Each queue with the exit codes that it may have."""
        self._left_over: dict[int, list[int]] = {}

    def run(self) -> Report:
        """All of it."""
        soak = self._soak
        soak.prepare()
        began = time.monotonic()
        strikes = Strikes(soak)
        strikes.start()
        try:
            self._disturbed()
            self._undisturbed()
            strikes.stop()
            wall = time.monotonic() - began
            return self._read(wall)
        finally:
            soak.end()

    def _disturbed(self) -> None:
        soak = self._soak
        self._end(soak.start(), "Ctrl-C", 0.15)
        self._end(soak.start(), "Ctrl-C twice", 0.3)
        self._end(soak.start(), "kill -9", 0.42)

        two = [soak.start(), soak.start()]  # on one device: one waits, and takes over
        wait_for(lambda: any(queue.waits or not queue.runs for queue in two), "a queue that waits")
        first, second = sorted(two, key=lambda queue: queue.waits)
        self._end(first, "SIGTERM", 0.52)
        self._end(second, "kill -9 of all", 0.62)

        one, other = soak.start(), soak.start("locks-of-another-host")  # at work at the same time
        self._end(one, "kill -9 of all", 0.8)
        self._await_end(other, {0, 1})  # the other's last cell is lost

    def _undisturbed(self) -> None:
        """Start again until there is nothing left to be done but what fails every time."""
        soak = self._soak
        always_bad = sum(order.standing not in ANSWERS for order in soak.orders.values())
        for start in range(MOST_STARTS_UNDISTURBED):
            before = soak.attempts()
            self._await_end(soak.start(), {0, 1} if start == 0 else {min(always_bad, 1)})
            if start > 0 and len(soak.attempts() - before) == always_bad and not soak.unrecorded():
                return

    def _end(self, queue: Queue, kind: str, share: float) -> None:
        """End a queue once so large a share of all cells has a record."""
        soak = self._soak
        wait_for(lambda: soak.recorded() >= share * len(soak.orders) or not queue.runs, f"{share:.0%} of the cells")
        moment = interrupt(soak, queue, kind)
        self._interruptions[kind] += 1
        self._say(f"queue {queue.number}: {kind} ({moment}), {soak.recorded()} cells with a record")
        self._has_ended(queue, {-signal.SIGKILL if kind.startswith("kill") else 130})  # not, if it came too late

    def _await_end(self, queue: Queue, codes: set[int]) -> None:
        wait_for(lambda: not queue.runs, f"the end of queue {queue.number}")
        self._say(f"queue {queue.number}: at its end, {self._soak.recorded()} cells with a record")
        self._has_ended(queue, codes)

    def _has_ended(self, queue: Queue, codes: set[int]) -> None:
        self._ends.append((queue, codes))
        try:
            wait_for(lambda: not marked(queue.mark), "the end of its processes", SETTLE_SECONDS)
        except TimeoutError:
            self._left_over[queue.number] = marked(queue.mark)

    def _read(self, wall: float) -> Report:
        finding = reader.read(self._soak.folder, self._soak.sweep, self._soak.orders)
        for queue, expected in self._ends:
            code, said = queue.process.returncode, queue.said()
            finding.check(
                "each queue ended as it had to",
                code in expected and "Traceback" not in said,
                f"queue {queue.number} ended with {code}, and not {expected}: {said[-2000:]}",
            )
            left = self._left_over.get(queue.number)
            finding.check("no process is left over", not left, f"{left} outlived queue {queue.number}")
        judge(self._soak, finding)
        return Report(finding, figures(self._soak, finding, self._interruptions, wall))


def main() -> int:
    """Run a soak; 1 when something is wrong with what it left."""
    parser = argparse.ArgumentParser(prog="soak", description="Runs a sweep through faults and interruptions.")
    parser.add_argument("--cells", type=int, default=200, metavar="N", help="how many (default: 200)")
    parser.add_argument("--seed", type=int, metavar="N", help="of what is left to chance (default: a new one)")
    parser.add_argument("--timeout", type=float, default=5.0, metavar="S", help="a cell's time limit (default: 5 s)")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="a new folder, kept (default: a temporary one)")
    options = parser.parse_args()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # put into the background by a shell; queues inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what it has started ends with it
    seed = secrets.randbelow(2**31) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="scalerlt-soak-") as temporary:
        soak = Soak.drawn(options.folder or Path(temporary, "soak"), options.cells, seed, options.timeout)
        report = Course(soak, say=lambda text: print(text, flush=True)).run()
    print(f"\n{report.table()}")
    for problem in report.problems:
        print(f"WRONG: {problem}")
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
