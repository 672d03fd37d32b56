"""What this machine can run, and the command that mends each lack."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from evalharness.canary.models import local_model

CAPABLE = {9: "Hopper", 10: "Blackwell", 12: "Blackwell"}
VLLM_RELEASES = ((0, 20), (0, 33))
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
    """A GPU on which FlashMLA runs: compute capability 9.x, 10.x or 12.x."""
    try:
        listed = subprocess.run(
            ["nvidia-smi", "--query-gpu=name,compute_cap", "--format=csv,noheader"],  # noqa: S607 - the user's own driver tool
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return Check(
            "gpu", False, "no NVIDIA GPU", "Run the vLLM profiles on a Hopper or Blackwell host.", needed=False
        )
    first = listed.strip().splitlines()[0]
    name, _, capability = first.partition(", ")
    family = CAPABLE.get(int(capability.split(".")[0])) if capability else None
    if family is None:
        return Check(
            "gpu",
            False,
            f"{name} (compute capability {capability})",
            "FlashMLA needs Hopper or Blackwell.",
            needed=False,
        )
    return Check("gpu", True, f"{name} ({family})")


def vllm() -> Check:
    """An installed vLLM whose capture loop is known."""
    try:
        version = metadata.version("vllm")
    except metadata.PackageNotFoundError:
        return Check("vllm", False, "vLLM is not installed", "pip install 'evalharness[vllm]'", needed=False)
    release = tuple(int(part) for part in version.split(".")[:2])
    known = VLLM_RELEASES[0] <= release <= VLLM_RELEASES[1]
    remedy = "" if known else "pip install 'vllm>=0.20,<0.34'"
    return Check("vllm", known, f"vLLM {version}", remedy, needed=False)


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
