"""Every gate's false alarms over 2000 simulated runs lie within the binomial error of its level.

A rate below the level is allowed only as far as the test is known to be conservative: where the size can be
computed exactly, the simulation must meet that size on both sides.
"""

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import binom

from evalharness.compare import compare
from evalharness.compare.arms import ArmColumns, against, arm_score, pair
from evalharness.compare.contrasts import noise_floor
from evalharness.policy import load_policy
from evalharness.records import Cause, GateRates, Outcome
from evalharness.stats.clusters import PairedScores, accuracy_interval, difference_interval, non_inferiority
from evalharness.stats.significance import holm, mcnemar, sign_flip
from evalharness.table import CAUSES, STRIDE, SampleTable, Tokens, digest
from tests.synthetic import run_of

RUNS = 2_000
ALPHA = 0.05
Pair = tuple[np.ndarray, np.ndarray]


def error(rate: float) -> float:
    """Three binomial standard errors of a rate over RUNS runs."""
    return 3 * float(np.sqrt(rate * (1 - rate) / RUNS))


def equal_arms(rng: np.random.Generator, shape: tuple[int, ...], noise: float = 0.1) -> Pair:
    """Two arms of one accuracy; each flips a right answer of the other with half of `noise`."""
    base = rng.random(shape) < 0.8
    flipped = rng.random(shape) < noise
    arm = np.where(flipped, rng.random(shape) < 0.5, base)
    base = np.where(flipped, rng.random(shape) < 0.5, base)
    return arm.astype(float), base.astype(float)


def columns(score: np.ndarray, repeats: int = 1, **changes: np.ndarray) -> SampleTable:
    """A table of answers of one token each."""
    n = len(score)
    document, repeat = np.divmod(np.arange(n), repeats)
    cause = np.where(score == 1, CAUSES.index(Cause.CORRECT), CAUSES.index(Cause.WRONG)).astype(np.int8)
    made = {
        "doc_id": document,
        "repeat": repeat,
        "doc_hash": document.astype("S8"),
        "prompt": digest(document.astype("S8")),
        "scores": {"exact_match": score},
        "cause": cause,
        "capped": np.zeros(n, np.bool_),
        "degenerate": np.zeros(n, np.bool_),
        "output_tokens": np.full(n, 10),
        "seconds": np.ones(n),
        "text": score.astype(np.uint64),
        "tokens": Tokens(np.zeros(n + STRIDE, np.int32), np.arange(n), np.ones(n, np.int64)),
    }
    return SampleTable.from_columns(**{**made, **changes})


# --- the tests one by one --------------------------------------------------------------------------------


def test_mcnemar_at_its_exact_size() -> None:
    """With d discordant pairs the exact size is the largest binomial tail below the level."""
    rng = np.random.default_rng(0)
    n, noise = 250, 0.2
    flips = rng.binomial(n, noise, RUNS)
    losses = rng.binomial(flips, 0.5)
    rate = np.mean([mcnemar(int(f - c), int(c)).p_worse <= ALPHA for f, c in zip(flips, losses, strict=True)])
    d = np.arange(n + 1)
    critical = np.array([np.flatnonzero(binom.sf(np.arange(k + 2) - 1, k, 0.5) <= ALPHA)[0] for k in d])
    exact = float((binom.pmf(d, n, noise) * binom.sf(critical - 1, d, 0.5)).sum())
    assert exact <= ALPHA
    assert rate == pytest.approx(exact, abs=error(exact))


def test_sign_flips_of_thirty_documents() -> None:
    rng = np.random.default_rng(1)
    arm, base = equal_arms(rng, (RUNS, 30, 4), noise=0.4)
    rate = np.mean([sign_flip(d, 0).p_worse <= ALPHA for d in (arm - base).sum(axis=2)])
    assert 0.02 < rate <= ALPHA + error(ALPHA)


