"""Cases of CASES.md: how an answer is read, and what a token limit makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalharness.errors import SpecError
from evalharness.records import Cause, Outcome, Sample
from evalharness.runner.plan import make_plan
from evalharness.scoring import data
from evalharness.scoring.tasks import PreparedTask, prepare
from evalharness.stats.repeats import fitting_counts
from tests.scoring.fakes import completion, make_spec, sources_of, write_data
from tests.synthetic import answers, judge


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture
def small(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, source in sources_of(folder).items():
        monkeypatch.setitem(data.SOURCES, name, source)
    return folder


def scored(name: str, small: Path, said: str, target: str, finish_reason: str = "stop", reasoning: str = "") -> Sample:
    """The record of `said` as an answer to a question whose answer is `target`."""
    task: PreparedTask = prepare(make_spec([name], small))[0]
    item = replace(task.items[0], target=target)
    task = replace(task, prompts={item.doc_id: replace(task.prompts[item.doc_id], doc=_doc(name, target))})
    return task.score(item, completion(said, finish_reason=finish_reason, reasoning=reasoning), "eager")


def _doc(name: str, target: str) -> dict[str, str]:
    if name == "gsm8k":
        return {"question": "How much?", "answer": f"so it is\n#### {target}"}
    return {"id": "1", "problem": "Find it.", "answer": target}


# --- 5: lm-eval 3214 ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "said", ["It costs $29.00.", "so 29 dollars...", "She pays $29.00", "= $29.", "#### $29.00", "It is 29.00 dollars"]
)
def test_case_5_lm_eval_3214_money_is_a_number_and_the_extractors_are_shown_side_by_side(
    small: Path, said: str
) -> None:
    sample = scored("gsm8k", small, said, "29")
    assert sample.scores["robust"] == 1
    assert sample.cause is Cause.CORRECT
    assert {"strict-match", "flexible-extract", "robust"} <= set(sample.extracted)
    assert ("extractors_disagree" in sample.flags) == (sample.scores["exact_match"] < 1)


@settings(max_examples=60, deadline=None)
@given(amount=st.integers(1, 99_999), form=st.sampled_from(["${}.00.", "${:,}", "**${}**", "{} dollars", "is {}.0"]))
def test_case_5_lm_eval_3214_any_amount(amount: int, form: str) -> None:
    from evalharness.scoring.answers import extract

    assert extract(f"The total is {form.format(amount)}") == str(amount)


# --- 7 and 8: thinking --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "trace", ["<think>it is 8, let me check 8", "<think>\n#### 8\n\nQuestion:", "<think>\\boxed{8}"]
)
@pytest.mark.parametrize("parted", [True, False])
def test_case_7_lm_eval_3382_a_trace_that_was_cut_earns_nothing(small: Path, trace: str, parted: bool) -> None:
    said, reasoning = ("", trace.removeprefix("<think>")) if parted else (trace, "")
    sample = scored("gsm8k", small, said, "8", "length", reasoning)
    assert sample.cause is Cause.TRUNCATED
    assert sample.scores["exact_match"] == 0
    assert sample.scores["robust"] == 0
    found = judge({"gsm8k_canary": {"eager": [replace(sample, task="gsm8k_canary", arm="eager")]}})
    assert found.tasks[0].scores[0].truncated == 1


@pytest.mark.parametrize("stop", ["Question:", "\n\n", "</s>"])
def test_case_8_lm_eval_3700_a_stop_string_ends_the_answer_and_not_the_thinking(small: Path, stop: str) -> None:
    said = f"<think>first {stop} then</think>\n#### 8 Question: and on"
    sample = scored("gsm8k", small, said, "8")
    assert sample.cause is Cause.CORRECT
    assert stop in sample.reasoning


def test_case_8_lm_eval_3700_no_stop_string_is_asked_of_a_model_that_thinks(small: Path) -> None:
    item = prepare(make_spec(["gsm8k"], small))[0].items[0]
    assert "Question:" in item.request().stop
    assert "Question:" not in item.request(thinking=True).stop


# --- 9 and 12: token limits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [4, 12, 30])
def test_case_9_lm_eval_3402_answers_at_the_cap_make_a_run_inconclusive(cut: int) -> None:
    """Thirty problems of aime25, `cut` of them ended by max_gen_toks."""
    limited = {"finish_reason": "length", "cause": Cause.TRUNCATED, "scores": {"exact_match": 0.0}}

    def arm(name: str) -> Sequence[Sample]:
        rows = answers(name, np.ones(30), task="aime25")
        return [replace(row, **limited) if row.doc_id < cut else row for row in rows]

    found = judge({"aime25": {name: arm(name) for name in ("eager", "native")}})
    assert found.verdict.outcome is Outcome.INCONCLUSIVE
    assert any(f"{cut} of 30 hit token cap" in reason for reason in found.verdict.reasons)


@pytest.mark.parametrize("tokens", [512, 4048])
def test_case_12_evalscope_1055_a_small_token_budget_is_told_before_the_run(small: Path, tokens: int) -> None:
    spec = make_spec(
        [{"name": "aime25", "max_tokens": tokens}], small, engine={"kind": "endpoint"}, arms=["eager=http://h"]
    )
    (warning,) = make_plan(spec).warnings
    assert f"allows {tokens} new tokens" in warning
    assert "max_tokens=16384" in warning


# --- 10: boxes ----------------------------------------------------------------------------------------------------

SEVENTY = [
    r"\boxed{070}",
    r"\boxed{70.0}",
    r"\boxed{\text{70}}",
    "The final answer is 70",
    "**70**",
    r"$5 \ldots $x=70$",
]


@pytest.mark.parametrize("said", [*SEVENTY, "so 70 it is: the final answer is 70."])
def test_case_10_lm_eval_3600_the_answer_is_found_in_any_dress_and_a_disagreement_is_listed(
    small: Path, said: str
) -> None:
    sample = scored("aime25", small, said, "70")
    assert sample.scores["robust"] == 1
    assert sample.extracted["robust"] == "70"
    disagree = sample.scores["exact_match"] < 1
    assert ("extractors_disagree" in sample.flags) == disagree
    found = judge({"t": {"eager": [replace(sample, task="t")]}})
    assert found.tasks[0].scores[0].disagreements == disagree


# --- 32: prompt + max_tokens --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tokens", "context"), [(2048, 2048), (2000, 2048), (64, 128)])
def test_case_32_open_r1_310_what_exceeds_the_context_is_refused_with_numbers_that_fit(
    tokens: int, context: int
) -> None:
    task = {"name": "gsm8k_canary", "limit": 20, "max_tokens": tokens}
    spec = make_spec([task], engine={"kind": "emulated", "max_model_len": context})
    with pytest.raises(SpecError) as caught:
        make_plan(spec)
    assert f"over max_model_len {context}" in caught.value.message
    longer = int(caught.value.remedy.split("engine.max_model_len=")[1].split()[0])
    fitting = make_spec([task], engine={"kind": "emulated", "max_model_len": longer})
    assert make_plan(fitting).samples_per_arm == 20


# --- published figures --------------------------------------------------------------------------------------------


def test_a_published_0942_with_30_problems_names_the_counts_it_can_come_from() -> None:
    assert list(fitting_counts(0.942, 30, 3)) == [(113, 120), (226, 240)]


@settings(max_examples=60, deadline=None)
@given(repeats=st.integers(1, 8), data=st.data())
def test_any_published_average_names_its_own_count(repeats: int, data: st.DataObject) -> None:
    right = data.draw(st.integers(0, 30 * repeats))
    published = round(right / (30 * repeats), 3)
    assert (right, 30 * repeats) in list(fitting_counts(published, 30, 3))
