"""A run's questions are built once, by lm-eval's own definitions, and every answer gets a complete record."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from evalharness.canary.problems import render_prompt
from evalharness.engines.base import Completion
from evalharness.errors import DataError, SpecError, UnknownName
from evalharness.records import Cause, Sample
from evalharness.scoring import definitions
from evalharness.scoring.tasks import PreparedTask, derive_seed, prepare, task_names
from tests.scoring.fakes import AIME25, GSM8K, completion, make_spec

HASH = "0" * 64


@pytest.fixture
def gsm8k(small_data: Path) -> PreparedTask:
    return prepare(make_spec(["gsm8k"], small_data))[0]


@pytest.fixture
def aime25(small_data: Path) -> PreparedTask:
    return prepare(make_spec([{"name": "aime25", "repeats": 2, "temperature": 0.6, "top_p": 0.9}], small_data))[0]


def answered(task: PreparedTask, said: Completion | str, number: int = 0) -> Sample:
    """The record of one answer to the item of that number."""
    return task.score(task.items[number], completion(said) if isinstance(said, str) else said, "eager")


# --- questions --------------------------------------------------------------------------------------------------------


def test_gsm8k_is_lm_evals_five_shot_task(gsm8k: PreparedTask) -> None:
    first = gsm8k.items[0]
    assert [item.doc_id for item in gsm8k.items] == [0, 1, 2, 3]
    assert first.prompt.count("Question:") == 6
    assert first.prompt.endswith(f"Question: {GSM8K[0]['question']}\nAnswer:")
    assert (first.target, first.temperature, first.max_tokens, gsm8k.metric) == ("8", 0.0, 256, "exact_match")
    assert "Question:" in first.stop


def test_repeats_share_a_prompt_and_have_seeds_of_their_own(aime25: PreparedTask) -> None:
    assert aime25.metric == "avg@2"
    assert len(aime25.items) == 2 * len(AIME25)
    one, two = aime25.items[:2]
    assert (one.prompt_hash, one.doc_hash, one.repeat, two.repeat) == (two.prompt_hash, two.doc_hash, 0, 1)
    assert len({item.seed for item in aime25.items}) == len(aime25.items)
    assert all(0 <= item.seed < 2**31 for item in aime25.items)
    assert (one.temperature, one.top_p, one.max_tokens) == (0.6, 0.9, 32768)


def test_a_seed_follows_from_what_is_asked_not_from_its_place(small_data: Path) -> None:
    long, short = (prepare(make_spec([{"name": "aime25", "limit": n}], small_data))[0].items for n in (6, 2))
    assert [item.seed for item in long[:2]] == [item.seed for item in short]
    assert derive_seed(1, "aime25", HASH, 0) != derive_seed(2, "aime25", HASH, 0)


def test_the_spec_overrides_the_tasks_own_values(small_data: Path) -> None:
    wanted = {"name": "gsm8k", "limit": 2, "num_fewshot": 1, "temperature": 0.5, "top_p": 0.8, "max_tokens": 64}
    task = prepare(make_spec([wanted], small_data))[0]
    first = task.items[0]
    assert len(task.items) == 2
    assert first.prompt.count("Question:") == 2
    assert (first.temperature, first.top_p, first.max_tokens) == (0.5, 0.8, 64)


def test_preparing_twice_asks_the_same(small_data: Path, gsm8k: PreparedTask) -> None:
    again = prepare(make_spec(["gsm8k"], small_data))[0]
    assert again.items == gsm8k.items
    assert again.data_sha256 == gsm8k.data_sha256


def test_the_data_hash_covers_the_documents_as_used(small_data: Path, gsm8k: PreparedTask) -> None:
    fewer = prepare(make_spec([{"name": "gsm8k", "limit": 3}], small_data))[0]
    assert fewer.data_sha256 != gsm8k.data_sha256


def test_a_limit_beyond_the_last_document_asks_for_all(small_data: Path) -> None:
    assert len(prepare(make_spec([{"name": "gsm8k", "limit": 5000}], small_data))[0].items) == 4


@pytest.mark.parametrize(("task", "field"), [("gsm8k_canary", "question"), ("aime25_canary", "problem")])
def test_canary_prompts_are_those_the_canary_learned(task: str, field: str) -> None:
    for shots in (0, 2):
        prepared = prepare(make_spec([{"name": task, "limit": 5, "num_fewshot": shots}]))[0]
        for item in prepared.items:
            assert item.prompt.endswith(render_prompt(prepared.prompts[item.doc_id].doc[field]))
            assert item.prompt.count("Question:") == shots + 1
            assert len(item.prompt) > 64
    assert prepared.items[0].prompt.count("\\boxed" if task == "aime25_canary" else "####") == 2


@pytest.mark.parametrize("part", ["filter_list", "metric_list", "doc_to_text"])
def test_gsm8k_canary_is_scored_as_gsm8k_is(part: str, small_data: Path) -> None:
    real, canary = (definitions.load(name, small_data).task.config[part] for name in ("gsm8k", "gsm8k_canary"))
    assert canary == real


def test_aime25_canary_is_scored_as_aime25_is(small_data: Path) -> None:
    real, canary = (definitions.load(name, small_data).task.config for name in ("aime25", "aime25_canary"))
    assert canary["doc_to_text"] == real["doc_to_text"]
    assert canary["process_results"].__code__ == real["process_results"].__code__


# --- names and definitions --------------------------------------------------------------------------------------------


def test_every_task_is_listed_without_loading_lm_eval() -> None:
    code = (
        "import sys, evalharness.scoring.tasks as t; print(sorted(t.task_names())); "
        "assert 'lm_eval' not in sys.modules and 'datasets' not in sys.modules"
    )
    listed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    for name in ("gsm8k", "aime25", "gsm8k_canary", "aime25_canary"):
        assert f"'{name}'" in listed
    assert all(task_names().values())


def test_an_unknown_task_offers_the_nearest() -> None:
    with pytest.raises(UnknownName, match="Did you mean: gsm8k_canary"):
        prepare(make_spec(["gsm8k_canry"]))


NEW_TASK = """
task: sums
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: generate_until
doc_to_text: "{{q}}="
doc_to_target: "{{a}}"
generation_kwargs: {until: ["\\n"], do_sample: false, max_gen_toks: 8}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
metadata: {version: 1.0, description: sums}
"""


@pytest.fixture
def own_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tasks/ folder with one YAML more."""
    (tmp_path / "sums.jsonl").write_text('{"q": "1+2", "a": "3"}\n')
    (tmp_path / "sums.yaml").write_text(NEW_TASK.replace("DATA", str(tmp_path / "sums.jsonl")))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(definitions, "tasks_dir", lambda: tmp_path)
    return tmp_path


