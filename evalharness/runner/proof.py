"""What the evidence of several sittings, or of several replicas, comes to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from evalharness.errors import EvidenceError
from evalharness.records import ArmEvidence

CUT_SHORT = "a sitting at this arm was cut short: its steps are not counted"


def continued(evidence: ArmEvidence, earlier: ArmEvidence | None) -> ArmEvidence:
    """Evidence of a resumed arm counts the steps of the sittings before, and keeps what was noted of them.

    Raises:
        EvidenceError: the arm does not run as it did then; its answers cannot be mixed.
    """
    if earlier is None:
        return evidence
    changed = [k for k, now in evidence.observed.items() if earlier.observed.get(k, now) != now]
    if changed:
        key = changed[0]
        raise EvidenceError(
            f"Arm {evidence.arm} does not run as when it began: {key} was {earlier.observed[key]}, is "
            f"{evidence.observed[key]}.",
            "Restore what changed, or start a new run.",
        )
    return replace(
        evidence,
        full_replays=earlier.full_replays + evidence.full_replays,
        eager_steps=earlier.eager_steps + evidence.eager_steps,
        notes=tuple(dict.fromkeys((*evidence.notes, *earlier.notes))),
    )


def begun(evidence: ArmEvidence) -> ArmEvidence:
    """Evidence as it stands should the sitting be cut short: the steps are counted at its end."""
    return replace(evidence, notes=(*evidence.notes, CUT_SHORT))


def joined(by_replica: Mapping[str, ArmEvidence]) -> ArmEvidence:
    """Evidence of an arm that several replicas ran: steps added, costs averaged, who did how much noted.

    Raises:
        EvidenceError: two replicas do not run the arm alike; names the setting, both values and both replicas.
    """
    (first, one), *others = by_replica.items()
    for name, other in others:
        _refuse_difference(first, one, name, other)
    shown = [note for evidence in by_replica.values() for note in evidence.notes]
    steps = [_steps(name, evidence) for name, evidence in by_replica.items()]
    return replace(
        one,
        full_replays=sum(evidence.full_replays for evidence in by_replica.values()),
        eager_steps=sum(evidence.eager_steps for evidence in by_replica.values()),
        costs=_averaged([evidence.costs for evidence in by_replica.values()]),
        notes=(*dict.fromkeys(shown), *steps),
    )


def _refuse_difference(first: str, one: ArmEvidence, second: str, other: ArmEvidence) -> None:
    mine, theirs = _decisive(one), _decisive(other)
    changed = sorted(key for key in mine.keys() | theirs.keys() if mine.get(key) != theirs.get(key))
    if changed:
        key = changed[0]
        raise EvidenceError(
            f"The replicas of arm {one.arm} do not run alike: {key} is {mine.get(key)} on {first} and "
            f"{theirs.get(key)} on {second}.",
            "Give every node the same software and settings, or keep the odd one out.",
        )


def _decisive(evidence: ArmEvidence) -> dict[str, str]:
    """What has to be the same wherever the arm runs."""
    graphs = {d.descriptor: f"shared {d.shared}, plan recorded {d.plan_recorded}" for d in evidence.descriptors}
    return {"engine": f"{evidence.engine} {evidence.engine_version}", **evidence.observed, **graphs}


def _steps(replica: str, evidence: ArmEvidence) -> str:
    return f"{replica}: {evidence.full_replays} full replays, {evidence.eager_steps} eager steps"


def _averaged(costs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for cost in costs for name in cost)
    return {name: fmean(cost[name] for cost in costs if name in cost) for name in names}
