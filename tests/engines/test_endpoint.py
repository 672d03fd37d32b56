"""The endpoint engine against a real local server: what is asked, what is read, which arms are refused."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from evalharness.cli import app
from evalharness.engines.base import Completion, Engine, Request, create_engine
from evalharness.errors import EngineError, EvidenceError, PairingError, SpecError
from evalharness.spec import ArmSpec, RunSpec, parse_spec
from evalharness.store import RunFolder, list_runs
from tests.engines.openai_server import Body, Reply, Script, serving


def spec_of(*arms: str, **engine: Any) -> RunSpec:
    options = {"kind": "endpoint", "timeout_s": 5, "max_retries": 3, **engine}
    return parse_spec({"name": "t", "engine": options, "arms": list(arms), "tasks": ["gsm8k_canary"]})


@contextmanager
def engine_on(url: str, **engine: Any) -> Iterator[Engine]:
    """An endpoint engine with the stock arm at `url` in use."""
    made, spec = create_engine("endpoint"), spec_of(f"stock={url}", **engine)
    made.open(spec)
    made.use(spec.arms[0])
    yield made
    made.close()


def answer(script: Script, *requests: Request, **engine: Any) -> dict[str, Completion]:
    """Completions by request id of a server that follows `script`."""
    with serving(script) as url, engine_on(url, **engine) as made:
        return {done.request_id: done for done in made.generate(requests)}


def ask(script: Script, prompt: str = "2+2=", stop: tuple[str, ...] = (), **engine: Any) -> Completion:
    return answer(script, Request("r", prompt, 16, stop=stop), **engine)["r"]


# --- what is asked and read ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", ["completions", "chat"])
def test_an_answer_comes_back_with_its_tokens_and_counts(api: str) -> None:
    done = ask(Script(lambda _: " 4"), api=api)
    assert (done.text, done.finish_reason, done.token_ids) == (" 4", "stop", (7, 8, 9))
    assert (done.prompt_tokens, done.output_tokens, done.error) == (4, 3, None)
    assert done.seconds > 0


def test_a_greedy_request_is_sent_as_text_without_a_seed() -> None:
    script = Script(lambda _: "4")
    answer(script, Request("r", "2+2=", 16, stop=("\n\n",)))
    sent = script.questions[0]
    assert (sent["prompt"], sent["max_tokens"], sent["temperature"], sent["stop"]) == ("2+2=", 16, 0.0, ["\n\n"])
    assert "seed" not in sent


def test_a_sampled_request_carries_its_own_seed() -> None:
    script = Script(lambda body: str(body["seed"]))
    requests = [Request(str(seed), "x", 16, temperature=0.6, top_p=0.9, seed=seed) for seed in (5, 6)]
    assert {name: done.text for name, done in answer(script, *requests).items()} == {"5": "5", "6": "6"}
    assert script.questions[0]["top_p"] == 0.9


def test_a_server_that_refuses_fields_beyond_openais_is_asked_without() -> None:
    script = Script(lambda _: "4", refuses="return_token_ids")
    assert ask(script).token_ids == ()
    assert ["return_token_ids" in body for body in script.asked] == [True, False, True, False, False]


@pytest.mark.parametrize("content", [None, "", [{"type": "text", "text": ""}]])
def test_an_empty_answer_is_an_answer(content: object) -> None:
    done = ask(Script(lambda _: {"message": {"content": content}}), api="chat")
    assert (done.text, done.finish_reason, done.error) == ("", "stop", None)


# --- thinking -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_that_the_server_parts_is_kept_apart(name: str) -> None:
    done = ask(Script(lambda _: {"message": {"content": "4", name: "two and two"}}), api="chat")
    assert (done.text, done.reasoning) == ("4", "two and two")


def test_reasoning_in_tags_is_kept_apart() -> None:
    done = ask(Script(lambda _: "<think>Question: what?\n\nwell</think>\n4"))
    assert (done.text, done.reasoning) == ("4", "Question: what?\n\nwell")


def test_a_trace_cut_by_the_limit_is_no_answer() -> None:
    done = ask(Script(lambda _: {"text": "<think>it is 42, or", "finish_reason": "length"}))
    assert (done.text, done.reasoning, done.finish_reason) == ("", "it is 42, or", "length")


def thinker(body: Body) -> dict[str, Any]:
    """A server whose stop strings fire inside the thinking, as a server's do."""
    whole = "<think>Question: two and two?\n\nfour</think>The answer is 4.\n\nQuestion: next"
    cuts = [whole.find(stop) for stop in body.get("stop", ()) if stop in whole]
    return {"text": whole[: min(cuts, default=len(whole))]}


def test_a_stop_string_does_not_end_the_thinking() -> None:
    script = Script(thinker)
    requests = [Request(str(n), "2+2=", 16, stop=("Question:", "\n\n")) for n in range(5)]
    done = answer(script, *requests, max_concurrency=1)
    assert {d.text for d in done.values()} == {"The answer is 4."}
    assert {d.finish_reason for d in done.values()} == {"stop"}
    assert all("four" in d.reasoning for d in done.values())
    # The first request was asked twice; from then on the engine knows that this model thinks.
    assert [bool(body.get("stop")) for body in script.questions] == [True, False, False, False, False, False]


# --- arms that cannot be compared ---------------------------------------------------------------------------------


def opened(first: Script, second: Script, **engine: Any) -> Engine:
    with serving(first) as one, serving(second) as two:
        spec = spec_of(f"stock={one}", f"patched={two}", **engine)
        made = create_engine("endpoint")
        made.open(spec)
        for arm in spec.arms:
            made.use(arm)
        return made


