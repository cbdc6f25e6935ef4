"""`python -m scalerlt.worker CELL.yaml`: run one frozen cell here, in a fresh interpreter, and record it.

Exit codes: 0 the cell has its answer, 1 it has none (the record says why, or could not be written), 2 nothing was
started, 130 interrupted.
"""

import argparse
import signal
import sys
from pathlib import Path

from scalerlt.errors import UserError
from scalerlt.records.store import CellClaimed
from scalerlt.worker.processes import Raised
from scalerlt.worker.supervisor import NotRecorded, Supervisor


def main() -> int:
    """Run the cell that the command line names; SIGINT and SIGTERM end it, recorded."""
    parser = argparse.ArgumentParser(prog="python -m scalerlt.worker", description="Run one frozen cell.")
    parser.add_argument("cell", type=Path, metavar="CELL.yaml", help="the frozen cell; attempts are made beside it")
    cell_file: Path = parser.parse_args().cell
    stop = Raised()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    try:
        record = Supervisor().run(cell_file, stop=stop)
    except NotRecorded as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except (UserError, CellClaimed) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{record.cell_id}: {record.verdict}" + (f" ({record.reason})" if record.reason else ""))
    if stop.is_set():
        return 130
    return 0 if record.verdict.answers else 1


if __name__ == "__main__":
    sys.exit(main())
