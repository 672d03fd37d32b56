"""A comparison pairs what belongs together, counts what does not, and never scores infrastructure."""

from dataclasses import replace

import numpy as np
import pytest

from evalharness.compare import first_divergences
from evalharness.errors import PairingError, RecordError
from evalharness.policy import load_policy
from evalharness.records import Cause, Outcome
from tests.synthetic import answers, faulty_release, judge, lost, run_of

RNG = np.random.default_rng(0)
GOOD = (RNG.random(250) < 0.95).astype(int)


def single(**arms: object) -> dict[str, object]:
    return {"gsm8k_canary": arms}


def test_the_fault_is_told_from_the_fix() -> None:
    """Case 1: stock FAIL, patched better than stock and equal to eager."""
    found = judge(faulty_release())
    assert found.verdict.outcome is Outcome.PASS
    for task in found.tasks:
        stock, patched = task.score("stock"), task.score("patched")
        assert stock is not None
        assert patched is not None
        assert (stock.outcome, patched.outcome) == (Outcome.FAIL, Outcome.PASS)
        assert patched.agreement is not None
        assert (patched.agreement.tokens, patched.agreement.identical) == (1.0, 1.0)
        assert task.recovery[0].value == 1.0
        assert task.recovery[0].interval is not None
        better = task.contrast("patched", "stock")
        assert better is not None
        assert (better.p_better_holm or 1) < 1e-6


def test_metrics_are_named_for_how_they_were_measured() -> None:
    single_pass, repeated = judge(faulty_release()).tasks
    assert (single_pass.metric, single_pass.repeats, single_pass.documents) == ("exact_match", 1, 250)
    assert (repeated.metric, repeated.repeats, repeated.documents) == ("avg@4", 4, 30)
    stock = repeated.score("stock")
    assert stock is not None
    assert {metric.metric: metric.value for metric in stock.secondary} == {"pass@4": 0.0, "robust": 0.0}


def test_rows_are_paired_by_question_and_not_by_place() -> None:
    eager, patched = answers("eager", GOOD), answers("patched", GOOD)
    one = judge(single(eager=eager, patched=patched))
    other = judge(single(eager=eager[::-1], patched=[patched[i] for i in RNG.permutation(250)]))
    assert one == other


def test_unpaired_rows_are_counted_and_named() -> None:
    eager, patched = answers("eager", GOOD)[:-3], answers("patched", GOOD)[1:]
    (found,) = judge(single(eager=eager, patched=patched)).tasks[0].contrasts
    assert found.n == 246
    assert found.unpaired == {"eager": 1, "patched": 3}
    assert ("eager", 0, 0) in found.unpaired_examples
    assert ("patched", 249, 0) in found.unpaired_examples


def test_other_prompts_are_refused() -> None:
    """Case 29: another chat template makes another experiment."""
    other = [replace(s, prompt_hash="template") if s.doc_id == 7 else s for s in answers("patched", GOOD)]
    with pytest.raises(PairingError, match=r"1 prompts differ between eager and patched \(first: document 7\)"):
        judge(single(eager=answers("eager", GOOD), patched=other))


def test_a_question_answered_twice_is_refused() -> None:
    eager = answers("eager", GOOD)
    with pytest.raises(PairingError, match="Document 3, repeat 0 is answered twice"):
        judge(single(eager=[*eager, eager[3]], patched=answers("patched", GOOD)))


def test_answers_without_a_score_are_refused() -> None:
    with pytest.raises(RecordError, match="rescore"):
        judge(single(eager=[replace(s, scores={}) for s in answers("eager", GOOD)]))


def test_infrastructure_is_not_wrong() -> None:
    patched = [lost(s) if s.doc_id < 10 else s for s in answers("patched", np.ones(250))]
    task = judge(single(eager=answers("eager", np.ones(250)), patched=patched)).tasks[0]
    score = task.score("patched")
    assert score is not None
    assert (score.value, score.n, score.asked, score.errors, score.coverage) == (1.0, 240, 250, 10, 0.96)
    assert task.verdict.outcome is Outcome.ERROR
    assert "10 of 250 answers of patched were lost to infrastructure." in task.verdict.reasons


