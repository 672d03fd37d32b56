"""Cases of CASES.md: wrong answers from graph capture, and answers that depend on what runs beside them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evalharness.assess import assess
from evalharness.engines import base
from evalharness.engines.base import Completion, Request
from evalharness.records import Cause, Outcome
from evalharness.reports.words import concurrency_lines
from evalharness.runner import local
from tests.faults.scripted import Scripted, small_spec
from tests.synthetic import answers, faulty_release, judge


@pytest.mark.parametrize("seed", range(5))
def test_case_1_vllm_42444_stock_fails_and_patched_is_superior_to_it_and_equal_to_eager(seed: int) -> None:
    found = judge(faulty_release(seed=seed))
    for task in found.tasks:
        outcomes = {score.arm: score.outcome for score in task.scores}
        assert outcomes["stock"] is Outcome.FAIL
        assert outcomes["patched"] is Outcome.PASS
        questions = {question.name: question.answer.value for question in task.verdict.questions}
        assert questions == {"reproduced": "yes", "recovered": "yes"}
    assert found.verdict.outcome is Outcome.PASS


@pytest.mark.parametrize("loops", [True, False])
def test_case_2_vllm_51750_an_arm_that_falls_from_942_to_043_is_no_go(loops: bool) -> None:
    """Two gsm8k files of 1319 rows; the fallen one loops, or is merely wrong."""
    rng = np.random.default_rng(0)
    before, after = rng.random(1319) < 0.942, rng.random(1319) < 0.043
    fallen = answers("native", after, task="gsm8k")
    if loops:
        wrong: dict[str, Any] = {
            "cause": Cause.LOOP,
            "flags": ("loop",),
            "scores": {"exact_match": 0.0},
            "response": "so so so",
        }
        fallen = [sample if sample.cause is Cause.CORRECT else replace(sample, **wrong) for sample in fallen]
    found = judge({"gsm8k": {"eager": answers("eager", before, task="gsm8k"), "native": fallen}})
    task = found.tasks[0]
    contrast = task.contrast("native", "eager")
    assert found.verdict.outcome is Outcome.FAIL
    assert contrast is not None
    assert contrast.p_worse is not None
    assert contrast.p_worse < 1e-200
    assert contrast.losses == int((before & ~after).sum())
    assert contrast.flips
    assert (task.score("native").degenerate > 1000) == loops  # type: ignore[union-attr]
    assert any("loop" in reason for reason in found.verdict.reasons) == loops


class Crowded(Scripted):
    """Garbles an answer when the same prompt is answered at the same time."""

    def generate(self, requests: Iterable[Request]) -> Iterator[Completion]:
        together = list(requests)
        for request in together:
            crowded = sum(other.prompt == request.prompt for other in together) > 1
            yield Completion(
                request.id, "@@@@" if crowded else "#### 1", (9, 9) if crowded else (1, 2), "stop", 9, 2, 0.1
            )


@pytest.mark.parametrize("paces", [(1, 64), (1, 4)])
def test_case_4_vllm_41331_answers_that_change_with_concurrency_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, paces: tuple[int, int]
) -> None:
    """One prompt many times, at two numbers of requests at a time."""
    monkeypatch.setitem(base.ENGINES, "emulated", (__name__, "crowded"))
    tasks = [{"name": "gsm8k_canary", "limit": 2, "repeats": 8}]
    model = {"kind": "emulated", "model": str(Path(__file__).parent), "capture_sizes": [1, 64]}
    spec = small_spec(*(f"patched@{pace}" for pace in paces), tasks=tasks, engine=model)
    folder = local.start(spec, tmp_path)
    (line,) = concurrency_lines(assess(folder).tasks[0])
    assert line.startswith("patched depends on concurrency")
    assert f"between 1 and {paces[1]}" in line


def create() -> Crowded:
    return Crowded()


@pytest.mark.parametrize("flips", [2, 6, 12])
def test_case_30_vllm_23138_what_two_runs_of_one_arm_differ_by_is_noise_and_no_regression(flips: int) -> None:
    """Greedy answers that change with the batch: an A/A pair shows as many flips as the patched arm."""
    rng = np.random.default_rng(flips)
    right = np.ones(250, bool)
    again, patched = right.copy(), right.copy()
    again[rng.choice(250, flips, replace=False)] = False
    patched[rng.choice(250, flips, replace=False)] = False
    found = judge(
        {
            "gsm8k_canary": {
                "eager": answers("eager", right),
                "eager#2": answers("eager#2", again),
                "native": answers("native", patched),
            }
        }
    )
    noise = found.tasks[0].noise[0]
    assert (noise.arms, noise.flips) == (("eager", "eager#2"), flips)
    assert noise.floor >= flips / 250
    assert found.verdict.outcome is not Outcome.FAIL
