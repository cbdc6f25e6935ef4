"""The versions of vLLM that the plugin was tested with; others only on request."""

import os
from functools import cache

from scalerlt.errors import UserError

TESTED = ("0.32.0",)
"""Releases, whatever they were built for: `make test-vllm` passes with each."""

ALLOW_UNTESTED = "SCALERLT_VLLM_UNTESTED"
"""The environment variable that, set to 1, lets any version try."""


def check_version(version: str) -> None:
    """Refuse a version of vLLM that is not among those tested, unless it is allowed to try.

    Raises:
        UserError: with the version, those tested, and how to try all the same.
    """
    if version.partition("+")[0] not in TESTED and os.environ.get(ALLOW_UNTESTED) != "1":
        raise UserError(
            f"Ouro on vLLM {version}: this plugin was tested with {', '.join(TESTED)}; install that, or set "
            f"{ALLOW_UNTESTED}=1 to try"
        )


@cache
def check_installed() -> None:
    """`check_version` of the vLLM that runs."""
    from vllm import __version__

    check_version(__version__)
