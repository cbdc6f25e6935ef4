"""A mocked Slurm: its commands as scripts on the PATH, its jobs in the files of a folder."""

import os
from dataclasses import dataclass
from pathlib import Path

COMMANDS = ("sbatch", "srun", "squeue", "sacct", "scontrol", "scancel")


@dataclass
class MockSlurm:
    """What the commands are told, and what they have been asked."""

    folder: Path

    @classmethod
    def install(cls, folder: Path) -> "MockSlurm":
        """Put the commands into `folder/bin`; the caller puts that on its PATH and `MOCK_SLURM=folder` beside it."""
        (folder / "bin").mkdir(parents=True)
        script = folder / "bin" / "mock_slurm"
        script.write_bytes(Path(__file__).with_name("mock_slurm.sh").read_bytes())
        script.chmod(0o755)
        for command in COMMANDS:
            (folder / "bin" / command).symlink_to(script)
        (folder / "table").touch()
        (folder / "calls").touch()
        return cls(folder)

    def fails(self, command: str, message: str, times: int = -1) -> None:
        """The command fails so often with this message; below zero for ever."""
        (self.folder / f"{command}.knob").write_text(f"fail {times} {message}\n")

    def is_silent(self, command: str, times: int = -1) -> None:
        """The command succeeds and says nothing."""
        (self.folder / f"{command}.knob").write_text(f"silent {times} -\n")

    def hangs(self, command: str, times: int = -1) -> None:
        """The command does not come back."""
        (self.folder / f"{command}.knob").write_text(f"hang {times} -\n")

    def hangs_after_one(self, command: str) -> None:
        """The command works once more and then does not come back."""
        (self.folder / f"{command}.knob").write_text("hang_next 1 -\n")

    def hangs_after_its_work(self, command: str) -> None:
        """The command does what it is asked to, and then does not come back."""
        (self.folder / f"{command}.knob").write_text("hang_after -1 -\n")

    def works(self, command: str) -> None:
        """The command works again."""
        (self.folder / f"{command}.knob").unlink()

    def runs_jobs(self, after_seconds: float = 0.0) -> None:
        """From now on jobs are run, by bash, some time after they were submitted."""
        (self.folder / "run").write_text(str(after_seconds))

    def srun_clears_the_environment(self) -> None:
        """As at sites that set `srun --export=NONE`."""
        (self.folder / "srun_clears").touch()

    def largest_array(self, size: int) -> None:
        """MaxArraySize."""
        (self.folder / "max_array").write_text(str(size))

    def is_gone(self, command: str) -> None:
        """The command is not installed."""
        (self.folder / "bin" / command).unlink()

    def queue(self, *lines: str) -> None:
        """What squeue lists: `id|state|reason|node|raw id|start` each, and `|script|name` to be found by its name."""
        (self.folder / "table").write_text("".join(f"{line}\n" for line in lines))

    def accounts(self, *lines: str) -> None:
        """What sacct answers: `id|state|exit code|nodes|raw id` each."""
        (self.folder / "accounts").write_text("".join(f"{line}\n" for line in lines))

    def shows(self, *lines: str) -> None:
        """What `scontrol show job` answers."""
        (self.folder / "shown").write_text("".join(f"{line}\n" for line in lines))

    def jobs(self) -> dict[str, str]:
        """The state of each job that squeue lists."""
        lines = (self.folder / "table").read_text().splitlines()
        return {line.split("|")[0]: line.split("|")[1] for line in lines}

    def calls(self, command: str) -> list[str]:
        """How a command was called, each time."""
        lines = (self.folder / "calls").read_text().splitlines()
        return [line for line in lines if line.split()[0] == command]

    def script(self, main: int) -> str:
        """What sbatch was given for a job, or an array."""
        return (self.folder / "jobs" / f"{main}.sh").read_text()

    def environment(self, main: int) -> dict[str, str]:
        """In which environment sbatch was called."""
        parts = (self.folder / "jobs" / f"{main}.env").read_bytes().split(b"\0")
        pairs = (os.fsdecode(part).partition("=") for part in parts if part)
        return {name: value for name, _, value in pairs}
