"""The three questions, what blocks them, and the words of the verdict."""

from dataclasses import replace

import numpy as np
import pytest

from evalharness.evidence import evidence_faults
from evalharness.policy import load_policy
from evalharness.records import (
    Answer,
    ArmState,
    ArmSummary,
    Cause,
    Comparison,
    DescriptorEvidence,
    Outcome,
    TaskComparison,
)
from tests.synthetic import answers, faulty_release, judge, proof, run_of

LAZY = "FlashMLASchedMeta.tile_scheduler_metadata at layers.0.decode.scheduler_metadata"
ARMS = ("eager", "stock", "patched")
GOOD = (np.random.default_rng(0).random(250) < 0.95).astype(int)
BROKEN = GOOD & (np.random.default_rng(1).random(250) < 0.1)


def one_task(task: str = "gsm8k_canary", **arms: object) -> dict[str, dict[str, object]]:
    return {task: arms}


def release(patched: np.ndarray = GOOD, stock: np.ndarray = BROKEN) -> dict[str, dict[str, object]]:
    scores = {"eager": GOOD, "stock": stock, "patched": patched}
    return one_task(**{arm: answers(arm, right) for arm, right in scores.items()})


def question(task: TaskComparison, name: str) -> Answer:
    return next(q.answer for q in task.verdict.questions if q.name == name)


def reasons(found: Comparison) -> str:
    return " ".join(found.verdict.reasons)


def without(right: np.ndarray, count: int) -> np.ndarray:
    """`right` with `count` of its right answers lost."""
    worse = right.copy()
    worse[np.flatnonzero(right)[:count]] = 0
    return worse


def test_a_fault_that_does_not_show_leaves_the_fix_untested() -> None:
    found = judge(release(stock=GOOD))
    assert found.verdict.outcome is Outcome.INVALID
    assert question(found.tasks[0], "reproduced") is Answer.NO
    assert "the fix was not tested" in reasons(found)


def test_a_fix_that_recovers_half_fails() -> None:
    found = judge(release(patched=without(GOOD, 120)))
    assert found.verdict.outcome is Outcome.FAIL
    assert question(found.tasks[0], "reproduced") is Answer.YES
    assert question(found.tasks[0], "recovered") is Answer.NO


def test_a_fix_that_recovers_nothing_fails() -> None:
    assert judge(release(patched=BROKEN)).verdict.outcome is Outcome.FAIL


def test_a_small_loss_inside_the_margin_passes() -> None:
    found = judge(release(patched=without(GOOD, 3)))
    assert found.verdict.outcome is Outcome.PASS


def test_neither_shown_worse_nor_shown_equal_is_inconclusive() -> None:
    noisy = GOOD.copy()
    noisy[:24] = 1 - noisy[:24]
    noisy[24:40] = 1
    task = judge(one_task(eager=answers("eager", GOOD), native=answers("native", noisy))).tasks[0]
    unsure = judge(one_task(eager=answers("eager", GOOD[:60]), native=answers("native", without(GOOD[:60], 3))))
    assert task.verdict.outcome is Outcome.FAIL
    assert unsure.verdict.outcome is Outcome.INCONCLUSIVE
    assert "too few samples to rule out a loss" in reasons(unsure)


def test_without_a_stock_arm_the_question_is_no_regression() -> None:
    sound = judge(one_task(eager=answers("eager", GOOD), native=answers("native", GOOD)))
    assert sound.verdict.outcome is Outcome.PASS
    assert [q.name for q in sound.tasks[0].verdict.questions] == ["no_regression"]
    broken = judge(one_task(eager=answers("eager", GOOD), native=answers("native", BROKEN)))
    assert broken.verdict.outcome is Outcome.FAIL


def test_without_an_eager_arm_stock_is_no_standard() -> None:
    """Patched is shown better than stock; whether it is sound is open, however short its answers are beside loops."""
    looping = answers("stock", BROKEN, output_tokens=500)
    found = judge(one_task(stock=looping, patched=answers("patched", GOOD)))
    assert found.verdict.outcome is Outcome.INCONCLUSIVE
    assert "patched is better than stock" in reasons(found)
    assert "No eager arm ran" in reasons(found)
    assert found.tasks[0].scores[1].outcome is Outcome.INCONCLUSIVE


