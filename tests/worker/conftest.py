from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from worker.job_sweep import FakeSlurm

from scalerlt.worker import slurm_job
from scalerlt.worker.fork_server import ForkServer
from scalerlt.worker.supervisor import Supervisor


@pytest.fixture(scope="session")
def server() -> Iterator[ForkServer]:
    with ForkServer() as running:
        yield running


@pytest.fixture(params=["fork"])
def supervisor(request: pytest.FixtureRequest, server: ForkServer) -> Supervisor:
    """Forks; indirectly parametrised with "spawn" it starts fresh interpreters."""
    return Supervisor(server if request.param == "fork" else None)


@pytest.fixture(scope="session")
def second_server() -> Iterator[ForkServer]:
    with ForkServer() as running:
        yield running


@pytest.fixture
def slurm(server: ForkServer, second_server: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    """This process is in a Slurm job; its slots take turns in having one of two fork servers, that torch be imported
    twice and no more."""
    free = [server, second_server]
    for one in free:
        one.ensure()

    @contextmanager
    def borrowed(preload: list[str]) -> Iterator[ForkServer]:
        mine = free.pop()
        try:
            yield mine
        finally:
            free.append(mine)

    monkeypatch.setattr(slurm_job, "ForkServer", borrowed)
    commands = tmp_path / "commands"
    commands.mkdir()
    return FakeSlurm(commands, monkeypatch)
