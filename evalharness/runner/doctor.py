"""What this machine can run, and the command that mends each lack."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from evalharness.canary.models import local_model
from evalharness.engines.gpu import visible_gpus
from evalharness.engines.vllm_preflight import installed_vllm
from evalharness.errors import EngineError

FREE_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Check:
    """One finding; `remedy` is a command or a sentence, empty when all is well. What is not `needed`
    only the GPU profiles use."""

    name: str
    ok: bool
    found: str
    remedy: str = ""
    needed: bool = True


def examine(results: Path) -> list[Check]:
    """Every check, in the order a user should mend them."""
    return [check(results) for check in CHECKS]


def can_serve_vllm() -> tuple[bool, str]:
    """Whether this machine can run vLLM's arms, and the reason."""
    for check in (gpu(), vllm()):
        if not check.ok:
            return False, check.found
    return True, f"{gpu().found}, {vllm().found}"


def gpu() -> Check:
    """A GPU on which FlashMLA runs."""
    gpus = visible_gpus()
    fitting = [gpu for gpu in gpus if gpu.family]
    if fitting:
        return Check("gpu", True, f"{fitting[0].name} ({fitting[0].family})", needed=False)
    found = f"{gpus[0].name} is neither Hopper nor Blackwell" if gpus else "no NVIDIA GPU"
    return Check("gpu", False, found, "Run the vLLM profiles on a Hopper or Blackwell host.", needed=False)


def vllm() -> Check:
    """An installed vLLM whose capture loop is known."""
    try:
        return Check("vllm", True, f"vLLM {installed_vllm()}", needed=False)
    except EngineError as error:
        return Check("vllm", False, error.message, error.remedy, needed=False)


def _canary(_: Path) -> Check:
    folder = local_model("canary-v3")
    there = folder is not None and (folder / "config.json").exists()
    return Check(
        "canary-v3", there, "weights in the package" if there else "weights missing", "" if there else REINSTALL
    )


def _lm_eval(_: Path) -> Check:
    there = find_spec("lm_eval") is not None
    found = f"lm-eval {metadata.version('lm-eval')}" if there else "lm-eval is not installed"
    return Check("lm-eval", there, found, "" if there else REINSTALL)


def _results(results: Path) -> Check:
    existing = next(p for p in (results.absolute(), *results.absolute().parents) if p.exists())
    if not os.access(existing, os.W_OK):
        return Check("results", False, f"{results} is not writable", "Choose another folder with --out.")
    free = shutil.disk_usage(existing).free
    enough = free >= FREE_BYTES
    return Check("results", enough, f"{free / 2**30:.0f} GiB free", "" if enough else "Free some disk space.")


def _hub(_: Path) -> Check:
    offline = os.environ.get("HF_HUB_OFFLINE") == "1"
    found = "HF_HUB_OFFLINE=1: gsm8k and aime25 need --data or a filled cache" if offline else "hub allowed"
    return Check("data", True, found)


REINSTALL = "pip install --force-reinstall evalharness"
CHECKS: tuple[Callable[[Path], Check], ...] = (
    _lm_eval,
    _canary,
    _results,
    _hub,
    lambda _: gpu(),
    lambda _: vllm(),
)