def test_a_stock_arm_alone_beside_eager_shows_the_fault_only() -> None:
    found = judge(one_task(eager=answers("eager", GOOD), stock=answers("stock", BROKEN)))
    assert found.verdict.outcome is Outcome.INCONCLUSIVE
    assert question(found.tasks[0], "reproduced") is Answer.YES
    assert "No patched arm ran" in reasons(found)


def test_a_single_arm_answers_nothing() -> None:
    found = judge(one_task(eager=answers("eager", GOOD)))
    assert found.verdict.outcome is Outcome.INCONCLUSIVE
    assert "Only one arm ran" in reasons(found)


# --- evidence --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arm", "changes", "words"),
    [
        ("patched", {"observed": {"runner": "v1", "capture_path": "patched"}}, "runner v2 was requested, v1 observed"),
        ("patched", {"observed": {}}, "nothing observed"),
        ("stock", {"full_replays": 0}, "stock replayed no full graph"),
        ("eager", {"full_replays": 7}, "eager should run without graphs, but replayed 7"),
        ("stock", {"descriptors": (DescriptorEvidence("FULL 8", 8, False),)}, "1 of 1 graphs lack a shared state"),
        ("patched", {"descriptors": (DescriptorEvidence("FULL 8", 8, True),)}, "1 of 1 graphs lack a fresh state"),
        ("patched", {"descriptors": (DescriptorEvidence("FULL 8", 8, None),)}, "lack a fresh state"),
        ("stock", {"descriptors": ()}, "stock shows no captured graph"),
        (
            "patched",
            {"descriptors": (DescriptorEvidence("FULL 8", 8, False, (LAZY,), False),)},
            "patched: 1 of 1 graphs lack the planning kernel",
        ),
    ],
)
def test_an_arm_that_does_not_prove_its_path_is_invalid(arm: str, changes: dict[str, object], words: str) -> None:
    evidence = {name: proof(name, **(changes if name == arm else {})) for name in ARMS}
    found = judge(release(), evidence)
    assert found.verdict.outcome is Outcome.INVALID
    assert words in reasons(found)


def test_a_plan_that_the_metadata_builder_makes_need_not_be_in_the_graph() -> None:
    early = (DescriptorEvidence("FULL 8", 8, False, (), plan_recorded=False),)
    evidence = {name: proof(name, **({"descriptors": early} if name == "patched" else {})) for name in ARMS}
    assert judge(release(), evidence).verdict.outcome is Outcome.PASS


def test_a_confined_arm_has_to_show_its_shared_state() -> None:
    arm = ArmSummary("stock#c4a", "stock:tile_sched_c4a", ArmState.DONE)
    fresh = replace(proof("stock"), arm=arm.name, descriptors=(DescriptorEvidence("FULL 8", 8, False),))
    assert any("lack a shared state" in fault for fault in evidence_faults(arm, fresh, ("capture_state",)))


def test_missing_evidence_is_invalid_unless_the_policy_asks_for_none() -> None:
    found = judge(release(), {name: proof(name) for name in ("eager", "stock")})
    assert found.verdict.outcome is Outcome.INVALID
    assert "Arm patched left no evidence" in reasons(found)
    trusting = judge(release(), {}, load_policy("endpoint"))
    assert trusting.verdict.outcome is Outcome.PASS
    assert "taken on trust" in trusting.notes[0]


@pytest.mark.parametrize("state", [ArmState.PENDING, ArmState.RUNNING])
def test_an_unfinished_arm_is_not_accused_of_another_path(state: ArmState) -> None:
    run = run_of(ARMS)
    arms = tuple(replace(arm, state=state) if arm.name == "patched" else arm for arm in run.arms)
    evidence = {"eager": proof("eager"), "stock": proof("stock"), "patched": proof("patched", full_replays=0)}
    found = judge(release(), evidence, run=replace(run, arms=arms))
    assert found.verdict.outcome is Outcome.INCONCLUSIVE
    assert reasons(found) == "gsm8k_canary: Arm patched has not finished; resume the run."


# --- infrastructure and coverage -------------------------------------------------------------------------


