"""Whether an arm proved that it ran the path it names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from evalharness.capture.paths import capture_path
from evalharness.records import ArmEvidence, ArmSummary

NO_GRAPHS: Final = "eager"
PATH: Final = "capture_path"
PLAN: Final = "tile_scheduler_metadata"  # the attribute that FlashMLA's first call fills


def evidence_faults(arm: ArmSummary, evidence: ArmEvidence | None, required: Sequence[str]) -> Iterator[str]:
    """What the evidence of `arm` lacks of the proofs `required`, in sentences."""
    if not required:
        return
    if evidence is None:
        yield f"Arm {arm.name} left no evidence of the path it ran."
        return
    if PATH not in evidence.requested and PATH not in evidence.observed:
        yield f"Arm {arm.name}: the engine {evidence.engine} cannot show the path it ran (policy endpoint: on trust)."
        return
    for proof in required:
        yield from PROOFS[proof](arm, evidence)


def _settings(arm: ArmSummary, evidence: ArmEvidence) -> Iterator[str]:
    for key in evidence.mismatches:
        observed = evidence.observed.get(key, "nothing")
        yield f"Arm {arm.name}: {key} {evidence.requested[key]} was requested, {observed} observed."


def _replays(arm: ArmSummary, evidence: ArmEvidence) -> Iterator[str]:
    if arm.capture == NO_GRAPHS and evidence.full_replays:
        yield f"Arm {arm.name} should run without graphs, but replayed {evidence.full_replays}."
    if arm.capture != NO_GRAPHS and not evidence.full_replays:
        yield f"Arm {arm.name} replayed no full graph: it did not run the path it names."


def _capture_state(arm: ArmSummary, evidence: ArmEvidence) -> Iterator[str]:
    path = capture_path(arm.capture)
    if path is None or path.shares_state is None:
        return
    if not evidence.descriptors:
        yield f"Arm {arm.name} shows no captured graph."
    wrong = [d.descriptor for d in evidence.descriptors if d.shared is not path.shares_state]
    if wrong:
        kind = "shared" if path.shares_state else "fresh"
        yield f"Arm {arm.name}: {len(wrong)} of {len(evidence.descriptors)} graphs lack a {kind} state ({wrong[0]})."
    if not path.shares_state:
        yield from _plans(arm, evidence)


def _plans(arm: ArmSummary, evidence: ArmEvidence) -> Iterator[str]:
    """A plan made in the warm-up call has to be made in the graph again; one made by the metadata builder has not."""
    lazy = [d for d in evidence.descriptors if any(PLAN in change for change in d.changed)]
    lacking = [d.descriptor for d in lazy if d.plan_recorded is False]
    if lacking:
        yield f"Arm {arm.name}: {len(lacking)} of {len(lazy)} graphs lack the planning kernel ({lacking[0]})."


PROOFS: Final[dict[str, Callable[[ArmSummary, ArmEvidence], Iterator[str]]]] = {
    "settings": _settings,
    "replays": _replays,
    "capture_state": _capture_state,
}
