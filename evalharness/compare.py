"""From two or more arms' answers to paired statistics and a verdict: pure functions, no input or output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from evalharness.policy import Policy
from evalharness.records import ArmEvidence, Comparison, Run, Sample
from evalharness.table import SampleTable

Samples = Mapping[str, Mapping[str, Sequence[Sample] | SampleTable]]


def compare(run: Run, samples: Samples, evidence: Mapping[str, ArmEvidence], policy: Policy) -> Comparison:
    """Pair the arms of `run` and judge them by `policy`.

    `samples` maps task -> arm -> answers, as Sample objects or columns; an arm that has none may be absent.

    Raises:
        PairingError: arms were asked different prompts, or an arm answers one question twice.
    """
    raise NotImplementedError
