"""What Slurm says of jobs: squeue for those it still knows, sacct and scontrol for those that have ended.

Accounting may be missing, forbidden, or behind by hours; then the queue's answer has to do. What becomes of a cell is
read from its records all the same: Slurm only says why there is none.
"""

import re
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime

from scalerlt.launching.slurm.environment import clean_environment

ASK_SECONDS = 10.0
"""Longest wait for an answer."""
AGAIN_SECONDS = 60.0
"""A command that has failed is left alone for so long."""
EPOCH = "1970-01-01"
"""Without a start sacct tells of today's jobs alone."""
SQUEUE = ("squeue", "--noheader", "--array", "--states=all")
FIELDS = "%i|%T|%r|%N|%A|%S"
ENDED = frozenset(
    {
        *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "REVOKED"),
        *("TIMEOUT", "LAUNCH_FAILED", "RECONFIG_FAIL"),
    }
)
"""States that a job does not leave; PREEMPTED is none of them: most such jobs go back into the queue."""


@dataclass(frozen=True)
class JobState:
    """What Slurm says of a job.

    Attributes:
        job_id: "123", or "123_4" of an element of an array.
        state: one word in capitals: PENDING, RUNNING, COMPLETED, CANCELLED, NODE_FAIL, OUT_OF_MEMORY, PREEMPTED, ...
        reason: why it waits, or how it ended.
        nodes: on which nodes it is or was.
        source: the command that said so.
        raw_id: the number that an element of an array has for itself, as its processes know it.
        started: when it started the last time, ISO 8601; squeue alone tells it.
        script: the path of its script, as sbatch was given it; `Slurm.named` alone tells it.
    """

    job_id: str
    state: str
    reason: str = ""
    nodes: str = ""
    source: str = "squeue"
    raw_id: str = ""
    started: str | None = None
    script: str = ""

    @property
    def has_ended(self) -> bool:
        """Whether it will not run again under this id."""
        return self.state in ENDED

    @property
    def sentence(self) -> str:
        """For a record or a line of text: "CANCELLED (by 1000), on n1"."""
        reason = f" ({self.reason})" if self.reason else ""
        return f"{self.state}{reason}" + (f", on {self.nodes}" if self.nodes else "")


@dataclass
class Slurm:
    """Asks the cluster that `sbatch` on this host belongs to.

    Args:
        say: told once per command that gives no answer.
    """

    say: Callable[[str], None]
    seconds: float = ASK_SECONDS
    is_silent: bool = False
    """Whether squeue gave no answer when it was last asked: then that a job is not listed means nothing."""
    _said: set[str] = field(default_factory=set)
    _silent_until: dict[str, float] = field(default_factory=dict)

    def queue(self, job_ids: Iterable[str]) -> dict[str, JobState]:
        """The jobs that squeue lists: those that wait or run, and those that ended minutes ago.

        Args:
            job_ids: "123", "123_4"; all elements of an array that is named as a whole. An element may be named by the
                number that it has for itself, too, and stands under that name then.
        """
        wanted = list(job_ids)
        mains = sorted({job_id.partition("_")[0] for job_id in wanted}, key=int)
        if not mains:
            return {}
        answer = self._ask([*SQUEUE, f"--format={FIELDS}", f"--jobs={','.join(mains)}"], none_like="Invalid job id")
        self.is_silent = answer is None
        return _of_interest(_of_squeue(answer or ""), wanted)

    def named(self, names: Iterable[str]) -> dict[str, JobState]:
        """The jobs of these names that squeue lists, with their scripts: anybody may have jobs of such a name."""
        wanted = list(names)
        if not wanted:
            return {}
        answer = self._ask([*SQUEUE, f"--format={FIELDS}|%o", f"--name={','.join(wanted)}"])
        return {job.job_id: job for job in _of_squeue(answer or "")}

    def history(self, job_ids: Iterable[str], since: str = EPOCH) -> dict[str, JobState]:
        """What is known of jobs, those that have ended too: from sacct, else from scontrol for as long as it remembers.

        Jobs of which nobody knows anything are left out.

        Args:
            since: the first day on which they can have been submitted, as ISO 8601.
        """
        wanted = list(job_ids)
        mains = sorted({job_id.partition("_")[0] for job_id in wanted}, key=int)
        if not mains:
            return {}
        command = ["sacct", "--noheader", "--parsable2", "--allocations"]
        command += ["--format=JobID,State,ExitCode,NodeList,JobIDRaw", f"--starttime={since[:10]}"]
        answer = self._ask([*command, f"--jobs={','.join(mains)}"])
        known = _of_interest(_of_sacct(answer or ""), wanted)
        if answer is not None and not known:
            self._warn("sacct", "it knows none of the jobs")
        missing = [job_id for job_id in wanted if job_id not in known]
        for main in sorted({job_id.partition("_")[0] for job_id in missing}, key=int):
            shown = self._ask(["scontrol", "show", "job", "--oneliner", main], none_like="Invalid job id")
            known |= _of_interest(_of_scontrol(shown or ""), missing)
        return known

    def largest_array(self) -> int | None:
        """MaxArraySize of the cluster; None when it does not say."""
        answer = self._ask(["scontrol", "show", "config"])
        found = re.search(r"^MaxArraySize\s*=\s*(\d+)", answer or "", re.MULTILINE)
        return int(found[1]) if found else None

    def _ask(self, command: list[str], none_like: str | None = None) -> str | None:
        """Standard output; None after a failure, of which the first is told. `none_like` in an error means no jobs."""
        name = command[0]
        if time.monotonic() < self._silent_until.get(name, 0.0):
            return None
        try:
            with clean_environment():
                ran = subprocess.run(
                    command, capture_output=True, text=True, errors="replace", timeout=self.seconds, check=False
                )
        except FileNotFoundError:
            why = "it is not installed here"
        except subprocess.TimeoutExpired:
            why = f"no answer within {self.seconds:g} s"
        except OSError as error:
            why = error.strerror or str(error)
        else:
            said = (ran.stderr.strip() or ran.stdout.strip()).splitlines()
            if ran.returncode == 0:
                return ran.stdout
            if none_like is not None and any(none_like in line for line in said):
                return ""
            why = said[0] if said else f"exit code {ran.returncode}"
        self._silent_until[name] = time.monotonic() + AGAIN_SECONDS
        self._warn(name, why)
        return None

    def _warn(self, name: str, why: str) -> None:
        if name not in self._said:
            self._said.add(name)
            instead = {
                "sacct": "; going by squeue, scontrol and the records",
                "squeue": "; what runs is told by heartbeats, and what waits is not known",
            }.get(name, "")
            self.say(f"{name} does not answer ({why}){instead}")


