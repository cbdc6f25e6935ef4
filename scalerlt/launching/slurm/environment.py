"""The environment in which `sbatch` is called: what another job has left in the caller's must not reach the new one.

sbatch copies the caller's variables into the job. Where the caller is itself in a job, they would pin the new job's
processes to the caller's CPUs (SLURM_CPU_BIND), or make it an element of another array.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

PREFIXES = ("SLURM_", "SLURMD_", "SRUN_", "SBATCH_", "SALLOC_", "SUBMITIT_", "PMI_", "PMIX_")
RANKS = frozenset({"MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"})
KEPT = frozenset({"SLURM_CONF"})
"""Where the cluster's configuration stands: without it sbatch may not find the cluster."""


def is_left_over(name: str) -> bool:
    """Whether a variable is another job's, and none of a new one's."""
    return (name.startswith(PREFIXES) or name in RANKS) and name not in KEPT


@contextmanager
def clean_environment() -> Iterator[None]:
    """Without the variables of another job; they are put back afterwards."""
    before = {name: value for name, value in os.environ.items() if is_left_over(name)}
    for name in before:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(before)
