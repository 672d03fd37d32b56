"""Decode speed at a fixed length, measured alike in every arm.

While an arm answers, its speed depends on what it writes: a broken arm rambles to the token limit in full batches. Here
every arm decodes the same batch for the same number of tokens, whatever they are, so that speeds can be compared.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from evalharness.spec import VllmEngine

PROMPT_TOKENS = 128  # two blocks of FlashMLA
NEW_TOKENS = 64
ROUNDS = 2
WARM_UP_TOKENS = 8  # of a round before


def decode_speed(engine: Any, options: VllmEngine, text_tokens: Sequence[int]) -> float:
    """Tokens a second of vLLM's `LLMEngine`: the largest captured batch, prefill left out, the best of ROUNDS rounds.

    The prompt is `text_tokens`, repeated or cut to PROMPT_TOKENS, or to half of a shorter context.
    """
    length = min(PROMPT_TOKENS, options.max_model_len // 2)
    prompt = (list(text_tokens) * (length // len(text_tokens) + 1))[:length]
    new, batch = min(NEW_TOKENS, options.max_model_len - length), _batch(options)
    _round(engine, prompt, min(WARM_UP_TOKENS, new), batch)
    return max(_round(engine, prompt, new, batch) for _ in range(ROUNDS))


def _batch(options: VllmEngine) -> int:
    """The largest batch that was captured and can be run."""
    sizes = [size for size in options.capture_sizes if size <= options.max_num_seqs]
    return max(sizes, default=options.max_num_seqs)


def _round(engine: Any, prompt: list[int], new: int, batch: int) -> float:
    """Tokens a second from the step on at which every request has its first token."""
    sampling = import_module("vllm.sampling_params")
    params = sampling.SamplingParams(
        temperature=0.0,
        max_tokens=new,
        ignore_eos=True,
        detokenize=False,
        output_kind=sampling.RequestOutputKind.DELTA,
    )
    names = {f"decode-{time.monotonic_ns()}-{number}" for number in range(batch)}
    for name in sorted(names):
        engine.add_request(name, {"prompt_token_ids": prompt}, params)
    waiting, running = set(names), set(names)
    began, tokens = time.perf_counter(), 0
    while running:
        outputs = engine.step()
        if waiting:
            waiting -= {output.request_id for output in outputs if output.outputs[0].token_ids}
            began = time.perf_counter()
        else:
            tokens += sum(len(output.outputs[0].token_ids) for output in outputs)
        running -= {output.request_id for output in outputs if output.finished}
    return tokens / max(time.perf_counter() - began, 1e-9)