@pytest.mark.usefixtures("own_tasks")
def test_a_yaml_in_tasks_is_all_a_new_task_needs() -> None:
    assert task_names()["sums"] == "sums"
    task = prepare(make_spec(["sums"]))[0]
    assert (task.items[0].prompt, task.items[0].target, task.items[0].stop) == ("1+2=", "3", ("\n",))
    assert answered(task, "3").cause is Cause.CORRECT
    assert answered(task, "4").cause is Cause.WRONG


@pytest.mark.parametrize(
    ("old", "new", "error", "hint"),
    [
        ("output_type: generate_until", "output_type: loglikelihood", SpecError, "generate_until"),
        ("do_sample: false", "top_k: 5", SpecError, "top_k"),
        ("{{q}}", "{{question}}", DataError, "question"),
        ("test_split: test", "test_split: dev", DataError, "dev"),
        ("metric: exact_match", "metric: exact_mach", SpecError, "exact_mach"),
        ("task: sums", "task: [", DataError, "sums.yaml"),
    ],
)
def test_a_faulty_yaml_is_refused_in_words(own_tasks: Path, old: str, new: str, error: type, hint: str) -> None:
    path = own_tasks / "sums.yaml"
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(error) as caught:
        prepare(make_spec(["sums"]))
    assert hint in str(caught.value)


def test_more_examples_than_there_are_is_refused(small_data: Path) -> None:
    with pytest.raises(SpecError, match="num_fewshot"):
        prepare(make_spec([{"name": "gsm8k", "num_fewshot": 100}], small_data))


def test_task_files_are_found_in_a_wheel_and_in_a_checkout(tmp_path: Path) -> None:
    package = tmp_path / "evalharness"
    package.mkdir()
    with pytest.raises(DataError, match="_tasks"):
        definitions.tasks_dir(package)
    (tmp_path / "tasks").mkdir()
    assert definitions.tasks_dir(package) == tmp_path / "tasks"
    (package / "_tasks").mkdir()
    assert definitions.tasks_dir(package) == package / "_tasks"


# --- scores -----------------------------------------------------------------------------------------------------------


def test_a_right_answer_has_a_complete_record(gsm8k: PreparedTask) -> None:
    sample = answered(gsm8k, " 3+5=8\n#### 8")
    item = gsm8k.items[0]
    assert sample.scores == {"exact_match": 1.0, "strict-match": 1.0, "flexible-extract": 1.0, "robust": 1.0}
    assert sample.extracted == {"strict-match": "8", "flexible-extract": "8", "robust": "8"}
    assert (sample.cause, sample.flags, sample.finish_reason) == (Cause.CORRECT, (), "stop")
    assert (sample.doc_hash, sample.prompt_hash, sample.seed) == (item.doc_hash, item.prompt_hash, item.seed)
    assert (sample.prompt_tokens, sample.output_tokens, sample.seconds) == (100, 3, 0.5)


