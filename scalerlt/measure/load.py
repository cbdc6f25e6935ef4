"""How busy the CPUs of this process are with the work of others, from /proc/stat. Looked at while this one sleeps."""

import os
import time
from collections.abc import Iterable
from pathlib import Path

STAT = Path("/proc/stat")
LOOK_SECONDS = 0.2
"""Twenty ticks of the kernel's clock, on each CPU."""
LOOK_AGAIN_SECONDS = 0.8
"""What was busy for a moment is not what will disturb a measurement."""
OF_NO_ACCOUNT = 0.25
"""CPUs' worth of work that is passed over, on many CPUs one in fifty: a system is never quite idle."""


def crowded(stat: Path = STAT) -> str | None:
    """A note for a record when others work on the CPUs that this process may use, else None. Takes 0.2 s, or 1 s."""
    cpus = sorted(os.sched_getaffinity(0))
    limit = max(OF_NO_ACCOUNT, len(cpus) / 50)
    if busy_cpus(cpus, LOOK_SECONDS, stat) <= limit:
        return None
    busy = busy_cpus(cpus, LOOK_AGAIN_SECONDS, stat)
    if busy <= limit:
        return None
    those = f"the {len(cpus)} CPUs" if len(cpus) > 1 else "the only CPU"
    return (
        f"other processes used {busy:.1f} of {those} that may be used here when it started "
        f"(load average {os.getloadavg()[0]:.1f}): its times may be too long"
    )


def busy_cpus(cpus: Iterable[int], seconds: float, stat: Path = STAT) -> float:
    """How many of some CPUs were busy over the next so many seconds, on average."""
    wanted = {f"cpu{number}" for number in cpus}
    before = _ticks(wanted, stat)
    time.sleep(seconds)
    after = _ticks(wanted, stat)
    shares = [
        (busy - before[name][0]) / (total - before[name][1])
        for name, (busy, total) in after.items()
        if name in before and total > before[name][1]
    ]
    return sum(shares)


def _ticks(wanted: set[str], stat: Path) -> dict[str, tuple[int, int]]:
    """Of each CPU the ticks that it was busy, and all; waiting for a disk is idle, what another guest took is busy."""
    found = {}
    try:
        lines = stat.read_text().splitlines()
    except OSError:
        return {}
    for line in lines:
        name, *fields = line.split()
        if name in wanted:
            ticks = [int(field) for field in fields[:8]]  # guests' ticks stand in user's, too
            found[name] = (sum(ticks) - ticks[3] - ticks[4], sum(ticks))
    return found
