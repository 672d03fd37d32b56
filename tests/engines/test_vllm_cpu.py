"""A real vLLM server: its CPU build serves canary-v3, and the endpoint engine scores against it.

Runs where EVALHARNESS_VLLM_CPU names the interpreter of an environment that has it; .ci/vllm-cpu makes one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from evalharness.canary.models import local_model
from evalharness.engines.serve import HOST, Plan, ServedArm
from evalharness.records import Sample
from evalharness.runner import local
from evalharness.spec import parse_spec

INTERPRETER = os.environ.get("EVALHARNESS_VLLM_CPU", "")
MODEL = local_model("canary-v3")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not INTERPRETER, reason="EVALHARNESS_VLLM_CPU is not set: run .ci/vllm-cpu"),
    pytest.mark.skipif(MODEL is None or not (MODEL / "config.json").exists(), reason="canary-v3 has no weights here"),
]
TASK = "gsm8k_canary"
DOCUMENTS = 40
SETTINGS = (
    "--dtype float32 --max-model-len 2048 --max-num-seqs 16 --enforce-eager --no-enable-prefix-caching"
    # The build's own rotary kernel turns queries wrongly for this model; the native form of every layer is right.
    ' --compilation-config {"custom_ops":["none"]}'
)
VARIABLES = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "2",
}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    # This build registers as vllm-cpu, which its `vllm` command does not expect; the module it starts is the same.
    start = (INTERPRETER, "-m", "vllm.entrypoints.openai.api_server", "--model", str(MODEL))
    command = (*start, "--served-model-name", "canary-v3", "--host", HOST, *SETTINGS.split())
    log = tmp_path_factory.mktemp("server") / "eager.log"
    server = ServedArm(Plan("eager", "canary-v3", command, VARIABLES, start_timeout_s=400), log)
    try:
        yield server.start()
    finally:
        server.stop()


def run(results: Path, arm: str, engine: dict[str, object]) -> dict[tuple[str, int, int], Sample]:
    tasks = [{"name": TASK, "limit": DOCUMENTS}]
    spec = parse_spec({"name": "cpu", "engine": engine, "arms": [arm], "tasks": tasks, "policy": "endpoint"})
    folder = local.start(spec, results)
    return {sample.key: sample for sample in folder.read_samples(TASK, "eager")}


def test_vllms_answers_are_the_emulated_eager_arms(url: str, tmp_path: Path) -> None:
    served = run(tmp_path / "served", f"eager={url}", {"kind": "endpoint", "model": "canary-v3", "max_concurrency": 16})
    emulated = run(tmp_path / "emulated", "eager", {"kind": "emulated", "model": "canary-v3"})
    assert served.keys() == emulated.keys()
    pairs = [(sample.token_ids, emulated[key].token_ids) for key, sample in served.items()]
    same = sum(a == b for one, two in pairs for a, b in zip(one, two, strict=False))
    longest = sum(max(len(one), len(two)) for one, two in pairs)
    right = sum(sample.scores["exact_match"] for sample in served.values())
    print(f"token agreement {same}/{longest}; {right:.0f} of {len(served)} right", file=sys.stderr)
    assert same / longest >= 0.99
    assert right / len(served) >= 0.95
