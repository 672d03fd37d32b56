"""What ran where: versions, hardware, hashes. Only what is listed here is recorded, never the whole environment."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import evalharness

PACKAGES = (
    "evalharness",
    "lm-eval",
    "datasets",
    "numpy",
    "pandas",
    "scipy",
    "statsmodels",
    "tokenizers",
    "safetensors",
    "torch",
    "transformers",
    "vllm",
    "ray",
)
# Variables that change answers or speed; none of them holds a secret.
VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "HF_HUB_OFFLINE",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "PYTHONHASHSEED",
    "VLLM_ATTENTION_BACKEND",
    "VLLM_BATCH_INVARIANT",
    "VLLM_USE_V2_MODEL_RUNNER",
    "VLLM_WORKER_MULTIPROC_METHOD",
)


def collect() -> dict[str, Any]:
    """Provenance of this process as plain JSON data."""
    return {
        "git": _git(),
        "packages": _packages(),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": {"model": _cpu_model(), "count": os.cpu_count()},
        "gpu": _gpus(),
        "environment": {name: os.environ[name] for name in VARIABLES if name in os.environ},
    }


def sha256_file(path: Path) -> str:
    """Hex SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_text(*parts: str) -> str:
    """Hex SHA-256 of several strings, kept apart by their lengths."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()


def fingerprint(identity: Mapping[str, str]) -> str:
    """Hash of what decides a run's answers."""
    return sha256_text(*(text for item in sorted(identity.items()) for text in item))


def _packages() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _git() -> dict[str, Any] | None:
    root = Path(evalharness.__file__).parent.parent
    if not (root / ".git").exists():
        return _archived()
    commit = _output("git", "-C", str(root), "rev-parse", "HEAD")
    changed = _output("git", "-C", str(root), "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "dirty": bool(changed)} if commit else None


def _archived() -> dict[str, Any] | None:
    """The commit that `git archive` wrote into an exported tree; None in a wheel."""
    try:
        text = (Path(evalharness.__file__).parent / "archive_commit.txt").read_text(encoding="utf-8").strip()
    except OSError:
        return None
    return None if text.startswith("$") else {"commit": text, "dirty": False}


def _gpus() -> list[dict[str, str]]:
    fields = ("name", "memory.total", "driver_version", "compute_cap")
    rows = _output("nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader")
    return [dict(zip(fields, (cell.strip() for cell in row.split(",")), strict=False)) for row in rows.splitlines()]


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)  # noqa: S603 - fixed commands
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
