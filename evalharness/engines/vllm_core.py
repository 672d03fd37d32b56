"""The vllm engine itself: vLLM's offline engine in this process. Runs in the supervised child."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from typing import Any

from evalharness.engines.base import Completion, Request
from evalharness.engines.vllm_decode import decode_speed
from evalharness.engines.vllm_evidence import WorkerState, arm_evidence, refuse_fallback
from evalharness.engines.vllm_settings import engine_arguments, sampling_arguments
from evalharness.errors import EngineError
from evalharness.reasoning import opens_reasoning, split_reasoning
from evalharness.records import ArmEvidence
from evalharness.spec import ArmSpec, RunSpec, VllmEngine

DECODED = "Continue this list of numbers: 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,"  # prompt of the decode measurement


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A request with the token ids of its prompt; `opened`: the prompt ends inside a reasoning trace."""

    request: Request
    tokens: list[int]
    opened: bool


@dataclass(frozen=True, slots=True)
class _Running:
    """A request that vLLM has; `opened` as in _Waiting."""

    request_id: str
    opened: bool
    began: float


class VllmCore:
    """The Engine of kind `vllm`; see evalharness.engines.base.Engine for the protocol."""

    def __init__(self) -> None:
        self.tick: Callable[[], None] = lambda: None
        self._llm: Any = None
        self._options: VllmEngine | None = None
        self._version = ""
        self._arm: ArmSpec | None = None
        self._costs: dict[str, float] = {}
        self._speeds: dict[str, float] = {}
        self._calls = 0

    def open(self, spec: RunSpec) -> None:
        """Load the model; its graphs are captured along the native path meanwhile.

        Raises:
            EngineError: the spec is of another engine. What vLLM raises passes through.
        """
        if not isinstance(spec.engine, VllmEngine):
            raise EngineError(f"The spec asks for the engine {spec.engine.kind}.", "Open that engine instead.")
        vllm = import_module("vllm")
        began = time.perf_counter()
        self._options, self._version = spec.engine, str(vllm.__version__)
        self._llm = vllm.LLM(**engine_arguments(spec.engine))
        self._costs, self._speeds = {"load_seconds": time.perf_counter() - began}, {}

    def use(self, arm: ArmSpec) -> ArmEvidence:
        """Capture along the arm's path, or leave graphs alone for eager; nothing cached crosses over.

        Raises:
            EvidenceError: a silent fallback; names the setting to change.
            EngineError: blocks of the KV cache are still held.
        """
        if not self._opened().reset_prefix_cache():
            raise EngineError("vLLM still holds blocks of the last arm's requests.", "Run again with --resume.")
        workers = self._dispatching(arm)
        self._arm = arm
        self._costs |= {"generate_seconds": 0.0, "output_tokens": 0.0, "decode_tokens_per_s": 0.0}
        refuse_fallback(self._evidence(workers), workers)
        self._costs["fixed_decode_tokens_per_s"] = self._decode_speed(arm)
        return self._evidence(self._dispatching(arm))  # steps count from here on

    def generate(self, requests: Iterable[Request]) -> Iterator[Completion]:
        """Answer `requests`; vLLM's scheduler decides which run together. A prompt that
        fills the context gets an `error` completion."""
        engine, began = self._opened().llm_engine, time.perf_counter()
        self._calls += 1
        waiting, running = self._tokenized(list(requests)), dict[str, _Running]()
        try:
            while True:
                yield from self._admit(waiting, running)
                if not running:
                    return
                for output in engine.step():
                    if output.finished and output.request_id in running:
                        yield self._completion(output, running.pop(output.request_id))
                self.tick()
        finally:
            if running:
                engine.abort_request(list(running))
            self._costs["generate_seconds"] += time.perf_counter() - began
            self._costs["decode_tokens_per_s"] = self._costs["output_tokens"] / self._costs["generate_seconds"]

    def evidence(self) -> ArmEvidence:
        """Evidence of the arm in use with the steps taken so far."""
        return self._evidence(self._workers("evalharness_state"))

    def close(self) -> None:
        """Shut vLLM's engine down; may be called more than once."""
        llm, self._llm = self._llm, None
        if llm is not None:
            llm.llm_engine.engine_core.shutdown()

    def _admit(self, waiting: Iterator[_Waiting], running: dict[str, _Running]) -> Iterator[Completion]:
        """Keep vLLM's queue a little longer than its batch, so that a request's seconds are its own."""
        options = self._served()
        room = options.max_num_seqs + max(4, options.max_num_seqs // 4) - len(running)
        for due in islice(waiting, max(room, 0)):
            request, tokens = due.request, due.tokens
            if len(tokens) >= options.max_model_len:
                said = f"The prompt takes {len(tokens)} tokens of a context of {options.max_model_len}"
                yield Completion(request.id, "", (), "error", len(tokens), 0, 0.0, error=said)
                continue
            name = f"{self._calls}-{request.id}"
            self._submit(name, request, tokens)
            running[name] = _Running(request.id, due.opened, time.perf_counter())

    def _submit(self, name: str, request: Request, tokens: list[int]) -> None:
        sampling = import_module("vllm.sampling_params")
        params = sampling.SamplingParams(
            **sampling_arguments(request), output_kind=sampling.RequestOutputKind.FINAL_ONLY
        )
        self._opened().llm_engine.add_request(name, {"prompt_token_ids": tokens}, params)

    def _tokenized(self, requests: Sequence[Request]) -> Iterator[_Waiting]:
        """All of them at once, which takes a fraction of the time that one after another would."""
        texts = [self._text(request.prompt) for request in requests]
        templated = self._served().chat_template_kwargs is not None
        for request, text, tokens in zip(requests, texts, self._tokens(texts), strict=True):
            yield _Waiting(request, tokens, templated and opens_reasoning(text))

    def _text(self, prompt: str) -> str:
        """`prompt` in the chat template where the spec has one."""
        template = self._served().chat_template_kwargs
        if template is None:
            return prompt
        messages, tokenizer = [{"role": "user", "content": prompt}], self._opened().get_tokenizer()
        return str(tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False, **template))

    def _tokens(self, texts: list[str]) -> list[list[int]]:
        """Token ids of each text; a chat template brings its special tokens along."""
        if not texts:
            return []
        special = self._served().chat_template_kwargs is None
        encoded = self._opened().get_tokenizer()(texts, add_special_tokens=special)
        return [list(tokens) for tokens in encoded["input_ids"]]

    def _completion(self, output: Any, asked: _Running) -> Completion:
        answer, reason = output.outputs[0], str(output.outputs[0].finish_reason)
        self._costs["output_tokens"] += len(answer.token_ids)
        # Only a trace that the template opened is taken out here; scoring finds those that the text itself opens.
        reply = split_reasoning(answer.text, opened=True) if asked.opened else None
        known = reason in {"stop", "length"}
        return Completion(
            request_id=asked.request_id,
            text=reply.answer if reply else answer.text,
            token_ids=tuple(answer.token_ids),
            finish_reason=reason if known else "error",
            prompt_tokens=len(output.prompt_token_ids),
            output_tokens=len(answer.token_ids),
            seconds=time.perf_counter() - asked.began,
            reasoning=reply.reasoning if reply else "",
            error=None if known else f"vLLM ended the request: {reason}",
        )

    def _dispatching(self, arm: ArmSpec) -> list[WorkerState]:
        """Have the workers run the arm's graphs, captured unless they already were, or none."""
        if arm.capture == "eager":
            return self._workers("evalharness_eager")
        return self._workers("evalharness_capture", arm.path)

    def _decode_speed(self, arm: ArmSpec) -> float:
        """Measured once for the arms that share graphs."""
        if arm.path not in self._speeds:
            [tokens] = self._tokens([self._text(DECODED)])
            self._speeds[arm.path] = decode_speed(self._opened().llm_engine, self._served(), tokens)
        return self._speeds[arm.path]

    def _workers(self, method: str, *arguments: str) -> list[WorkerState]:
        return [json.loads(text) for text in self._opened().collective_rpc(method, args=arguments)]

    def _evidence(self, workers: list[WorkerState]) -> ArmEvidence:
        if self._arm is None:
            raise EngineError("No arm is in use.", "Call use(arm) first.")
        return arm_evidence(self._arm, self._served(), self._version, workers, self._costs)

    def _opened(self) -> Any:
        if self._llm is None:
            raise EngineError("vLLM is not open.", "Call open(spec) first.")
        return self._llm

    def _served(self) -> VllmEngine:
        assert self._options is not None  # noqa: S101 - set together with _llm
        return self._options


def create() -> VllmCore:
    """A new, unopened engine."""
    return VllmCore()
