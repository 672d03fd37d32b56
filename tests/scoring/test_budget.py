"""Token arithmetic before anything starts."""

from pathlib import Path

import pytest

from evalharness.errors import SpecError
from evalharness.scoring.budget import budget_warnings, check_budget, estimate_tokens
from evalharness.scoring.tasks import prepare
from tests.scoring.fakes import make_spec


def test_a_prompt_and_its_answer_must_fit_the_context(small_data: Path) -> None:
    tasks = prepare(make_spec(["aime25"], small_data))
    longest = max(len(item.prompt) for item in tasks[0].items)
    with pytest.raises(SpecError) as caught:
        check_budget(tasks, 32768, len)
    for part in (f"{longest + 32768}", "max_model_len 32768", f"tasks.aime25.max_tokens={32768 - longest}"):
        assert part in str(caught.value)
    check_budget(tasks, longest + 32768, len)


def test_a_prompt_that_fills_the_context_alone(small_data: Path) -> None:
    tasks = prepare(make_spec(["gsm8k"], small_data))
    with pytest.raises(SpecError, match="num_fewshot"):
        check_budget(tasks, 64, len)


def test_few_tokens_for_hard_problems_are_warned_about(small_data: Path) -> None:
    short = prepare(make_spec([{"name": "aime25", "max_tokens": 4048}], small_data))
    assert "tasks.aime25.max_tokens=16384" in budget_warnings(short)[0]
    assert budget_warnings(prepare(make_spec(["aime25", "gsm8k"], small_data))) == ()


def test_greedy_repeats_are_warned_about(small_data: Path) -> None:
    tasks = prepare(make_spec([{"name": "aime25", "repeats": 2}], small_data))
    assert "temperature 0" in budget_warnings(tasks)[0]


def test_tokens_are_estimated_upwards() -> None:
    assert [estimate_tokens(text) for text in ("", "a", "abcd", "abcde")] == [0, 1, 1, 2]