def test_an_arm_lost_altogether_has_no_accuracy() -> None:
    patched = [lost(s) for s in answers("patched", GOOD)]
    task = judge(single(eager=answers("eager", GOOD), patched=patched)).tasks[0]
    score = task.score("patched")
    assert score is not None
    assert (score.value, score.interval, score.n) == (None, None, 0)
    assert task.contrasts[0].difference is None
    assert task.verdict.outcome is Outcome.ERROR


def test_lost_points_are_attributed() -> None:
    causes = [Cause.WRONG, Cause.TRUNCATED, Cause.EMPTY, Cause.LOOP, Cause.NOT_EXTRACTED]
    eager = [
        replace(s, cause=causes[s.doc_id % 5]) if not s.scores["exact_match"] else s for s in answers("eager", GOOD)
    ]
    score = judge(single(eager=eager)).tasks[0].scores[0]
    assert score.value is not None
    assert sum(score.lost.values()) == pytest.approx(1 - score.value)
    assert set(score.lost) <= {cause.value for cause in causes}
    assert sum(score.causes.values()) == 250


@pytest.mark.parametrize("value", [0, 1])
def test_a_constant_arm_has_an_honest_interval(value: int) -> None:
    for repeats in (1, 4):
        arms = single(
            eager=answers("eager", np.full(120, value), repeats), stock=answers("stock", np.zeros(120), repeats)
        )
        interval = judge(arms).tasks[0].scores[0].interval
        assert interval is not None
        assert interval.low <= value <= interval.high
        assert interval.high - interval.low > 0.02


def test_token_agreement_and_first_divergence() -> None:
    stock = answers("stock", np.r_[np.ones(100), np.zeros(150)])
    task = judge(single(eager=answers("eager", np.ones(250)), stock=stock)).tasks[0]
    score = task.score("stock")
    assert score is not None
    assert score.agreement is not None
    assert score.agreement.first == (3, 3.0, 3)
    assert score.agreement.identical == pytest.approx(0.4)
    assert score.agreement.tokens == pytest.approx((100 * 5 + 150 * 3) / 1250)


def test_an_engine_without_token_ids_is_compared_by_text() -> None:
    arms = {arm: [replace(s, token_ids=()) for s in answers(arm, GOOD)] for arm in ("eager", "patched")}
    score = judge({"gsm8k_canary": arms}).tasks[0].score("patched")
    assert score is not None
    assert score.agreement is not None
    assert (score.agreement.tokens, score.agreement.identical) == (None, 1.0)


def test_flips_are_listed_both_ways() -> None:
    eager, patched = np.ones(250, int), np.ones(250, int)
    eager[4], patched[[10, 20]] = 0, 0
    (found,) = judge(single(eager=answers("eager", eager), patched=answers("patched", patched))).tasks[0].contrasts
    assert (found.gains, found.losses) == (1, 2)
    assert [(f.doc_id, f.baseline_score, f.score, f.first_divergence) for f in found.flips] == [
        (10, 1.0, 0.0, 3),
        (20, 1.0, 0.0, 3),
        (4, 0.0, 1.0, 3),
    ]


def test_two_files_of_one_benchmark_are_tested_in_pairs() -> None:
    """Cases 2 and 28: 0.942 falls to 0.043; the unpaired test is there for reference only."""
    rng = np.random.default_rng(1)
    base = (rng.random(1319) < 0.942).astype(int)
    run = run_of(["before", "after"], {"before": "native", "after": "native"})
    looping = [
        replace(s, cause=Cause.LOOP, flags=("loop",)) if not s.scores["exact_match"] else s
        for s in answers("after", base & (rng.random(1319) < 0.045), task="gsm8k")
    ]
    found = judge({"gsm8k": {"before": answers("before", base, task="gsm8k"), "after": looping}}, run=run)
    (contrast,) = found.tasks[0].contrasts
    assert found.verdict.outcome is Outcome.FAIL
    assert contrast.test == "exact McNemar"
    assert (contrast.p_worse or 1) < 1e-300 or contrast.p_worse == 0.0
    assert contrast.p_unpaired is not None
    assert contrast.losses > 1100
    assert any("loop, are empty or drift" in reason for reason in found.verdict.reasons)


