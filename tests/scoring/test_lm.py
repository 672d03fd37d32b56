"""lm-eval's own evaluator over an engine comes to the totals of the harness."""

import hashlib
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from evalharness.engines.base import Request
from evalharness.errors import EngineError, SpecError
from evalharness.scoring.definitions import load, tasks_dir
from evalharness.scoring.tasks import PreparedTask, prepare
from tests.scoring.fakes import ScriptedEngine, completion, make_spec


def guess(request: Request) -> str:
    """Right, almost right, wrong, cut short: by the prompt's hash, so that everyone who asks hears the same."""
    kind = hashlib.sha256(request.prompt.encode()).digest()[0] % 4
    numbers = [int(word) for word in request.prompt.rpartition("Question:")[2].split() if word.isdigit()]
    total = sum(numbers)
    return (f" #### {total}", f" it is {total} in all", " #### 1", rf"<think>#### 1</think> \boxed{{{total}}}")[kind]


def evaluated(model: Any, tasks: list[Any], **options: Any) -> Any:
    """lm-eval's own results."""
    import lm_eval
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=str(tasks_dir()), include_defaults=False)
    return lm_eval.simple_evaluate(model, tasks=tasks, task_manager=manager, bootstrap_iters=0, **options)


def harness_totals(task: PreparedTask, engine: ScriptedEngine) -> dict[str, float]:
    """Mean of each score over the harness's samples."""
    by_id = {item.request().id: item for item in task.items}
    done = list(engine.generate([item.request() for item in task.items]))
    samples = [task.score(by_id[answer.request_id], answer, "eager") for answer in done]
    return {key: fmean(sample.scores[key] for sample in samples) for key in samples[0].scores}


def test_gsm8k_totals_hashes_and_prompts_agree(small_data: Path) -> None:
    from evalharness.scoring.lm import EngineLM

    task, engine = prepare(make_spec(["gsm8k"], small_data))[0], ScriptedEngine(guess)
    results = evaluated(EngineLM(engine), [load("gsm8k", small_data).task], log_samples=True)
    ours = harness_totals(task, engine)
    theirs = results["results"]["gsm8k"]
    for name in ("strict-match", "flexible-extract"):
        assert ours[name] == theirs[f"exact_match,{name}"]
    logged = {(row["doc_id"], row["doc_hash"], row["prompt_hash"]) for row in results["samples"]["gsm8k"]}
    assert logged == {(item.doc_id, item.doc_hash, item.prompt_hash) for item in task.items}


@pytest.mark.parametrize("name", ["gsm8k_canary", "aime25_canary"])
def test_canary_totals_agree_and_lm_eval_finds_the_tasks_by_itself(name: str) -> None:
    from evalharness.scoring.lm import EngineLM

    task, engine = prepare(make_spec([{"name": name, "limit": 40}]))[0], ScriptedEngine(guess)
    theirs = evaluated(EngineLM(engine), [name], limit=40)["results"][name]
    ours = harness_totals(task, engine)["exact_match"]
    assert ours == theirs[f"exact_match,{'strict-match' if name == 'gsm8k_canary' else 'none'}"]


def test_requests_carry_the_harness_seeds(small_data: Path) -> None:
    from evalharness.scoring.lm import EngineLM

    spec = make_spec([{"name": "aime25", "repeats": 3}], small_data)
    engine, definition = ScriptedEngine(guess), load("aime25", small_data)
    definition.task.set_config("repeats", 3)
    evaluated(EngineLM(engine, seed=spec.seed), [definition.task])
    assert [request.seed for request in engine.asked] == [item.seed for item in prepare(spec)[0].items]


def test_a_lost_answer_stops_the_evaluation(small_data: Path) -> None:
    from evalharness.scoring.lm import EngineLM

    engine = ScriptedEngine(lambda _: completion("", finish_reason="error", error="server gone"))
    with pytest.raises(EngineError, match="server gone"):
        evaluated(EngineLM(engine), [load("gsm8k", small_data).task])


@pytest.mark.parametrize("method", ["loglikelihood", "loglikelihood_rolling"])
def test_log_likelihoods_are_refused(method: str) -> None:
    from lm_eval.api.instance import Instance

    from evalharness.scoring.lm import EngineLM

    asked = Instance("loglikelihood", {}, ("a", "b"), 0, ("piqa", 0, 1))
    with pytest.raises(SpecError, match="piqa needs log-likelihoods"):
        getattr(EngineLM(ScriptedEngine(guess)), method)([asked])


def test_lm_eval_knows_the_model_by_name() -> None:
    from lm_eval.api.registry import get_model

    from evalharness.scoring.lm import EngineLM

    assert get_model("evalharness") is EngineLM