@pytest.mark.parametrize(
    ("text", "cause", "strict", "flexible", "robust"),
    [
        ("#### 9", Cause.WRONG, 0, 0, 0),
        ("#### $8.00.", Cause.CORRECT, 0, 0, 1),
        ("so it is $8.00.", Cause.CORRECT, 0, 0, 1),
        ("so 8 dollars", Cause.CORRECT, 0, 1, 1),
        ("", Cause.EMPTY, 0, 0, 0),
        (" \n", Cause.EMPTY, 0, 0, 0),
        ("I cannot tell.", Cause.NOT_EXTRACTED, 0, 0, 0),
        ("8+" * 40, Cause.LOOP, 0, 1, 1),
        ("#### 8\n\nQuestion: and 9?\nAnswer: #### 9", Cause.CORRECT, 1, 1, 1),
    ],
)
def test_both_extractors_and_the_cause(
    gsm8k: PreparedTask, text: str, cause: Cause, strict: float, flexible: float, robust: float
) -> None:
    sample = answered(gsm8k, text)
    found = (sample.scores["strict-match"], sample.scores["flexible-extract"], sample.scores["robust"])
    assert (sample.cause, found) == (cause, (strict, flexible, robust))
    assert sample.scores["exact_match"] == strict
    assert ("extractors_disagree" in sample.flags) is (strict != robust)


def test_aime_answers_lm_eval_does_not_read_are_listed(aime25: PreparedTask) -> None:
    target = int(AIME25[0]["answer"])
    boxed, zeros = answered(aime25, rf"\boxed{{{target}}}"), answered(aime25, rf"\boxed{{0{target}}}")
    assert (boxed.scores, boxed.flags) == ({"exact_match": 1.0, "robust": 1.0}, ())
    assert (zeros.scores, zeros.flags) == ({"exact_match": 0.0, "robust": 1.0}, ("extractors_disagree",))


def test_every_repeat_is_scored_on_its_own(aime25: PreparedTask) -> None:
    right = rf"\boxed{{{AIME25[0]['answer']}}}"
    scores = [answered(aime25, text, number).scores["exact_match"] for number, text in enumerate((r"\boxed{1}", right))]
    assert scores == [0.0, 1.0]


def test_a_lost_answer_is_not_a_wrong_one(gsm8k: PreparedTask) -> None:
    sample = answered(gsm8k, completion("#### 9", finish_reason="error", error="timed out"))
    assert (sample.cause, sample.scores, sample.flags, sample.error) == (Cause.ERROR, {}, (), "timed out")


@pytest.mark.parametrize(
    "said",
    [
        completion("<think>so #### 8", finish_reason="length"),
        completion("", finish_reason="length", reasoning="so #### 8"),
    ],
)
def test_a_number_in_unfinished_reasoning_earns_nothing(gsm8k: PreparedTask, said: Completion) -> None:
    sample = answered(gsm8k, said)
    assert (sample.cause, sample.response, sample.reasoning) == (Cause.TRUNCATED, "", "so #### 8")
    assert not any(sample.scores.values())
    assert {"truncated", "open_reasoning"} <= set(sample.flags)


def test_reasoning_is_kept_apart_and_stop_strings_do_not_fire_in_it(gsm8k: PreparedTask) -> None:
    sample = answered(gsm8k, "<think>Question: is it 9?\n\n#### 9</think>\n#### 8\nQuestion: 9")
    assert (sample.cause, sample.reasoning) == (Cause.CORRECT, "Question: is it 9?\n\n#### 9")
    assert sample.extracted["strict-match"] == "8"


def test_a_prompt_that_opens_the_reasoning_counts(gsm8k: PreparedTask) -> None:
    item = replace(gsm8k.items[0], prompt=gsm8k.items[0].prompt + " <think>\n")
    sample = gsm8k.score(item, completion("it is 8 #### 8", finish_reason="length"), "eager")
    assert (sample.cause, sample.response) == (Cause.TRUNCATED, "")


def test_a_cut_answer_keeps_its_score_and_its_flag(gsm8k: PreparedTask) -> None:
    right = answered(gsm8k, completion("#### 8\nand then", finish_reason="length"))
    wrong = answered(gsm8k, completion("3+5", finish_reason="length"))
    assert (right.cause, right.scores["exact_match"], right.flags) == (Cause.CORRECT, 1.0, ("truncated",))
    assert (wrong.cause, wrong.flags) == (Cause.TRUNCATED, ("truncated",))


def test_a_thinking_models_engine_is_given_only_special_stop_tokens(gsm8k: PreparedTask) -> None:
    item = gsm8k.items[0]
    assert item.request().stop == item.stop
    assert item.request(thinking=True).stop == ("</s>", "<|im_end|>")
    assert (item.request().prompt, item.request().seed) == (item.prompt, item.seed)


@pytest.mark.parametrize(
    "said",
    [
        "so it is $8.00.",
        completion("<think>#### 8", finish_reason="length"),
        completion("", finish_reason="error", error="lost"),
    ],
)
def test_a_stored_sample_can_be_scored_anew(gsm8k: PreparedTask, said: Completion | str) -> None:
    sample = answered(gsm8k, said)
    outdated = replace(sample, scores={"exact_match": 1.0}, extracted={}, cause=Cause.WRONG)
    assert gsm8k.rescore(outdated) == sample
