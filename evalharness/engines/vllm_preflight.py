"""What must hold before vLLM is started: minutes of loading are no place to learn of a typing mistake."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable
from importlib import import_module, metadata
from pathlib import Path

from evalharness.canary.models import local_model
from evalharness.engines.gpu import visible_gpus
from evalharness.engines.vllm_settings import gpus as gpus_of
from evalharness.engines.vllm_settings import spread
from evalharness.errors import EngineError, SpecError
from evalharness.spec import RunSpec, VllmEngine

RELEASES = ((0, 20), (0, 33))
PATIENCE_S, POLL_S = 15.0, 0.5
PROMPT_ROOM = 2048  # tokens that a few-shot prompt of the tasks here may take
GIB = 2**30


def check(spec: RunSpec) -> None:
    """Run every check on a spec of the vllm engine.

    Raises:
        SpecError: a setting that cannot hold.
        EngineError: this machine lacks something.
    """
    for step in CHECKS:
        step(spec, _options(spec))


def installed_vllm() -> str:
    """Version of an installed vLLM whose capture loop is known; raises EngineError with the command to get one."""
    try:
        version = metadata.version("vllm")
    except metadata.PackageNotFoundError as error:
        raise EngineError("vLLM is not installed.", "pip install 'evalharness[vllm]'") from error
    found = re.match(r"(\d+)\.(\d+)", version)
    release = tuple(int(part) for part in found.groups()) if found else (0, 0)
    if not RELEASES[0] <= release <= RELEASES[1]:
        raise EngineError(
            f"vLLM {version} is not one whose capture loop is known (0.20 to 0.33).", "pip install 'vllm>=0.20,<0.34'"
        )
    return version


def _release(_: RunSpec, __: VllmEngine) -> None:
    installed_vllm()


def _context(spec: RunSpec, options: VllmEngine) -> None:
    for task in spec.tasks:
        if task.max_tokens and task.max_tokens >= options.max_model_len:
            raise SpecError(
                f"Task {task.name} asks for {task.max_tokens} new tokens in a context of {options.max_model_len}.",
                f"Set engine.max_model_len={task.max_tokens + PROMPT_ROOM}, or tasks.{task.name}.max_tokens"
                f"={max(1, options.max_model_len - PROMPT_ROOM)}.",
            )


def _gpus(_: RunSpec, options: VllmEngine) -> None:
    if spread(options):  # this machine's GPUs say nothing
        return
    gpus, wanted = visible_gpus(), gpus_of(options)
    if len(gpus) < wanted:
        raise EngineError(
            f"{len(gpus)} GPUs are visible; engine.tensor_parallel_size and engine.engine_args ask for {wanted}.",
            "Run on a host with enough Hopper or Blackwell GPUs, or choose the profile canary-v3, which needs none.",
        )
    for gpu in gpus[:wanted]:
        if gpu.family is None:
            raise EngineError(
                f"GPU {gpu.index} is a {gpu.name} (compute capability {gpu.capability[0]}.{gpu.capability[1]}).",
                "FlashMLA needs Hopper or Blackwell; choose other GPUs with CUDA_VISIBLE_DEVICES.",
            )
    _free_memory(options)


def _free_memory(options: VllmEngine) -> None:
    share, deadline = options.gpu_memory_utilization, time.monotonic() + PATIENCE_S
    while True:
        short = [gpu for gpu in visible_gpus()[: gpus_of(options)] if gpu.free < gpu.total * share]
        if not short:
            return
        if time.monotonic() > deadline:  # a process that was just killed needs a moment to give its memory back
            break
        time.sleep(POLL_S)
    gpu = short[0]
    raise EngineError(
        f"GPU {gpu.index} has {gpu.free / GIB:.1f} of {gpu.total / GIB:.1f} GiB free;"
        f" engine.gpu_memory_utilization={share} takes {gpu.total * share / GIB:.1f}.",
        "Stop what uses the GPU (nvidia-smi lists it), or lower engine.gpu_memory_utilization.",
    )


def _weights(_: RunSpec, options: VllmEngine) -> None:
    folder = local_model(options.model) or _cached(options)
    if folder is None:
        _downloadable(options)
        return
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    if not (folder / "config.json").exists() or not _complete(folder):
        raise EngineError(f"{folder.name} holds no config.json with all its *.safetensors.", "Correct engine.model.")
    if spread(options):
        return
    gpus = visible_gpus()[: gpus_of(options)]
    room = sum(int(gpu.total * options.gpu_memory_utilization) for gpu in gpus)
    if size > room:
        raise EngineError(
            f"The weights take {size / GIB:.0f} GiB; {len(gpus)} GPUs give {room / GIB:.0f}.",
            "Raise engine.tensor_parallel_size or engine.gpu_memory_utilization.",
        )


def _cached(options: VllmEngine) -> Path | None:
    """The model's snapshot in the hub's cache; None too for one of which a part is still to be fetched."""
    hub = import_module("huggingface_hub")
    found = hub.try_to_load_from_cache(options.model, "config.json", revision=options.revision)
    folder = Path(found).parent if isinstance(found, str) else None
    return folder if folder is not None and _complete(folder) else None


def _complete(folder: Path) -> bool:
    """Whether every file of weights that the folder's index names is there; without an index, whether any is."""
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return any(folder.glob("*.safetensors"))
    return all((folder / name).exists() for name in _named(index))


def _named(index: Path) -> set[str]:
    """Names of the files of weights in an index that the hub or transformers wrote."""
    try:
        return {str(name) for name in json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise EngineError(
            f"{index} is no index of weights: {type(error).__name__}.", "Delete it and fetch the model again."
        ) from error


def _downloadable(options: VllmEngine) -> None:
    if os.environ.get("HF_HUB_OFFLINE") == "1":
        raise EngineError(
            f"{options.model} is not, or not wholly, in the hub's cache, and HF_HUB_OFFLINE=1 forbids to fetch it.",
            f"Run `hf download {options.model}` first, or set engine.model to a local folder.",
        )
    hub = import_module("huggingface_hub")
    try:
        files = hub.HfApi().model_info(options.model, revision=options.revision, files_metadata=True).siblings
    except Exception as error:  # the hub client's errors come from several libraries
        raise EngineError(
            f"{options.model} is neither a local folder nor to be had from the hub: {type(error).__name__}.",
            "Check engine.model and engine.revision, and the connection.",
        ) from error
    size = sum(file.size or 0 for file in files)
    cache = Path(hub.constants.HF_HUB_CACHE)
    free = shutil.disk_usage(next(p for p in (cache, *cache.parents) if p.exists())).free
    if free < size:
        raise EngineError(
            f"{options.model} takes {size / GIB:.0f} GiB; the hub's cache has {free / GIB:.0f} GiB free.",
            "Free some disk space, or point HF_HOME at a larger disk.",
        )


def _options(spec: RunSpec) -> VllmEngine:
    if not isinstance(spec.engine, VllmEngine):
        raise EngineError(f"The spec asks for the engine {spec.engine.kind}.", "Open that engine instead.")
    return spec.engine


CHECKS: tuple[Callable[[RunSpec, VllmEngine], None], ...] = (_release, _context, _gpus, _weights)