def expand(job_id: str) -> list[str]:
    """The ids that a text of Slurm's stands for: "12_[3-5,8%2]" is 12_3, 12_4, 12_5 and 12_8."""
    found = re.fullmatch(r"(\d+)_\[([^\]%]*)(?:%\d+)?\]", job_id)
    if found is None:
        return [job_id] if re.fullmatch(r"\d+(_\d+)?", job_id) else []
    return [f"{found[1]}_{index}" for index in _indices(found[2])]


def _indices(text: str) -> Iterator[int]:
    for part in text.split(","):
        if (found := re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", part.strip())) is not None:
            first = int(found[1])
            yield from range(first, int(found[2] or first) + 1, int(found[3] or 1))


def _of_interest(states: Iterable[JobState], wanted: Iterable[str]) -> dict[str, JobState]:
    ids = set(wanted)
    found = {}
    for state in states:
        if state.job_id in ids or state.job_id.partition("_")[0] in ids:
            found[state.job_id] = state
        if state.raw_id in ids:
            found[state.raw_id] = state
    return found


def _of_squeue(text: str) -> Iterator[JobState]:
    for line in text.splitlines():
        fields = line.split("|", 6)
        if len(fields) >= 4:
            raw_id, started, script = (*fields[4:], "", "", "")[:3]
            reason = "" if fields[2] == "None" else fields[2]
            for state in _states(fields[0], fields[1], reason, fields[3], "squeue", raw_id, _moment(started)):
                yield replace(state, script=script.strip())


def _of_sacct(text: str) -> Iterator[JobState]:
    for line in text.splitlines():
        fields = line.split("|")
        if len(fields) >= 4 and "." not in fields[0]:
            exit_code = "" if fields[2] in ("", "0:0") else f"exit code {fields[2]}"
            nodes = "" if fields[3] == "None assigned" else fields[3]
            raw_id = fields[4] if len(fields) > 4 else ""
            yield from _states(fields[0], fields[1], exit_code, nodes, "sacct", raw_id)


def _of_scontrol(text: str) -> Iterator[JobState]:
    for line in text.splitlines():
        said = dict(part.partition("=")[::2] for part in line.split() if "=" in part)
        if "JobId" not in said or "JobState" not in said:
            continue
        array = said.get("ArrayTaskId")
        job_id = said["JobId"]
        if array is not None:
            job_id = f"{said['ArrayJobId']}_{array}" if array.isdigit() else f"{said['ArrayJobId']}_[{array}]"
        reason = said.get("Reason", "None")
        exit_code = said.get("ExitCode", "0:0")
        why = reason if reason != "None" else "" if exit_code == "0:0" else f"exit code {exit_code}"
        nodes = said.get("NodeList", "")
        yield from _states(job_id, said["JobState"], why, "" if nodes == "(null)" else nodes, "scontrol", said["JobId"])


def _moment(text: str) -> str | None:
    try:
        return datetime.fromisoformat(text.strip()).astimezone().isoformat()  # Slurm tells this host's own time
    except ValueError:
        return None  # N/A, of a job that waits


def _states(
    job_ids: str, state: str, reason: str, nodes: str, source: str, raw_id: str = "", started: str | None = None
) -> Iterator[JobState]:
    """One per job: `CANCELLED by 1000` and `CANCELLED+` become CANCELLED."""
    words = state.split()
    if not words:
        return
    word = words[0].rstrip("+").upper()
    detail = " ".join(words[1:])
    why = ", ".join(part for part in (detail, reason) if part)
    for job_id in expand(job_ids.strip()):
        begun = None if word == "PENDING" else started  # of one that waits squeue tells when it is expected to start
        yield JobState(job_id, word, why, nodes.strip(), source, raw_id.strip(), begun)