def test_a_failed_arm_is_an_error_with_its_message() -> None:
    arms = tuple(
        ArmSummary(a, a, ArmState.FAILED if a == "stock" else ArmState.DONE, message="out of memory") for a in ARMS
    )
    samples = release()
    del samples["gsm8k_canary"]["stock"]
    found = judge(samples, {a: proof(a) for a in ARMS}, run=replace(run_of(ARMS), arms=arms))
    assert found.verdict.outcome is Outcome.ERROR
    assert "Arm stock failed: out of memory." in reasons(found)


def test_an_unfinished_arm_is_inconclusive() -> None:
    samples = release()
    samples["gsm8k_canary"]["patched"] = samples["gsm8k_canary"]["patched"][:100]  # type: ignore[index]
    found = judge(samples)
    assert found.verdict.outcome is Outcome.INCONCLUSIVE
    assert "150 of 250 questions were not answered by patched." in reasons(found)


def test_answers_cut_at_the_limit_in_eager_decide_nothing() -> None:
    """Case 9: the limit is too low; that is no statement about the model."""
    right = np.r_[np.ones(14), np.zeros(16)]
    eager = [
        replace(s, finish_reason="length", cause=Cause.TRUNCATED) if not s.scores["exact_match"] else s
        for s in answers("eager", right, task="aime25")
    ]
    found = judge(one_task("aime25", eager=eager))
    assert found.verdict.outcome is Outcome.INCONCLUSIVE
    assert "16 of 30 hit token cap" in reasons(found)


def test_a_stock_arm_that_loops_to_the_limit_is_the_fault_and_not_a_cap() -> None:
    samples = release()
    samples["gsm8k_canary"]["stock"] = [
        replace(s, finish_reason="length", cause=Cause.LOOP, flags=("loop",)) if not s.scores["exact_match"] else s
        for s in answers("stock", BROKEN)
    ]
    assert judge(samples).verdict.outcome is Outcome.PASS


# --- noise floor -----------------------------------------------------------------------------------------


def test_a_loss_inside_the_noise_of_two_eager_runs_is_inconclusive() -> None:
    """Case 30: greedy answers differ between two runs of one arm; that is measured, not called a regression."""
    rng = np.random.default_rng(5)
    noisy = np.where(rng.random(250) < 0.2, 1 - GOOD, GOOD)
    arms = {"eager": GOOD, "native": without(GOOD, 22)}
    alone = judge(one_task(**{arm: answers(arm, right) for arm, right in arms.items()}))
    paired = judge(one_task(**{arm: answers(arm, right) for arm, right in {**arms, "eager#2": noisy}.items()}))
    assert alone.verdict.outcome is Outcome.FAIL
    assert paired.verdict.outcome is Outcome.INCONCLUSIVE
    assert "lies inside the A/A noise" in reasons(paired)
    assert paired.tasks[0].noise[0].flips == int((noisy != GOOD).sum())


def test_two_runs_that_agree_have_no_noise() -> None:
    arms = {arm: answers(arm, GOOD) for arm in ("eager", "eager#2", "native")}
    noise = judge(one_task(**arms)).tasks[0].noise[0]
    assert (noise.floor, noise.flips, noise.identical) == (0.0, 0, 1.0)


# --- length and degeneration -----------------------------------------------------------------------------


def test_answers_of_another_length_fail_though_they_score_alike() -> None:
    longer = answers("native", GOOD, output_tokens=9)
    found = judge(one_task(eager=answers("eager", GOOD), native=longer))
    assert found.verdict.outcome is Outcome.FAIL
    assert "native writes 1.80 times the tokens of eager (allowed 0.9-1.1)" in reasons(found)


def test_a_length_that_chance_explains_is_inconclusive() -> None:
    rng = np.random.default_rng(6)
    native = [
        replace(s, output_tokens=int(t)) for s, t in zip(answers("native", GOOD), rng.geometric(0.17, 250), strict=True)
    ]
    found = judge(one_task(eager=answers("eager", GOOD), native=native))
    score = found.tasks[0].score("native")
    assert score is not None
    assert score.length_ratio is not None
    assert score.length_ratio > 1.1
    assert found.verdict.outcome is Outcome.INCONCLUSIVE


def test_degenerate_answers_fail_though_they_score_alike() -> None:
    drifting = [replace(s, flags=("alphabet_drift",)) if s.doc_id < 25 else s for s in answers("native", GOOD)]
    found = judge(one_task(eager=answers("eager", GOOD), native=drifting))
    assert found.verdict.outcome is Outcome.FAIL
    assert "25 of 250 answers loop, are empty or drift" in reasons(found)


