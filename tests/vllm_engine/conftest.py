import os

import pytest
import torch

from scalerlt.rollout.vllm.offline import ENVIRONMENT

os.environ |= ENVIRONMENT | {"TORCHDYNAMO_DISABLE": "1"}


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)
