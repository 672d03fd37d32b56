"""The audit's verdict, from evidence and answers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from evalharness.capture.audit import agreement, judge, render
from evalharness.records import ArmEvidence, DescriptorEvidence, Outcome

LEAK = "FlashMLASchedMeta.tile_scheduler_metadata at layer0.decode.scheduler_metadata"
RIGHT = [[1, 2, 3, 4], [5, 6, 7, 8]]
WRONG = [[1, 9, 9, 9], [5, 9, 9, 9]]


def proof(arm: str, path: str, *, replays: int = 9, changed: tuple[str, ...] = (LEAK,)) -> ArmEvidence:
    settings = {"capture_path": path, "attention_backend": "FLASHMLA"}
    rows = tuple(DescriptorEvidence(f"FULL/{n}", n, path == "stock", changed) for n in (4, 2))
    return ArmEvidence(arm, "vllm", "0.22.1", settings, settings, rows, full_replays=replays)


def audit(native: ArmEvidence, answers: list[list[int]]) -> tuple[Outcome, str]:
    evidence = {"eager": proof("eager", "none"), "native": native, "stock": proof("stock", "stock")}
    report = judge("canary-v3", evidence, {"eager": RIGHT, "native": answers, "stock": WRONG})
    assert [path.arm for path in report.paths] == ["native", "stock"]
    assert report.verdict in render(report)
    return report.outcome, report.verdict


def test_a_build_with_fresh_state_and_equal_replays_is_isolated() -> None:
    assert audit(proof("native", "patched"), RIGHT) == (Outcome.PASS, "capture state is isolated")


@pytest.mark.parametrize("answers", [RIGHT, WRONG])
def test_a_build_that_shares_changed_state_leaks_whatever_it_answers(answers: list[list[int]]) -> None:
    outcome, verdict = audit(proof("native", "stock"), answers)
    assert outcome is Outcome.FAIL
    assert LEAK in verdict


def test_a_shared_state_that_nothing_changes_is_no_leak() -> None:
    assert audit(proof("native", "stock", changed=()), RIGHT)[0] is Outcome.PASS


def test_isolated_state_with_other_answers_is_not_called_safe() -> None:
    outcome, verdict = audit(proof("native", "patched"), WRONG)
    assert outcome is Outcome.INCONCLUSIVE
    assert "25%" in verdict


def test_graphs_whose_state_was_not_seen_prove_nothing() -> None:
    unseen = (DescriptorEvidence("FULL/4", 4, None), DescriptorEvidence("FULL/2", 2, False))
    outcome, verdict = audit(replace(proof("native", "mixed"), descriptors=unseen), RIGHT)
    assert outcome is Outcome.INVALID
    assert "1 of 2" in verdict
    assert audit(replace(proof("native", "none"), descriptors=()), RIGHT)[0] is Outcome.INVALID


def test_without_a_replay_nothing_was_audited() -> None:
    assert audit(proof("native", "patched", replays=0), RIGHT)[0] is Outcome.INVALID


def test_agreement_counts_missing_tokens_as_different() -> None:
    assert agreement([[1, 2]], [[1, 2, 3, 4]]) == 0.5
    assert agreement([[]], [[]]) == 1.0
