"""kill -9 of the harness, the engine's child, a worker, or the harness in mid-write: nothing lost, nothing doubled."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from evalharness.runner.session import Session
from evalharness.spec import RunSpec
from tests.engines.tiny_model import write_model
from tests.faults.crashes import Trials, finished, forked, serve, spec_for

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


def test_a_run_killed_while_writing_its_end_is_resumed_without_leftovers(tmp_path: Path) -> None:
    trials = Trials(write_model(tmp_path / "model"), tmp_path / "runs", seed=7)
    results = tmp_path / "runs" / "end"
    assert os.waitpid(forked(lambda: killed_at_its_end(trials.spec, results)), 0)[1] == signal.SIGKILL
    left = [path.name.split(".")[1] for path in results.rglob("*.tmp")]
    assert left == ["run"]
    assert not finished(results)
    trials.run(results)
    assert finished(results)
    trials.check(results, 0)


def killed_at_its_end(spec: RunSpec, results: Path) -> None:
    """Serve a run and die when its end is half written."""
    finish = Session.finish

    def finish_or_die(session: Session) -> None:
        os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)
        finish(session)

    Session.finish = finish_or_die  # type: ignore[method-assign]
    serve(spec, results)
