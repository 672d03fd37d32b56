"""Decode speed at a fixed length: the same work in every arm, whatever it writes; prefill and warm-up left out."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from evalharness.engines import vllm_decode
from evalharness.engines.vllm_decode import NEW_TOKENS, PROMPT_TOKENS, ROUNDS, WARM_UP_TOKENS, decode_speed
from evalharness.spec import VllmEngine

STEP_S = 0.002


class Stepper:
    """Gives every request one token a step; the first step of all prefills for long, the first round compiles.

    `seconds` is the time these steps took.
    """

    def __init__(self) -> None:
        self.running: dict[str, int] = {}
        self.asked: list[tuple[list[int], Any]] = []
        self.steps, self.seconds, self.prefilled = 0, 0.0, False

    def add_request(self, name: str, prompt: dict[str, list[int]], params: Any) -> None:
        assert name not in self.running
        self.running[name] = params.max_tokens
        self.asked.append((prompt["prompt_token_ids"], params))

    def step(self) -> list[Any]:
        prefills, self.prefilled = not self.prefilled, True
        self.seconds += 20 * STEP_S if prefills else STEP_S * (5 if self.steps < WARM_UP_TOKENS else 1)
        self.steps += 1
        self.running = {name: left - 1 for name, left in self.running.items()}
        done = [self.output(name, left) for name, left in self.running.items()]
        self.running = {name: left for name, left in self.running.items() if left}
        self.prefilled = bool(self.running)
        return done

    def output(self, name: str, left: int) -> Any:
        return SimpleNamespace(request_id=name, finished=not left, outputs=[SimpleNamespace(token_ids=(7,))])


@pytest.fixture(autouse=True)
def sampling(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("vllm.sampling_params")
    module.SamplingParams = SimpleNamespace  # type: ignore[attr-defined]
    module.RequestOutputKind = SimpleNamespace(DELTA=1)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm.sampling_params", module)


def options(**changes: Any) -> VllmEngine:
    return VllmEngine(**{"model": "m", "max_num_seqs": 6, "capture_sizes": (1, 2, 4, 8), **changes})


def test_speed_is_that_of_the_largest_captured_batch_without_prefill_and_warm_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = Stepper()
    monkeypatch.setattr(
        vllm_decode, "time", SimpleNamespace(perf_counter=lambda: engine.seconds, monotonic_ns=iter(range(99)).__next__)
    )
    assert decode_speed(engine, options(), [1, 2, 3]) == pytest.approx(4 / STEP_S)
    assert len(engine.asked) == 4 * (1 + ROUNDS)
    assert not engine.running


def test_every_request_is_of_one_length_and_nothing_ends_it_early() -> None:
    engine = Stepper()
    decode_speed(engine, options(), [1, 2, 3])
    assert {len(prompt) for prompt, _ in engine.asked} == {PROMPT_TOKENS}
    assert {(p.max_tokens, p.ignore_eos, p.temperature) for _, p in engine.asked} == {
        (WARM_UP_TOKENS, True, 0.0),
        (NEW_TOKENS, True, 0.0),
    }


def test_a_short_context_is_not_exceeded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_decode, "NEW_TOKENS", 200)
    engine = Stepper()
    decode_speed(engine, options(max_model_len=200), [1, 2, 3])
    assert max((len(prompt), p.max_tokens) for prompt, p in engine.asked) == (100, 100)
