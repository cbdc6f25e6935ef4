"""What the kernel's control groups (v1 and v2) allow this process, and how often they killed for want of memory."""

from collections.abc import Iterator
from pathlib import Path

PROC = Path("/proc")
MOUNTS = Path("/sys/fs/cgroup")
_UNLIMITED = 1 << 60  # v1 writes a huge number where there is no limit, v2 the word max


def oom_kills(proc: Path = PROC, mounts: Path = MOUNTS) -> int:
    """How many processes of this process's memory group the kernel has killed for want of memory, so far.

    From memory.events (v2) or memory.oom_control (v1); where there is no such group, of the whole machine.
    """
    for folder in _folders("memory", proc, mounts):
        for name in ("memory.events", "memory.oom_control"):
            if (count := _entry(folder / name, "oom_kill")) is not None:
                return count
    return _entry(proc / "vmstat", "oom_kill") or 0


def limits(proc: Path = PROC, mounts: Path = MOUNTS) -> dict[str, float]:
    """The tightest `memory_bytes` and `cpus` that the groups above this process allow; no entry where no limit is."""
    found: dict[str, float] = {}
    for folder in _folders("memory", proc, mounts):
        for name in ("memory.max", "memory.limit_in_bytes"):
            text = _text(folder / name)
            if text.isdigit() and int(text) < _UNLIMITED:
                found["memory_bytes"] = min(int(text), found.get("memory_bytes", _UNLIMITED))
    for folder in _folders("cpu", proc, mounts):
        quota, _, period = _text(folder / "cpu.max").partition(" ")
        quota, period = quota or _text(folder / "cpu.cfs_quota_us"), period or _text(folder / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit():
            found["cpus"] = min(int(quota) / int(period), found.get("cpus", float("inf")))
    return found


def _folders(controller: str, proc: Path, mounts: Path) -> Iterator[Path]:
    """The group that a controller puts this process in, then the groups above it up to the mount.

    A container may see its own group as the mount's top, whatever the path says: folders need not exist.
    """
    for line in _text(proc / "self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            tops = [mounts / controllers, mounts / controller]
        elif not controllers:
            tops = [mounts, mounts / "unified"]
        else:
            continue
        for top in dict.fromkeys(tops):
            own = Path(path.lstrip("/"))
            yield from (top / place for place in (own, *own.parents))


def _entry(file: Path, name: str) -> int | None:
    entries = (line.split() for line in _text(file).splitlines())
    return next((int(entry[1]) for entry in entries if entry[0] == name), None)


def _text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""