def lose_anywhere(rng: np.random.Generator, loss: float, shape: tuple[int, int]) -> Pair:
    """Answers flip independently; the arm loses `loss` on balance."""
    draw = rng.random(shape)
    change = np.where(draw < 0.02, 1.0, np.where(draw < 0.04 + loss, -1.0, 0.0))
    base = np.where(change == 0, (rng.random(shape) < 0.95).astype(float), (change < 0).astype(float))
    return base + change, base


def lose_documents(rng: np.random.Generator, loss: float, shape: tuple[int, int]) -> Pair:
    """All answers of a few documents are lost together: the hardest case for a variance estimate."""
    hit = np.repeat(rng.random((shape[0], 1)) < loss, shape[1], axis=1)
    return 1.0 - hit, np.ones(shape)


def lose_evenly(rng: np.random.Generator, loss: float, shape: tuple[int, int]) -> Pair:
    """Every document has its own chance, and the arm a share less of it."""
    chance = rng.beta(2, 1, (shape[0], 1))
    arm = rng.random(shape) < chance * (1 - 1.5 * loss)
    return arm.astype(float), (rng.random(shape) < chance).astype(float)


@pytest.mark.parametrize("lose", [lose_anywhere, lose_documents, lose_evenly])
@pytest.mark.parametrize(("documents", "repeats", "margin"), [(250, 1, 0.05), (30, 4, 0.10)])
def test_a_loss_of_the_margin_passes_as_non_inferior_at_the_level(
    lose: Callable[..., Pair], documents: int, repeats: int, margin: float
) -> None:
    rng = np.random.default_rng(2)
    starts = np.arange(0, documents * repeats, repeats)
    shown = 0
    for _ in range(RUNS):
        arm, base = lose(rng, margin, (documents, repeats))
        shown += non_inferiority(PairedScores(arm.ravel(), base.ravel(), starts), margin) <= ALPHA
    assert 0.01 < shown / RUNS <= ALPHA + error(ALPHA)


def test_holm_keeps_the_level_over_the_tasks_together() -> None:
    rng = np.random.default_rng(3)
    flips = rng.binomial(1319, 0.1, (RUNS, 3))
    losses = rng.binomial(flips, 0.5)
    runs = zip((flips - losses).tolist(), losses.tolist(), strict=True)
    adjusted = [holm([mcnemar(b, c).p_worse for b, c in zip(*run, strict=True)]) for run in runs]
    rate = np.mean([min(p for p in row if p is not None) <= ALPHA for row in adjusted])
    assert 0.02 < rate <= ALPHA + error(ALPHA)


@pytest.mark.parametrize("repeats", [1, 4])
def test_accuracy_intervals_cover(repeats: int) -> None:
    """Documents of their own difficulty, asked once or four times."""
    rng = np.random.default_rng(4)
    documents = 250 if repeats == 1 else 30
    starts = np.arange(0, documents * repeats, repeats)
    missed = 0
    for _ in range(RUNS):
        chance = rng.beta(4, 1, (documents, 1))
        scores = (rng.random((documents, repeats)) < chance).astype(float)
        interval = accuracy_interval(scores.ravel(), starts, 0.95)
        missed += not interval.low <= 0.8 <= interval.high
    assert missed / RUNS <= 0.05 + error(0.05)
    assert missed / RUNS > 0.01


@pytest.mark.parametrize("repeats", [1, 4])
def test_difference_intervals_cover(repeats: int) -> None:
    rng = np.random.default_rng(5)
    documents = 250 if repeats == 1 else 30
    starts = np.arange(0, documents * repeats, repeats)
    missed = 0
    for _ in range(RUNS):
        arm, base = lose_evenly(rng, 0.1, (documents, repeats))
        interval = difference_interval(PairedScores(arm.ravel(), base.ravel(), starts), 0.95)
        missed += not interval.low <= -0.1 <= interval.high
    assert 0.01 < missed / RUNS <= 0.05 + error(0.05)


