from collections.abc import Iterator

import pytest

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
