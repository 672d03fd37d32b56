"""From a run on disk to its comparison: the one place where stored samples meet the statistics."""

from __future__ import annotations

from evalharness.compare import compare
from evalharness.policy import load_policy
from evalharness.records import Comparison
from evalharness.store import RunFolder


def assess(folder: RunFolder) -> Comparison:
    """Compare the arms of a stored run by its policy.

    Raises:
        RecordError: a record of the run cannot be read.
        PairingError: two arms did not answer the same questions.
    """
    run = folder.read_run()
    tasks = [task["name"] for task in run.spec["tasks"]]
    samples = {task: {arm.name: folder.read_samples(task, arm.name) for arm in run.arms} for task in tasks}
    return compare(run, samples, folder.read_evidence(), load_policy(run.spec["policy"]))