def test_tasks_are_adjusted_together() -> None:
    rng = np.random.default_rng(2)
    tasks = {}
    for name in ("one", "two", "three"):
        base = rng.random(100) < 0.8
        tasks[name] = {
            "eager": answers("eager", base, task=name),
            "native": answers("native", base & (rng.random(100) < 0.95), task=name),
        }
    contrasts = [task.contrasts[0] for task in judge(tasks).tasks]
    raw = [c.p_worse or 0.0 for c in contrasts]
    adjusted = [c.p_worse_holm or 0.0 for c in contrasts]
    assert min(adjusted) == pytest.approx(min(1.0, 3 * min(raw)))
    assert all(a >= r for a, r in zip(adjusted, raw, strict=True))


def test_missing_arms_and_extra_arms_are_no_trouble() -> None:
    lone = judge(single(stock=answers("stock", GOOD), patched=answers("patched", GOOD)))
    assert lone.reference == "stock"
    extra = judge(single(eager=answers("eager", GOOD), native=answers("native", GOOD)))
    assert extra.verdict.outcome is Outcome.PASS
    assert judge({}).verdict.outcome is Outcome.ERROR


def test_other_extractors_are_shown_beside_the_primary_score() -> None:
    """Cases 5 and 10: the robust extractor reads 29 out of $29.00 where lm-eval's does not."""
    eager = [
        replace(s, scores={"exact_match": 0.0, "robust": 1.0}) if s.doc_id < 5 else s
        for s in answers("eager", np.ones(250))
    ]
    score = judge(single(eager=eager)).tasks[0].scores[0]
    assert score.disagreements == 5
    assert {metric.metric: metric.value for metric in score.secondary} == {"robust": 1.0}
    assert score.value == pytest.approx(245 / 250)


def test_the_same_samples_give_the_same_record() -> None:
    assert judge(faulty_release()) == judge(faulty_release())


def test_an_arm_that_was_stopped_early_is_judged_by_what_it_answered() -> None:
    """Answers beyond the complete beginning are dropped: short ones finish first."""
    samples = single(
        eager=answers("eager", np.ones(250)),
        native=[s for s in answers("native", np.zeros(60)) if s.doc_id not in {20, 21}],
    )
    run = run_of(["eager", "native"])
    stopped = replace(run, provenance={"early_stop": {"gsm8k_canary": {"native": {"documents": 20, "saved": 230}}}})
    allowing = load_policy().model_copy(update={"allow_early_stop": True})
    task = judge(samples, run=stopped, policy=allowing).tasks[0]
    score = task.score("native")
    assert score is not None
    assert (score.n, score.asked, score.coverage) == (20, 20, 1.0)
    assert task.contrasts[0].test == "anytime-valid betting"
    assert task.contrasts[0].p_worse == pytest.approx(0.0, abs=1e-4)
    assert task.verdict.outcome is Outcome.FAIL
    assert any("230 answers saved" in note for note in task.notes)
    refusing = judge(samples, run=stopped)
    assert refusing.verdict.outcome is Outcome.INCONCLUSIVE
    assert "does not allow" in " ".join(refusing.verdict.reasons)


def test_every_answer_knows_its_first_diverging_token() -> None:
    found = first_divergences(answers("stock", [1, 0, 0]), answers("eager", [1, 1]))
    assert list(found.values()) == [None, 3]


def test_a_second_estimator_stands_beside_the_first() -> None:
    for repeats, method in ((1, "Newcombe"), (4, "cluster t")):
        rng = np.random.default_rng(7)
        base = rng.random(400) < 0.9
        arms = single(
            eager=answers("eager", base, repeats), native=answers("native", base & (rng.random(400) < 0.9), repeats)
        )
        (found,) = judge(arms).tasks[0].contrasts
        assert found.interval is not None
        assert found.second_interval is not None
        assert found.second_interval.method == method
        assert found.second_interval.low == pytest.approx(found.interval.low, abs=0.01)
