"""One lock per device of this host, so that two sweeps never measure on one device at the same time."""

import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from scalerlt.records.base import writing

LOOK_SECONDS = 0.5


@contextmanager
def hold(
    devices: Sequence[str], holder: str, say: Callable[[str], None], give_up: Callable[[], bool]
) -> Iterator[bool]:
    """Hold the locks of several devices; waits for whoever has them, and says so.

    The kernel lets go of a lock when its holder ends, however it ends.

    Args:
        devices: names as `devices_of` makes them.
        holder: who is to be named to those who wait.
        say: told once per device that must be waited for.
        give_up: asked while waiting.

    Yields:
        Whether all are held; False after giving up.

    Raises:
        UnwritableFile: a lock's file cannot be made or opened.
    """
    with ExitStack() as held:
        for device in sorted(set(devices)):  # in one order, so that two sweeps never wait for each other
            descriptor = _wait_for(device, say, give_up)
            if descriptor is None:
                yield False
                return
            held.callback(os.close, descriptor)
            with suppress(OSError):  # the lock is held all the same, and whoever waits is not told by whom
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, f"{holder} (pid {os.getpid()})".encode(), 0)
        yield True


def devices_of(config: Mapping[str, Any]) -> list[str]:
    """Names of the devices that a frozen cell uses here: the CPU, or of the GPUs that may be seen the first of all, and
    one for each of its ranks."""
    kind = config["device"]["type"]
    if kind == "cpu":
        return ["cpu"]
    visible = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    ranks = config.get("parallel", {}).get("ranks_per_node", 1)  # older cells have no such group
    return [f"{kind}-{name}" for name in (visible or map(str, range(ranks)))][:ranks]


def lock_file(device: str) -> Path:
    """The file whose lock stands for the device; shared by all users of the host."""
    return Path(tempfile.gettempdir()) / f"scalerlt-{device}.lock"


def _wait_for(device: str, say: Callable[[str], None], give_up: Callable[[], bool]) -> int | None:
    said = False
    while not give_up():
        with writing(lock_file(device)):
            descriptor = _open(lock_file(device))
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not said:
                said = True
                say(f"waiting for device {device}: {_holder(descriptor)} measures on it")
            os.close(descriptor)
            time.sleep(LOOK_SECONDS)
            continue
        if _is_still_there(descriptor, lock_file(device)):
            return descriptor
        os.close(descriptor)  # a clean-up of the folder removed the file between opening and locking
    return None


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        pass
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError:
        return os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    os.fchmod(descriptor, 0o666)  # whatever the umask: another user's sweep must be able to wait for it
    return descriptor


def _is_still_there(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _holder(descriptor: int) -> str:
    return os.pread(descriptor, 1000, 0).decode(errors="replace") or "another sweep"
