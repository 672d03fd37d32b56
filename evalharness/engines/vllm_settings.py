"""A spec in vLLM's words: arguments of `LLM`, sampling parameters, and the child's environment."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

from evalharness.canary.models import local_model
from evalharness.capture.vllm_plugin import VARIABLE
from evalharness.engines.base import Request
from evalharness.errors import SpecError
from evalharness.spec import VllmEngine

EXTENSION = "evalharness.capture.worker.CaptureExtension"
# Variables that every child gets; the second table holds defaults that the user's own environment may override.
FIXED = {
    "VLLM_USE_V2_MODEL_RUNNER": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    # The path of the graphs captured while vLLM starts; an arm of another path captures again.
    VARIABLE: "native",
}
DEFAULTS = {
    # One process schedules and runs, so which requests share a batch does not depend on timing.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # Kernels that the model does not use need not be compiled before the first request.
    "VLLM_DEEP_GEMM_WARMUP": "skip",
}


def environment() -> dict[str, str]:
    """Variables for the child, beyond those of this process."""
    return {**FIXED, **{name: value for name, value in DEFAULTS.items() if name not in os.environ}}


def engine_arguments(options: VllmEngine) -> dict[str, Any]:
    """Arguments of `vllm.LLM`.

    Raises:
        SpecError: engine_args repeats what the spec has a key for.
    """
    arguments: dict[str, Any] = {
        "model": model_path(options),
        "revision": options.revision,
        "tokenizer_mode": options.tokenizer_mode,
        "trust_remote_code": options.trust_remote_code,
        "tensor_parallel_size": options.tensor_parallel_size,
        "dtype": options.dtype,
        "kv_cache_dtype": options.kv_cache_dtype,
        "block_size": options.block_size,
        "attention_config": {"backend": options.attention_backend} if options.attention_backend else None,
        "compilation_config": {
            "mode": options.compilation_mode,
            "cudagraph_mode": options.cudagraph_mode,
            "cudagraph_capture_sizes": list(options.capture_sizes),
        },
        "max_model_len": options.max_model_len,
        "max_num_seqs": options.max_num_seqs,
        "gpu_memory_utilization": options.gpu_memory_utilization,
        "worker_extension_cls": EXTENSION,
    }
    # A warm and a cold prefix cache prefill differently; off, each answer depends on its own prompt alone.
    given = {name: value for name, value in arguments.items() if value is not None}
    return {"enable_prefix_caching": False} | _merged(given, options.engine_args, "engine.engine_args")


def without_graphs(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """`arguments` for a server that captures nothing; whatever else compilation_config says (custom_ops) stays."""
    kept = {key: value for key, value in arguments["compilation_config"].items() if not key.startswith("cudagraph_")}
    return {**arguments, "compilation_config": kept, "enforce_eager": True}


def _merged(own: Mapping[str, Any], extra: Mapping[str, Any], where: str) -> dict[str, Any]:
    """`own` and `extra`, mappings in both (compilation_config) merged; what `own` has set is not to be set again."""
    merged = dict(own)
    for name, value in extra.items():
        if name not in own:
            merged[name] = value
        elif isinstance(own[name], dict) and isinstance(value, Mapping):
            merged[name] = _merged(own[name], value, f"{where}.{name}")
        else:
            raise SpecError(f"{where}.{name} is not free: the spec has a key for it.", f"Set it there, not in {where}.")
    return merged


def gpus(options: VllmEngine) -> int:
    """GPUs of one copy of the model: one for each rank of tensor, pipeline and data parallelism."""
    others = (int(options.engine_args.get(f"{kind}_parallel_size", 1)) for kind in ("pipeline", "data"))
    return options.tensor_parallel_size * math.prod(others)


def spread(options: VllmEngine) -> bool:
    """Whether vLLM takes its GPUs from a Ray cluster, on whichever nodes they are."""
    return options.engine_args.get("distributed_executor_backend") == "ray"


def model_path(options: VllmEngine) -> str:
    """A folder for a canary or a local checkpoint, widened where vLLM's kernels need it; else the hub's name."""
    from evalharness.canary.v4_widen import servable  # numpy, which no look around needs

    folder = local_model(options.model)
    return str(servable(folder)) if folder else options.model


def sampling_arguments(request: Request) -> Mapping[str, Any]:
    """Arguments of SamplingParams."""
    return {
        "temperature": request.temperature,
        "top_p": request.top_p,
        "seed": request.seed if request.temperature > 0 else None,
        "max_tokens": request.max_tokens,
        "stop": list(request.stop) or None,
    }
