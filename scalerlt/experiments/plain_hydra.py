"""Plain Hydra on a list of cells: `python -m scalerlt.experiments.plain_hydra`.

Reads a JSON list of lists of overrides from standard input, and prints the seconds that `hydra.compose` and OmegaConf's
resolution take for each. What `experiment=planning_speed` is measured against.
"""

import json
import sys
import time
from pathlib import Path

import scalerlt


def main() -> None:
    """Compose every cell, after one that does not count."""
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    seconds = []
    with initialize_config_dir(str(Path(scalerlt.__file__).parent / "conf"), version_base="1.3"):
        compose("config")
        for overrides in json.load(sys.stdin):
            started = time.perf_counter()
            OmegaConf.to_container(compose("config", overrides=overrides), resolve=True)
            seconds.append(time.perf_counter() - started)
    print(json.dumps(seconds))


if __name__ == "__main__":
    main()
