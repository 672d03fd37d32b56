"""Servers that fail: what is tried again, what is lost, and that a lost request is never a wrong answer."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from evalharness.assess import assess
from evalharness.engines import endpoint_pace
from evalharness.engines.base import Completion, Request, create_engine
from evalharness.engines.endpoint_pace import Pace, wait_before
from evalharness.errors import EngineError
from evalharness.records import ArmState, Cause, Outcome
from evalharness.runner import local
from evalharness.spec import RunSpec, parse_spec
from tests.engines.openai_server import Body, Reply, Script, serving
from tests.engines.test_endpoint import answer, engine_on, spec_of


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_pace, "FIRST_WAIT_S", 0.01)


def requests(count: int) -> list[Request]:
    return [Request(str(n), f"question {n}", 16) for n in range(count)]


class Flaky:
    """Answers each question with a failure `times` times, then rightly."""

    def __init__(self, failure: Reply, times: int) -> None:
        self.failure, self.times = failure, times
        self.seen: Counter[str] = Counter()
        self.lock = threading.Lock()

    def __call__(self, body: Body) -> Reply | str:
        with self.lock:
            self.seen[body["prompt"]] += 1
            seen = self.seen[body["prompt"]]
        return self.failure if seen <= self.times else "4"


PASSING = {
    "overloaded": Reply(503, {"detail": "busy"}),
    "too many requests": Reply(429, {"error": {"message": "slow down"}}, {"Retry-After": "0"}),
    "internal error": Reply(500, {"object": "error", "message": "oops"}),
    "bad gateway": Reply(502, raw=b"<html>bad gateway</html>"),
    "hang up": Reply(hang_up=True),
    "half an answer": Reply(raw=b'{"choices": [{"te'),
    "no choice": Reply(body={"choices": []}),
    "not an object": Reply(body=[1]),
    "aborted": Reply(body={"choices": [{"text": "4", "finish_reason": "abort"}]}),
    "a reason of another kind": Reply(body={"choices": [{"text": "4", "finish_reason": ["stop"]}]}),
    "text of another kind": Reply(body={"choices": [{"text": 4, "finish_reason": "stop"}]}),
}


@pytest.mark.parametrize("failure", PASSING.values(), ids=PASSING.keys())
def test_a_passing_failure_is_tried_again(failure: Reply) -> None:
    done = answer(Script(Flaky(failure, 2)), *requests(6))
    assert [d.text for d in done.values()] == ["4"] * 6
    assert all(d.error is None for d in done.values())


@pytest.mark.parametrize("failure", PASSING.values(), ids=PASSING.keys())
def test_a_failure_that_stays_is_a_lost_request_with_its_reason(failure: Reply) -> None:
    script = Script(Flaky(failure, 99))
    done = answer(script, *requests(2), max_retries=2)
    assert {(d.finish_reason, d.text, d.token_ids) for d in done.values()} == {("error", "", ())}
    assert all(d.error for d in done.values())
    assert len({d.error for d in done.values()}) == 1  # alike, so that the circuit breaker can tell
    assert len(script.questions) == 2 * 3


@pytest.mark.parametrize("status", [400, 404, 413, 422, 307])
def test_a_request_the_server_refuses_is_not_sent_again(status: int) -> None:
    script = Script(lambda _: Reply(status, {"error": {"message": "the context is 2048"}}))
    done = answer(script, *requests(3))
    assert {d.error for d in done.values()} == {f"HTTP {status}: the context is 2048"}
    assert len(script.questions) == 3


def test_a_key_that_is_withdrawn_ends_the_arm() -> None:
    with pytest.raises(EngineError, match="does not accept a request without a key"):
        answer(Script(lambda _: Reply(403, {"error": "forbidden"})), *requests(5))


def test_a_server_that_goes_away_loses_what_is_left_and_keeps_what_came() -> None:
    script = Script(lambda _: "4")
    with serving(script) as url, engine_on(url, max_concurrency=1, max_retries=1) as made:
        answers = made.generate(requests(4))
        first = next(iter(answers))
        assert first.text == "4"
        script.answer = lambda _: Reply(hang_up=True)
        rest = list(answers)
    assert [done.finish_reason for done in rest][-2:] == ["error", "error"]


# --- concurrency --------------------------------------------------------------------------------------------------


def test_a_server_slower_than_the_timeout_at_high_concurrency_is_asked_less_at_once() -> None:
    """Each answer takes 0.05 s times the requests in flight: with 16 at once none comes within the timeout."""
    script = Script(lambda _: Reply())
    script.answer = lambda _: Reply(after_s=0.05 * script.flying, body={"choices": [choice("4")]})
    with serving(script) as url, engine_on(url, timeout_s=0.45, max_concurrency=16, max_retries=8) as made:
        done = list(made.generate(requests(40)))
        evidence = made.evidence()
    assert [d.error for d in done] == [None] * 40
    assert evidence.costs["overloads"] > 0
    assert evidence.costs["concurrency"] < 10


def choice(text: str) -> dict[str, str]:
    return {"text": text, "finish_reason": "stop"}


def test_a_willing_server_gets_as_many_requests_as_the_spec_allows() -> None:
    script = Script(lambda _: Reply(body={"choices": [choice("4")]}, after_s=0.2))
    answer(script, *requests(200), max_concurrency=24)
    assert endpoint_pace.FIRST_LIMIT < script.most_flying <= 24


def test_the_limit_rises_with_success_and_halves_once_a_round() -> None:
    pace = Pace(64)
    for _ in range(8):
        pace.succeeded()
    assert pace.limit == 16
    for _ in range(5):
        pace.overloaded(0)
    assert (pace.limit, pace.overloads) == (8, 1)
    pace.succeeded()
    assert pace.limit == 8 + 1 / 8
    for number in range(1, 9):
        pace.overloaded(number)
    assert pace.limit == 1


def test_no_more_than_the_limit_are_in_flight() -> None:
    async def most() -> int:
        pace, room, flying, seen = Pace(3), asyncio.Condition(), 0, 0

        async def one() -> None:
            nonlocal flying, seen
            async with pace.slot(room):
                flying += 1
                seen = max(seen, flying)
                await asyncio.sleep(0)
                flying -= 1

        await asyncio.gather(*(one() for _ in range(30)))
        return seen

    assert asyncio.run(most()) == 3


@pytest.mark.parametrize("asked", ["2", "Wed, 21 Oct 2065 07:28:00 GMT", "soon", "-1", "9" * 400])
def test_retry_after_is_obeyed_within_reason(asked: str) -> None:
    seen: list[float] = []

    def answers(_: Body) -> Reply | str:
        seen.append(time.monotonic())
        return Reply(429, {}, {"Retry-After": asked}) if len(seen) == 1 else "4"

    longest, endpoint_pace.LONGEST_WAIT_S = endpoint_pace.LONGEST_WAIT_S, 0.3
    try:
        done = answer(Script(answers), *requests(1))
    finally:
        endpoint_pace.LONGEST_WAIT_S = longest
    assert done["0"].text == "4"
    waited = seen[1] - seen[0]
    assert waited < 2
    assert waited > 0.25 or asked in {"soon", "-1"}


def test_waits_differ_so_that_clients_do_not_come_back_together() -> None:
    chance = random.Random(0)
    waits = [wait_before(3, None, chance) for _ in range(50)]
    assert len(set(waits)) == 50
    assert max(waits) <= endpoint_pace.FIRST_WAIT_S * 8
    assert wait_before(30, None, chance) <= endpoint_pace.LONGEST_WAIT_S


def test_an_endless_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evalharness.engines.endpoint_server.LARGEST_BODY", 1 << 16)
    done = answer(Script(lambda _: Reply(raw=b"x" * (1 << 20))), *requests(1))
    assert done["0"].finish_reason == "error"


# --- whole runs ---------------------------------------------------------------------------------------------------


def run_spec(*arms: str, limit: int = 12) -> RunSpec:
    raw = spec_of(*arms, max_retries=1).model_dump()
    return parse_spec({**raw, "tasks": [{"name": "gsm8k_canary", "limit": limit}], "policy": "endpoint"})


def test_lost_requests_are_errors_in_the_run_and_its_verdict(tmp_path: Path) -> None:
    """Every third question is lost in the stock arm."""
    lossy = Script(lambda body: Reply(503, {}) if len(body["prompt"]) % 3 == 0 else "#### 1")
    with serving(Script(lambda _: "#### 1")) as good, serving(lossy) as bad:
        folder = local.start(run_spec(f"eager={good}", f"stock={bad}"), tmp_path)
    samples = folder.read_samples("gsm8k_canary", "stock")
    lost = [sample for sample in samples if sample.cause is Cause.ERROR]
    assert lost
    assert all(sample.scores == {} and sample.error == "HTTP 503: {}" for sample in lost)
    verdict = assess(folder).verdict
    assert verdict.outcome is Outcome.ERROR
    assert f"{len(lost)} of 12 answers of stock were lost to infrastructure" in verdict.reasons[0]


def test_an_arm_whose_server_only_fails_is_stopped_and_the_others_go_on(tmp_path: Path) -> None:
    broken = Script(lambda _: Reply(500, {"message": "CUDA error: an illegal memory access"}))
    with serving(Script(lambda _: "#### 1")) as good, serving(broken) as bad:
        folder = local.start(run_spec(f"eager={good}", f"stock={bad}", f"patched={good}", limit=80), tmp_path)
    arms = {arm.name: arm for arm in folder.read_run().arms}
    assert [arms[name].state for name in ("eager", "stock", "patched")] == [
        ArmState.DONE, ArmState.FAILED, ArmState.DONE
    ]  # fmt: skip
    assert "stopped after 8 identical failures: HTTP 500: CUDA error" in arms["stock"].message
    assert len(folder.read_samples("gsm8k_canary", "patched")) == 80
    verdict = assess(folder).verdict
    assert verdict.outcome is Outcome.ERROR
    assert "illegal memory access" in " ".join(verdict.reasons)


def test_what_cannot_be_seen_from_outside_is_taken_on_trust_only_where_the_policy_says_so(tmp_path: Path) -> None:
    with serving(Script(lambda _: "#### 1")) as url:
        trusting = local.start(run_spec(f"eager={url}", f"native={url}"), tmp_path)
        spec = parse_spec({**run_spec(f"eager={url}", f"native={url}").model_dump(), "policy": "default"})
        asking = local.start(spec, tmp_path)
    assert any("on trust" in note for note in assess(trusting).notes)
    verdict = assess(asking).verdict
    assert verdict.outcome is Outcome.INVALID
    assert "the engine endpoint cannot show the path it ran" in verdict.reasons[0]


def test_a_resumed_endpoint_run_asks_only_what_is_missing(tmp_path: Path) -> None:
    flaky = Script(lambda body: Reply(400, {"message": str(len(body["prompt"]))}) if len(body["prompt"]) % 2 else "4")
    with serving(flaky) as url:
        folder = local.start(run_spec(f"eager={url}"), tmp_path)
        lost = [s for s in folder.read_samples("gsm8k_canary", "eager") if s.cause is Cause.ERROR]
        assert lost
        flaky.asked.clear()
        flaky.answer = lambda _: "4"
        local.resume(folder)
    assert len(flaky.questions) == len(lost)
    assert Cause.ERROR not in {s.cause for s in folder.read_samples("gsm8k_canary", "eager")}


def test_a_resumed_arm_that_is_served_otherwise_is_invalid(tmp_path: Path) -> None:
    script = Script(lambda _: Reply(400, {"message": "not now"}))
    with serving(script) as url:
        folder = local.start(run_spec(f"eager={url}", limit=3), tmp_path)
        script.answer, script.template = (lambda _: "4"), "<|user|>{}"
        local.resume(folder)
    arm = folder.read_run().arms[0]
    assert arm.state is ArmState.INVALID
    assert "prompt" in arm.message


def unopened() -> list[Completion]:
    return list(create_engine("endpoint").generate(requests(1)))


def test_an_engine_that_is_not_open_says_so() -> None:
    with pytest.raises(EngineError, match="Call"):
        unopened()
