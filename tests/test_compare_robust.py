"""Whatever a run leaves behind, it is compared and written, and lost answers never count."""

import json

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from evalharness.records import Cause, Outcome
from evalharness.reports import write_tables
from evalharness.reports.comparison_json import parse
from tests.synthetic import answers, judge, lost, run_of

ARMS = ("eager", "eager#2", "stock", "patched", "native")


@settings(max_examples=60, deadline=None)
@given(
    arms=st.sets(st.sampled_from(ARMS), min_size=1),
    documents=st.integers(1, 12),
    repeats=st.integers(1, 3),
    seed=st.integers(0, 2**32 - 1),
    kept=st.floats(0, 1),
    broken=st.floats(0, 1),
)
def test_any_run_gets_a_verdict_and_strict_tables(
    arms: set[str], documents: int, repeats: int, seed: int, kept: float, broken: float
) -> None:
    rng = np.random.default_rng(seed)
    samples = {}
    for arm in sorted(arms):
        made = answers(arm, rng.random(documents * repeats) < rng.random(), repeats, "t")
        samples[arm] = [lost(s) if rng.random() < broken else s for s in made if rng.random() < kept]
    found = judge({"t": samples}, run=run_of(sorted(arms)))
    assert found.verdict.outcome in set(Outcome)
    assert found.verdict.reasons
    text = write_tables(found)["comparison.json"]
    assert parse(text) == found
    assert "NaN" not in text
    assert "Infinity" not in text
    for score in json.loads(text)["tasks"][0]["scores"] if found.tasks else []:
        answered = [s for s in samples[score["arm"]] if s.cause is not Cause.ERROR]
        assert score["n"] == len(answered)
        if answered:
            low, high = score["interval"]["low"], score["interval"]["high"]
            assert 0 <= low <= score["value"] <= high <= 1
            assert score["value"] == np.mean([s.scores["exact_match"] for s in answered])