def test_an_arm_at_the_edge_of_the_length_band_fails_at_the_level() -> None:
    """True mean length 1.1 times the reference: surely outside at most at the level."""
    rng = np.random.default_rng(6)
    failed = 0
    for _ in range(RUNS):
        score = np.ones(100)
        base = rng.gamma(4, 25, 100)
        longer = base * rng.gamma(16, 1.1 / 16, 100)
        arm = ArmColumns.of("native", "native", columns(score, output_tokens=longer))
        eager = ArmColumns.of("eager", "eager", columns(score, output_tokens=base))
        found = against(arm_score(arm, 100, 1, 0.95), arm, eager, pair(arm, eager), 1 - 2 * ALPHA)
        failed += found.length_interval is not None and found.length_interval.low > 1.1
    assert 0.01 < failed / RUNS <= ALPHA + error(ALPHA)


def test_an_arm_at_the_limit_of_degeneration_fails_at_the_level() -> None:
    rng = np.random.default_rng(7)
    failed = 0
    none = np.zeros(250)
    for _ in range(RUNS):
        pairs = PairedScores((rng.random(250) < 0.02).astype(float), none, np.arange(250))
        failed += difference_interval(pairs, 1 - 2 * ALPHA).low > 0.02
    assert failed / RUNS <= ALPHA + error(ALPHA)


@pytest.mark.parametrize("repeats", [1, 4])
def test_the_noise_floor_holds_the_next_difference_of_equal_arms(repeats: int) -> None:
    """An A/A pair sets the floor; a third run of the same arm must stay inside it as often as the level says.
    Both ends of the difference are random, so twice the level is what an estimated floor can promise."""
    rng = np.random.default_rng(8)
    documents = 250 if repeats == 1 else 30
    beyond = 0
    for _ in range(RUNS):
        runs = [(rng.random((documents, repeats)) < 0.8).astype(float).ravel() for _ in range(3)]
        one, two, three = (ArmColumns.of(f"eager#{i}", "eager", columns(r, repeats)) for i, r in enumerate(runs))
        floor = noise_floor(one, two, pair(two, one), 0.95)
        assert floor is not None
        beyond += abs(float(three.primary().mean() - one.primary().mean())) > floor.floor
    assert beyond / RUNS <= 2 * ALPHA


# --- the gate as a whole ---------------------------------------------------------------------------------


def verdicts(loss: float, seed: int) -> tuple[dict[Outcome, float], GateRates]:
    """Shares of the outcomes of whole comparisons, and the rates that these comparisons state."""
    rng = np.random.default_rng(seed)
    policy = load_policy("endpoint")  # the default gate for arms without evidence
    run = run_of(["eager", "native"])
    outcomes: Counter[Outcome] = Counter()
    for _ in range(RUNS):
        arm, base = lose_anywhere(rng, loss, (250, 1))
        found = compare(run, {"gsm8k_canary": {"eager": columns(base[:, 0]), "native": columns(arm[:, 0])}}, {}, policy)
        outcomes[found.verdict.outcome] += 1
    rates = found.tasks[0].rates
    assert rates is not None
    return {outcome: count / RUNS for outcome, count in outcomes.items()}, rates


def test_a_sound_release_fails_as_rarely_as_the_report_says() -> None:
    outcomes, rates = verdicts(0.0, 9)
    assert set(outcomes) <= {Outcome.PASS, Outcome.FAIL, Outcome.INCONCLUSIVE}
    assert outcomes.get(Outcome.FAIL, 0.0) == pytest.approx(rates.false_alarm, abs=error(rates.false_alarm))
    assert outcomes.get(Outcome.INCONCLUSIVE, 0.0) == pytest.approx(rates.withheld, abs=error(rates.withheld))
    assert rates.false_alarm <= ALPHA


def test_a_broken_release_passes_as_rarely_as_the_report_says() -> None:
    outcomes, rates = verdicts(0.1, 10)
    assert rates.loss == pytest.approx(0.1)
    assert outcomes.get(Outcome.PASS, 0.0) <= rates.miss + 3 / RUNS
    assert outcomes[Outcome.FAIL] > 0.99
