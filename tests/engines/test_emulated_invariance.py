"""Decode is batch-invariant bit for bit, under the matrix kernels of other processors too."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from evalharness.engines.emulated.engine import load_model
from evalharness.engines.emulated.prefill import prefill
from tests.engines.tiny_model import REAL_HEADS, write_model

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "num_hidden_layers": 1}
    return write_model(tmp_path_factory.mktemp("model"), "BF16", **REAL_HEADS, **sizes)


@pytest.mark.parametrize("processor", ["", "Haswell", "SkylakeX", "Nehalem"])
def test_logits_do_not_depend_on_the_batch(model: Path, processor: str) -> None:
    if processor and platform.machine() not in {"x86_64", "AMD64"}:
        pytest.skip("kernels of x86 processors")
    if processor == "SkylakeX" and "avx512f" not in _cpu_flags():
        pytest.skip("this processor has no AVX-512")
    environment = os.environ | ({"OPENBLAS_CORETYPE": processor} if processor else {})
    command = [sys.executable, "-m", "tests.engines.batch_invariance", str(model)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == "0", done.stdout


def _cpu_flags() -> str:
    path = Path("/proc/cpuinfo")
    return path.read_text() if path.exists() else ""


def test_a_prompts_prefill_is_the_same_every_time(model: Path) -> None:
    loaded, text = load_model(str(model), 512)
    prompt = text.encode("How many apples does Ada have now? " * 8)
    once, again = prefill(loaded, prompt), prefill(loaded, prompt)
    assert np.array_equal(once.entries, again.entries)
    assert np.array_equal(once.logits, again.logits)
