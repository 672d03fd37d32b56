"""A request in the words of an OpenAI-compatible API, and its answer in ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from evalharness.engines.base import Completion, Request
from evalharness.engines.endpoint_server import Kind, Lost
from evalharness.reasoning import cut_at_stop, opens_reasoning, split_reasoning

# Fields beyond OpenAI's. vLLM knows them; a server that refuses them is asked without.
EXTRAS: Mapping[str, Any] = {"return_token_ids": True}
ENDED = {"stop": "stop", "eos": "stop", "eos_token": "stop", "end_turn": "stop", "stop_sequence": "stop"}
FINISH = {**ENDED, "length": "length", "max_tokens": "length"}


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server said. `thinking` says that the trace was never closed. `token_ids` and `prompt_ids` are empty,
    and counts of tokens 0, where the server does not tell them."""

    text: str
    reasoning: str
    thinking: bool
    finish_reason: str
    token_ids: tuple[int, ...]
    prompt_ids: tuple[int, ...]
    prompt_tokens: int
    output_tokens: int


def body(request: Request, model: str, api: str, extras: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON to send. A greedy request carries no seed, and nothing is sent that says what is so anyway."""
    fields: dict[str, Any] = {"model": model, "max_tokens": request.max_tokens, "temperature": request.temperature}
    if api == "chat":
        fields["messages"] = [{"role": "user", "content": request.prompt}]
    else:
        fields["prompt"] = request.prompt
    if request.temperature > 0:
        fields |= {"seed": request.seed, "top_p": request.top_p}
    if request.stop:
        fields["stop"] = list(request.stop)
    return {**fields, **extras}


def read(found: Mapping[str, Any], prompt: str) -> Answer:
    """The first choice of a response, its thinking kept apart.

    Raises:
        Lost: it is not a response of this API, or the server ended the request without an answer.
    """
    try:
        choice = found["choices"][0]
        message = choice.get("message")
        said, thought = _chat(message) if isinstance(message, dict) else (_text(choice["text"]), "")
        reason = choice.get("finish_reason")
        usage = found.get("usage") or {}
        token_ids = _ids(choice.get("token_ids"))
        prompt_ids = _ids(found.get("prompt_token_ids") or choice.get("prompt_token_ids"))
        counts = (_count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens")))
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        raise Lost(Kind.TRANSIENT, "the answer has no choice to read") from error
    if not isinstance(reason, str) or reason not in FINISH:
        raise Lost(Kind.TRANSIENT, f"the server ended the request: {str(reason)[:40]!r}")
    thinking = bool(thought and not said.strip())
    if not thought:
        reply = split_reasoning(said, opened=opens_reasoning(prompt))
        said, thought, thinking = reply.answer, reply.reasoning, reply.open
    prompt_tokens, output_tokens = counts[0] or len(prompt_ids), counts[1] or len(token_ids)
    return Answer(said, thought, thinking, FINISH[reason], token_ids, prompt_ids, prompt_tokens, output_tokens)


def stopped_inside_reasoning(answer: Answer, request: Request) -> bool:
    """Whether a stop string may have ended the thinking: the answer never began, and not for want of tokens."""
    return bool(request.stop) and answer.thinking and answer.finish_reason == "stop"


def completion(request: Request, answer: Answer, seconds: float) -> Completion:
    """The completion of `request`; stop strings the server was not given cut the answer here."""
    text = cut_at_stop(answer.text, request.stop)
    return Completion(
        request_id=request.id,
        text=text,
        token_ids=answer.token_ids,
        finish_reason="stop" if len(text) < len(answer.text) else answer.finish_reason,
        prompt_tokens=answer.prompt_tokens,
        output_tokens=answer.output_tokens,
        seconds=seconds,
        reasoning=answer.reasoning,
    )


def _chat(message: Mapping[str, Any]) -> tuple[str, str]:
    """(content, reasoning) of a chat message; servers call the second one by two names."""
    return _text(message.get("content")), _text(message.get("reasoning_content") or message.get("reasoning"))


def _text(content: object) -> str:
    """Text that may be absent, or come in parts."""
    if isinstance(content, list):
        return "".join(_text(part.get("text")) for part in content)
    if content is None or isinstance(content, str):
        # A lone surrogate cannot be written to a file as UTF-8.
        return (content or "").encode("utf-8", "replace").decode()
    raise TypeError(content)


def _ids(found: object) -> tuple[int, ...]:
    if not isinstance(found, list) or not all(type(item) is int and 0 <= item < 2**31 for item in found):
        return ()
    return tuple(found)


def _count(found: object) -> int:
    return found if type(found) is int and 0 <= found < 2**31 else 0