def plain(_: Body) -> str:
    return "4"


def test_arms_that_serve_one_model_alike_are_accepted() -> None:
    evidence = opened(Script(plain), Script(plain, version="0.33.0")).evidence()
    assert evidence.mismatches == ()
    assert evidence.observed["model"] == "canary"
    assert (evidence.engine, evidence.engine_version) == ("endpoint", "0.33.0")
    assert "outside" in evidence.notes[0]


def test_arms_of_two_models_are_refused() -> None:
    with pytest.raises(PairingError, match="'canary' and 'other'"):
        opened(Script(plain), Script(plain, model="other"))


@pytest.mark.parametrize("tells_ids", [True, False])
def test_arms_of_two_chat_templates_are_refused(tells_ids: bool) -> None:
    one = Script(plain, tells_ids=tells_ids)
    with pytest.raises(PairingError, match="chat template"):
        opened(one, Script(plain, template="<|user|>{}<|end|>", tells_ids=tells_ids), api="chat")


def test_a_template_that_differs_at_the_same_length_is_refused() -> None:
    with pytest.raises(PairingError, match="chat template"):
        opened(Script(plain, template="A{}"), Script(plain, template="B{}"))


def test_a_server_that_changes_while_the_run_goes_on_is_an_invalid_arm() -> None:
    script = Script(plain)
    with serving(script) as url:
        spec = spec_of(f"stock={url}", f"patched={url}")
        made = create_engine("endpoint")
        made.open(spec)
        script.template = "<|user|>{}"
        with pytest.raises(EvidenceError, match="Arm patched is not served as the other arms"):
            made.use(spec.arms[1])


def test_one_arm_that_is_down_leaves_the_other_to_be_served() -> None:
    with serving(Script(plain)) as gone:
        pass
    with serving(Script(plain)) as url:
        spec = spec_of(f"stock={gone}", f"patched={url}")
        made = create_engine("endpoint")
        made.open(spec)
        with pytest.raises(EngineError, match="does not answer"):
            made.use(spec.arms[0])
        assert made.use(spec.arms[1]).arm == "patched"


def test_a_server_without_the_model_names_those_it_has() -> None:
    with serving(Script(plain)) as url, pytest.raises(EngineError, match="serves 'canary', not 'other'"):
        create_and_use(spec_of(f"stock={url}", model="other"))


def create_and_use(spec: RunSpec) -> None:
    made = create_engine("endpoint")
    made.open(spec)
    made.use(spec.arms[0])


def test_a_task_that_cannot_fit_the_servers_context_is_refused_before_it_is_asked() -> None:
    script = Script(plain, context=512)
    with serving(script) as url:
        raw = spec_of(f"stock={url}").model_dump()
        spec = parse_spec({**raw, "tasks": [{"name": "gsm8k_canary", "max_tokens": 512}]})
        with pytest.raises(SpecError, match=r"512 new tokens .* context is 512"):
            create_and_use(spec)
    assert script.questions == []


# --- the key ------------------------------------------------------------------------------------------------------


def test_the_key_comes_from_the_variable_the_spec_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-planted-123456")
    assert ask(Script(plain, key="sk-planted-123456"), api_key_env="MY_KEY").text == "4"


def test_a_refused_key_ends_the_arm_and_is_not_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-planted-123456")
    with serving(Script(plain, key="another")) as url, pytest.raises(EngineError, match="MY_KEY") as caught:
        create_and_use(spec_of(f"stock={url}", api_key_env="MY_KEY"))
    assert "sk-planted" not in str(caught.value)


def test_a_variable_that_is_not_set_is_told_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MY_KEY", raising=False)
    with pytest.raises(EngineError, match="export MY_KEY"):
        create_and_use(spec_of("stock=http://127.0.0.1:9", api_key_env="MY_KEY"))


@pytest.mark.parametrize("url", ["ftp://h", "http://user:secret@h", "http://h/?key=secret", "h:8000", "http://h:99999"])
def test_a_url_with_a_secret_or_without_sense_is_refused(url: str) -> None:
    with pytest.raises(SpecError) as caught:
        ArmSpec.parse(f"stock={url}")
    assert "secret" not in str(caught.value)


# --- stopping -----------------------------------------------------------------------------------------------------


def test_a_caller_that_stops_early_does_not_wait_for_the_rest() -> None:
    script = Script(lambda body: Reply(body={}, after_s=4.0) if body["prompt"] != "quick" else "4")
    with serving(script) as url, engine_on(url) as made:
        answers = made.generate([Request("q", "quick", 16), *(Request(str(n), "slow", 16) for n in range(20))])
        assert next(iter(answers)).request_id == "q"
        began = time.monotonic()
        answers.close()  # type: ignore[attr-defined]
        assert time.monotonic() - began < 2


# --- the command line ---------------------------------------------------------------------------------------------


def test_arms_that_are_urls_need_no_profile_and_no_model_name(tmp_path: Path) -> None:
    with serving(Script(lambda _: "#### 1")) as one, serving(Script(lambda _: "#### 1")) as two:
        arms = ["--arm", f"eager={one}", "--arm", f"stock={two}", "--tasks", "gsm8k_canary", "--limit", "3"]
        done = CliRunner().invoke(app, ["run", *arms, "--out", str(tmp_path)])
    assert "profile endpoint: arms are URLs of running servers" in done.output
    (run,) = list_runs(tmp_path)
    stored = RunFolder(run).read_run()
    assert stored.spec["engine"]["model"] == "canary"
    assert [arm.state.value for arm in stored.arms] == ["done", "done"]
