"""Last night's run against tonight's: every arm is held against its namesake, and nothing is written."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evalharness.compare.across import RunPair, Side, compare_runs
from evalharness.errors import PairingError
from evalharness.policy import load_policy
from evalharness.records import ArmState, Outcome, Sample
from tests.stored_runs import stored_run
from tests.synthetic import answers, lost, proof, run_of

RNG = np.random.default_rng(3)
GOOD = RNG.random(250) < 0.95
TASK = "gsm8k_canary"


def side(arms: Mapping[str, list[Sample]], task: str = TASK, **spec: Any) -> Side:
    return Side(run_of(list(arms), **spec), {task: dict(arms)}, {arm: proof(arm) for arm in arms})


def night(scores: np.ndarray = GOOD, arms: tuple[str, ...] = ("eager", "patched"), **spec: Any) -> Side:
    return side({arm: answers(arm, scores) for arm in arms}, **spec)


def compared(first: Side, second: Side) -> RunPair:
    return compare_runs(first, second, load_policy())


def test_an_arm_that_holds_shows_no_regression() -> None:
    found = compared(night(), night())
    assert found.outcome is Outcome.PASS
    assert list(found.arms) == ["eager", "patched"]
    verdict = found.arms["patched"].verdict
    assert "no regression: yes. second 0.9" in verdict.reasons[0]
    assert found.notes == ()


def test_an_arm_that_lost_accuracy_fails_and_the_others_do_not() -> None:
    after = side({"eager": answers("eager", GOOD), "patched": answers("patched", GOOD & (RNG.random(250) < 0.8))})
    found = compared(night(), after)
    outcomes = {arm: one.verdict.outcome for arm, one in found.arms.items()}
    assert outcomes == {"eager": Outcome.PASS, "patched": Outcome.FAIL}
    assert found.outcome is Outcome.FAIL
    contrast = found.arms["patched"].tasks[0].contrast("second", "first")
    assert contrast is not None
    assert contrast.losses > 20
    assert contrast.test == "exact McNemar"


def test_a_broken_arm_that_is_as_broken_as_before_is_no_regression() -> None:
    """Even where its loops fill the token limit: that is how the fault looks."""
    broken = answers("stock", np.zeros(250), finish_reason="length")
    found = compared(side({"stock": broken}), side({"stock": broken}))
    assert found.outcome is Outcome.PASS


def test_arms_and_tasks_of_one_run_alone_are_named() -> None:
    found = compared(night(arms=("eager", "stock")), night(arms=("eager", "native")))
    assert list(found.arms) == ["eager"]
    assert "Only the first run has arm stock: not compared." in found.notes
    assert "Only the second run has arm native: not compared." in found.notes


def test_runs_without_anything_in_common_are_refused() -> None:
    with pytest.raises(PairingError, match="share no arm: eager against patched"):
        compared(night(arms=("eager",)), night(arms=("patched",)))
    with pytest.raises(PairingError, match="share no task"):
        compared(night(), side({"eager": answers("eager", GOOD, task="other")}, "other"))
    elsewhere = [replace(s, doc_hash=f"x{s.doc_hash}") for s in answers("eager", GOOD)]
    with pytest.raises(PairingError, match="share no question"):
        compared(night(), side({"eager": elsewhere}))


def test_other_prompts_are_refused() -> None:
    other = [replace(s, prompt_hash="another template") for s in answers("eager", GOOD)]
    with pytest.raises(PairingError, match="250 prompts differ between first and second"):
        compared(night(), side({"eager": other}))


def test_only_the_questions_of_both_runs_count() -> None:
    """A shorter run is complete in itself; what only the longer one asked is left out in words."""
    found = compared(night(), night(GOOD[:100]))
    task = found.arms["eager"].tasks[0]
    assert [(score.n, score.asked) for score in task.scores] == [(100, 100), (100, 100)]
    assert f"{TASK}: 150 questions were asked only in the first run; they are left out." in found.notes


def test_an_arm_that_skipped_a_question_of_its_run_is_incomplete() -> None:
    after = side({"eager": answers("eager", GOOD), "patched": answers("patched", GOOD)[:-40]})
    found = compared(night(), after)
    assert found.arms["eager"].verdict.outcome is Outcome.PASS
    assert found.arms["patched"].verdict.reasons == (f"{TASK}: 40 of 250 questions were not answered by second.",)


def test_lost_answers_and_failed_arms_are_infrastructure() -> None:
    gone = [lost(s) if s.doc_id < 9 else s for s in answers("eager", GOOD)]
    assert compared(night(arms=("eager",)), side({"eager": gone})).outcome is Outcome.ERROR
    after = night(arms=("eager",))
    failed = tuple(replace(arm, state=ArmState.FAILED, message="out of memory") for arm in after.run.arms)
    broken = replace(after, run=replace(after.run, arms=failed), samples={TASK: {}})
    found = compared(night(), broken)
    assert found.outcome is Outcome.ERROR
    assert "Arm second: out of memory" in found.arms["eager"].verdict.reasons


def test_an_arm_without_proof_is_invalid() -> None:
    assert compared(night(), replace(night(), evidence={})).outcome is Outcome.INVALID


def test_what_else_changed_between_the_runs_is_told() -> None:
    first, second = night(), night(engine={"kind": "vllm", "model": "canary-v3"})
    one = replace(first.run, provenance={"packages": {"vllm": "0.21.0"}}, identity={"seed": "1"})
    two = replace(second.run, provenance={"packages": {"vllm": "0.22.1"}}, identity={"seed": "2"})
    found = compared(replace(first, run=one), replace(second, run=two))
    assert found.arms["eager"].engine == "emulated / vllm"
    assert found.notes == (
        "The runs are of different engines, emulated and vllm: a difference may be the engine's.",
        "Not the same in both runs: seed.",
        "Packages changed: vllm 0.21.0 to 0.22.1.",
    )


def test_an_arm_that_ended_early_is_judged_by_its_beginning() -> None:
    after = side({"eager": answers("eager", GOOD), "patched": answers("patched", np.zeros(40))})
    stops = {TASK: {"patched": {"documents": 30, "saved": 210}}}
    stopped = replace(after, run=replace(after.run, provenance={"early_stop": stops}))
    allowing = load_policy().model_copy(update={"allow_early_stop": True})
    task = compare_runs(night(), stopped, allowing).arms["patched"].tasks[0]
    assert [(score.n, score.asked) for score in task.scores] == [(250, 250), (30, 30)]
    assert task.contrasts[0].test == "anytime-valid betting"
    assert task.verdict.outcome is Outcome.FAIL


def test_stored_runs_are_compared_and_left_as_they_were(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from evalharness.commands.runs import compare_pair

    sizes = {TASK: (250, 1), "aime25_canary": (30, 4)}
    first = stored_run(tmp_path, sizes).path
    second = stored_run(tmp_path, sizes, accuracy={"eager": 0.97, "stock": 0.05, "patched": 0.7}).path
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert compare_pair(str(first), str(second), tmp_path) == 1
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    shown = capsys.readouterr().out
    assert f"first:  {first.name}" in shown
    assert shown.rstrip().endswith("patched      FAIL")
    assert "eager        PASS no regression" in shown
