import os
from collections.abc import Iterator

import pytest

from scalerlt.worker.fork_server import ForkServer


@pytest.fixture(autouse=True)
def no_wandb_of_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the settings nor the key of whoever runs the tests."""
    for name in list(os.environ):
        if name.startswith("WANDB_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("NETRC", os.devnull)


@pytest.fixture(scope="session")
def server() -> Iterator[ForkServer]:
    with ForkServer() as running:
        yield running
