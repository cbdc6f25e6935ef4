"""Claims on the items of a queue: a directory per item, made exclusively, with the lease of the job that has it."""

import hashlib
import time
from contextlib import suppress
from pathlib import Path

from scalerlt.records.base import UnreadableDocument, UnwritableFile, now, writing
from scalerlt.records.lease import Lease
from scalerlt.records.store import CLAIM_SECONDS, LEASE_FILE

_ABANDONED = "abandoned"


class Claims:
    """What this process has claimed of one queue. Not for several threads at once.

    Args:
        directory: where the claims of all jobs stand; made when there is none.
        job_id: noted in the leases.
    """

    def __init__(self, directory: Path, job_id: str | None = None) -> None:
        self._directory = directory
        self._job_id = job_id
        self._held: dict[int, Lease] = {}

    def take(self, index: int) -> bool:
        """Claim an item; of several processes that try, one gets it. A claim whose holder is dead is taken over.

        Raises:
            UnwritableFile: no claim can be made here.
        """
        path = self._path(index)
        with writing(self._directory):
            self._directory.mkdir(parents=True, exist_ok=True)
        if not _made(path) and not (_moved_away(path) and _made(path)):
            return False
        lease = Lease.of_this_process(self._job_id)
        try:
            lease.write(path / LEASE_FILE)
        except UnwritableFile:
            with suppress(OSError):  # it is nobody's, and will be taken for that
                path.rmdir()
            raise
        self._held[index] = lease
        return True

    def holder(self, index: int) -> Lease | None:
        """The lease of an item's claim; None when nobody has claimed it, or whoever has it has not written it yet."""
        return _lease(self._path(index))

    def release(self, index: int) -> None:
        """Give up a claim of this process; one that it has lost meanwhile is left to whoever has it.

        Raises:
            UnwritableFile: it cannot be removed, and stands until this process has ended.
        """
        path = self._path(index)
        is_ours = self._is_ours(index)
        del self._held[index]
        if is_ours:
            with writing(path):
                for name in (LEASE_FILE, _ABANDONED):
                    (path / name).unlink(missing_ok=True)
                path.rmdir()

    def renew(self) -> None:
        """Show the other hosts that the claims of this process are alive."""
        for index, lease in self._held.items():
            lease.heartbeat = now()
            with suppress(UnwritableFile):  # the file system is away for a moment
                if self._is_ours(index):
                    lease.write(self._path(index) / LEASE_FILE)

    def _is_ours(self, index: int) -> bool:
        """Whether a claim has not been taken over by another who thought this process dead."""
        holder, ours = self.holder(index), self._held[index]
        return holder is not None and (holder.host, holder.pid, holder.started) == (ours.host, ours.pid, ours.started)

    def _path(self, index: int) -> Path:
        return self._directory / str(index)


def _made(path: Path) -> bool:
    """Whether this process has made a directory, and not another."""
    with writing(path):
        try:
            path.mkdir()
        except FileExistsError:
            return False
    return True


def _moved_away(path: Path) -> bool:
    """Whether a claim was dead and this process, of all that saw so, moved it out of the way.

    The new name follows from the dead lease, and what is moved is never empty: of two renames the later one fails, and
    can't move the claim that was made in between.
    """
    try:
        lease, found = _lease(path), path.stat()
        dead = time.time() - found.st_mtime > CLAIM_SECONDS if lease is None else not lease.is_alive()
        if not dead:
            return False
        (path / _ABANDONED).touch()
        holder = f"{found.st_ino}" if lease is None else f"{lease.host} {lease.pid} {lease.started}"
        path.rename(path.with_name(f".{path.name}-{hashlib.sha256(holder.encode()).hexdigest()[:16]}"))
    except OSError:  # gone, or moved by another, in this moment
        return False
    return True


def _lease(path: Path) -> Lease | None:
    try:
        return Lease.read(path / LEASE_FILE)
    except UnreadableDocument:
        return None
