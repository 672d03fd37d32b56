"""Kill -9 a small run again and again, and count what was lost.

    python -m benchmarks.crash_safety --kills 200 --seed 1

Prints one line of JSON; exit status 1 when a sample was lost, doubled or changed, or a process was left.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from tests.engines.tiny_model import write_model
from tests.faults.crashes import Trials


def main() -> int:
    """Run until so many processes were killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    began, number = time.monotonic(), 0
    with tempfile.TemporaryDirectory() as name:
        trials = Trials(write_model(Path(name) / "model"), Path(name) / "runs", given.seed)
        while trials.tally.kills.total() < given.kills:
            trials.trial(number)
            number += 1
            print(f"\r{trials.tally.kills.total()} killed", end="", file=sys.stderr)
    tally = trials.tally
    counts = {**vars(tally), "kills": dict(tally.kills), "answers_per_run": len(trials.expected)}
    print(json.dumps({**counts, "minutes": round((time.monotonic() - began) / 60, 1)}))
    return int(bool(tally.lost or tally.doubled or tally.changed or tally.processes_left))


if __name__ == "__main__":
    sys.exit(main())