# --- policies and n --------------------------------------------------------------------------------------


def test_a_margin_for_another_n_is_widened_in_words() -> None:
    """Case 25: the margin for 1319 documents is used with 50."""
    right = GOOD[:50]
    task = judge(one_task("gsm8k", eager=answers("eager", right), native=answers("native", right))).tasks[0]
    assert any("widened from 0.020 to 0.103: calibrated for 1319, 50 ran" in note for note in task.notes)
    assert task.rates is not None
    assert 0 <= task.rates.false_alarm <= 0.05
    assert task.rates.documents == 50


def test_a_margin_for_another_n_is_refused_where_widening_would_mean_nothing() -> None:
    right = GOOD[:10]
    found = judge(one_task("gsm8k", eager=answers("eager", right), native=answers("native", right)))
    assert found.verdict.outcome is Outcome.INCONCLUSIVE
    assert "refused" in reasons(found)
    assert found.tasks[0].rates is not None
    assert found.tasks[0].rates.withheld > 0.9


def test_the_margin_of_the_calibrated_n_holds_as_it_is() -> None:
    task = load_policy().task("gsm8k")
    assert task.margin_for(1319, 1) == (0.02, "")
    assert task.margin_for(5000, 4) == (0.02, "")
    refusing = task.model_copy(update={"other_n": "refuse"})
    assert refusing.margin_for(1318, 1)[0] is None


# --- as published ----------------------------------------------------------------------------------------


def published(eager: float, **spec: object) -> Comparison:
    figures = {"gsm8k_canary": {"source": "s", "model": "m", "arms": {"eager": eager}}}
    return judge(release(), published=figures, **spec)


def test_published_figures_are_only_quoted_unless_asked_for() -> None:
    found = published(0.2)
    assert found.verdict.outcome is Outcome.PASS
    assert "gsm8k_canary" in found.published
    assert not found.tasks[0].published


def test_a_published_figure_outside_the_interval_fails_where_it_is_asked_for() -> None:
    contradicted, agreed = published(0.8, check_published=True), published(0.95, check_published=True)
    assert contradicted.verdict.outcome is Outcome.FAIL
    assert "contradicts the published 0.800" in reasons(contradicted)
    assert agreed.verdict.outcome is Outcome.PASS
    assert not agreed.published


def test_a_published_figure_no_single_pass_can_score_is_pointed_out() -> None:
    figures = {"aime25": {"source": "s", "model": "m", "arms": {"eager": 0.942}}}
    arms = {arm: answers(arm, np.ones(30), task="aime25") for arm in ("eager", "native")}
    task = judge(one_task("aime25", **arms), published=figures, check_published=True).tasks[0]
    assert any("fits 113/120, 226/240" in note for note in task.notes)


# --- the run ---------------------------------------------------------------------------------------------


def test_the_run_is_as_bad_as_its_worst_task() -> None:
    samples = faulty_release()
    samples["aime25_canary"]["patched"] = answers("patched", np.zeros(120), 4, "aime25_canary")
    found = judge(samples)
    assert [task.verdict.outcome for task in found.tasks] == [Outcome.PASS, Outcome.FAIL]
    assert found.verdict.outcome is Outcome.FAIL
    assert all(reason.startswith("aime25_canary: ") for reason in found.verdict.reasons)


@pytest.mark.parametrize(
    ("outcome", "code"), [("PASS", 0), ("FAIL", 1), ("INCONCLUSIVE", 3), ("INVALID", 4), ("ERROR", 5)]
)
def test_exit_codes(outcome: str, code: int) -> None:
    assert Outcome(outcome).exit_code == code


def test_a_run_whose_arms_all_fell_back_is_invalid_not_an_error() -> None:
    run = run_of(["eager", "stock"])
    said = "Arm stock: runner is V1, not V2."
    fell_back = replace(run.arms[1], state=ArmState.INVALID, message=said)
    found = judge({}, run=replace(run, arms=(fell_back,)))
    assert found.verdict.outcome is Outcome.INVALID
    assert reasons(found).count("Arm stock") == 1
    lost = replace(run.arms[0], state=ArmState.FAILED, message="The engine ended.")
    assert judge({}, run=replace(run, arms=(lost, fell_back))).verdict.outcome is Outcome.ERROR
