"""kill -9 of the harness, the engine's child, a worker, or the harness in mid-write: nothing lost, nothing doubled."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engines.tiny_model import write_model
from tests.faults.crashes import Trials, spec_for

KILLS = 8  # benchmarks/crash_safety.py does 200


@pytest.mark.slow
def test_a_killed_run_is_resumed_to_the_same_answers(tmp_path: Path) -> None:
    trials = Trials(write_model(tmp_path / "model"), tmp_path / "runs", seed=7)
    assert len(trials.expected) == 2 * sum(task.limit * task.repeats for task in spec_for(tmp_path).tasks)  # type: ignore[operator]
    number = 0
    while trials.tally.kills.total() < KILLS:
        trials.trial(number)
        number += 1
    tally = trials.tally
    assert (tally.lost, tally.doubled, tally.changed, tally.processes_left) == (0, 0, 0, 0)
