"""Has imported what command lines need, and forks itself for each; tells its exit code.

A line of JSON in has the arguments, the working directory, the environment, and the files of stdout and stderr.
"""

import json
import os
import runpy
import sys
from typing import Any

import hydra._internal.hydra
import hydra.main  # noqa: F401
import pandas  # noqa: F401
import rich  # noqa: F401

import scalerlt.launching.local
import scalerlt.planning.forecast
import scalerlt.planning.hydra_bridge  # noqa: F401


def run_command(arguments: list[str], cwd: str, environment: dict[str, str], out: str, err: str) -> Any:
    """What `python -m scalerlt` does in a fresh process; ends with its SystemExit."""
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    for number, (file, mode) in enumerate(((os.devnull, os.O_RDONLY), (out, os.O_WRONLY), (err, os.O_WRONLY))):
        os.dup2(os.open(file, mode | os.O_CREAT), number)
    sys.argv = ["scalerlt", *arguments]
    runpy.run_module("scalerlt", run_name="__main__")


for line in sys.stdin:
    child = os.fork()
    if child == 0:
        run_command(**json.loads(line))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
