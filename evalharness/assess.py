"""From a run on disk to its comparison: the one place where stored samples meet the statistics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from evalharness.answers import StoredAnswers
from evalharness.compare import compare
from evalharness.compare.across import RunPair, Side, compare_runs
from evalharness.errors import RecordError, SpecError, UnknownName, first_fault
from evalharness.policy import Policy, load_policy
from evalharness.records import ArmEvidence, Comparison, Run, Sample
from evalharness.spec import Published
from evalharness.store import PRUNED, RunFolder

POLICY_FILE = "policy.json"  # the policy as applied, so that another machine judges by the same one


@dataclass(frozen=True, slots=True)
class Stored:
    """All that a run left on disk; `samples` maps task -> arm -> answers."""

    run: Run
    samples: Mapping[str, Mapping[str, Sequence[Sample]]]
    evidence: Mapping[str, ArmEvidence]
    policy: Policy

    @property
    def comparison(self) -> Comparison:
        """Compared anew at each call; raises PairingError when two arms did not answer the same questions."""
        return compare(self.run, self.samples, self.evidence, self.policy)


def read_stored(folder: RunFolder, policy: Policy | None = None) -> Stored:
    """Read a run, to be judged by `policy` or else by the one its spec names.

    Raises:
        RecordError: a record of the run cannot be read, or its answers were pruned.
        UnknownName, SpecError: the policy is neither at hand nor stored with the run.
    """
    run = folder.read_run()
    if (folder.path / PRUNED).exists() and not folder.sample_files():
        raise RecordError(f"The answers of {folder.path.name} were pruned.", "Its comparison.json stands as it is.")
    tasks = _task_names(folder, run)
    samples = {task: {arm.name: StoredAnswers(folder, task, arm.name) for arm in run.arms} for task in tasks}
    return Stored(run, samples, folder.read_evidence(), policy or _policy(folder, run))


class _Named(BaseModel):
    """A task of a stored spec."""

    name: str


class _SpecAsStored(BaseModel):
    """What a comparison reads of a stored spec, which need not be one of ours: an import's has parts of its own."""

    policy: str
    engine: Mapping[str, Any]
    tasks: tuple[_Named, ...]
    seed: int = 0
    published: Mapping[str, Published] = {}
    check_published: bool = False
    stop_early: bool = False


def _task_names(folder: RunFolder, run: Run) -> list[str]:
    try:
        spec = _SpecAsStored.model_validate(run.spec)
    except ValidationError as error:
        key, fault = first_fault(error)
        raise RecordError(f"{folder.path.name}/run.json: spec.{key}: {fault}.", "Restore the file.") from error
    return [task.name for task in spec.tasks]


def stored_policy(folder: RunFolder) -> Policy | None:
    """The policy that a run was judged by when its tables were written, if they were; raises RecordError."""
    if not (folder.path / POLICY_FILE).exists():
        return None
    try:
        return Policy.model_validate_json(folder.read_text(POLICY_FILE))
    except ValidationError as error:
        raise RecordError(f"{folder.path.name}/{POLICY_FILE} is not a policy.", "Restore the file.") from error


def assess(folder: RunFolder) -> Comparison:
    """Compare the arms of a stored run by its policy; raises as `read_stored` does, and PairingError."""
    return read_stored(folder).comparison


def assess_pair(first: RunFolder, second: RunFolder) -> RunPair:
    """Hold every arm of run `second` against its namesake in run `first`, by the policy of `second`.

    Raises as `read_stored` does, and PairingError when the runs have no arm, task or question in common.
    """
    before, after = read_stored(first), read_stored(second)
    return compare_runs(_side(before), _side(after), after.policy)


def _side(stored: Stored) -> Side:
    return Side(stored.run, stored.samples, stored.evidence)


def _policy(folder: RunFolder, run: Run) -> Policy:
    try:
        return load_policy(run.spec["policy"])
    except (SpecError, UnknownName):
        kept = stored_policy(folder)
        if kept is None:
            raise
        return kept
