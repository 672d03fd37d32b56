"""Every tensor of canary-v4 arrives in a parameter that vLLM 0.22.1 has, by vLLM's own mapping of names."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from evalharness.canary.models import local_model
from tests.capture import vllm_sources

RELEASE = "0.22.1"
MODEL = "vllm/models/deepseek_v4/nvidia/model.py"
UTILS = "vllm/model_executor/models/utils.py"
# The parameters of vLLM's modules, read in model.py, attention.py and compressor.py of its deepseek_v4. `*` stands for
# a weight and its block scales.
TOP = ("embed_tokens.weight", "norm.weight", "hc_head_fn", "hc_head_base", "hc_head_scale")
EVERY_LAYER = (
    "attn.attn_sink", "attn.fused_wqa_wkv.*", "attn.q_norm.weight", "attn.wq_b.*", "attn.kv_norm.weight",
    "attn.wo_a.*", "attn.wo_b.*", "attn_norm.weight", "ffn_norm.weight", "ffn.gate.weight",
    "ffn.gate.e_score_correction_bias", "ffn.shared_experts.gate_up_proj.*", "ffn.shared_experts.down_proj.*",
    "ffn.experts.w13_*", "ffn.experts.w2_*",
    "hc_attn_fn", "hc_attn_base", "hc_attn_scale", "hc_ffn_fn", "hc_ffn_base", "hc_ffn_scale",
)  # fmt: skip
COMPRESSOR = ("ape", "fused_wkv_wgate.weight", "norm.weight")
INDEXER = ("wq_b.*", "weights_proj.weight", *(f"compressor.{name}" for name in COMPRESSOR))


@pytest.fixture(scope="module")
def source() -> Path:
    try:
        return vllm_sources.sources(RELEASE, (MODEL, UTILS))
    except vllm_sources.Unavailable as error:
        pytest.skip(f"vLLM {RELEASE}: {error}")


def part(path: Path, name: str) -> ast.stmt:
    """The class or function `name`, or the assignment to it, wherever it stands in a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        targets = [ast.unparse(target) for target in node.targets] if isinstance(node, ast.Assign) else []
        if name in (getattr(node, "name", None), *targets):
            assert isinstance(node, ast.stmt)
            return node
    raise AssertionError(f"{path.name} has no {name}")


def run(folder: Path) -> dict[str, Any]:
    """vLLM's mapper and its table of fused layers, without vLLM."""
    known: dict[str, Any] = {"re": re, "dataclass": dataclass, "field": field, "Iterable": Iterable, "Any": Any}
    known |= {"Mapping": Mapping, "torch": type("torch", (), {"Tensor": object})}
    pieces = [
        part(folder / UTILS, "WeightsMapper"),
        part(folder / MODEL, "_make_deepseek_v4_weights_mapper"),
        part(folder / MODEL, "stacked_params_mapping"),
    ]
    exec(compile(ast.Module(pieces, []), "vllm", "exec"), known)  # noqa: S102 - pieces of a release of vLLM
    return known


def loaded(names: Iterable[str], folder: Path) -> Iterator[str]:
    """The parameter that each tensor goes into, by the rules of `DeepseekV4Model.load_weights`."""
    vllm = run(folder)
    for name in vllm["_make_deepseek_v4_weights_mapper"]("fp8").apply_list(list(names)):
        if ".experts." in name:
            yield re.sub(r"experts\.\d+\.w([123])\.", lambda m: f"experts.w{'2' if m[1] == '2' else '13'}_", name)
            continue
        fused = [(own, theirs) for own, theirs, _ in vllm["stacked_params_mapping"] if theirs in name]
        yield name.replace(fused[0][1], fused[0][0]) if fused else name


def parameters(config: Mapping[str, Any]) -> Iterator[str]:
    yield "lm_head.weight"
    yield from (f"model.{name}" for name in TOP)
    for layer, ratio in enumerate(config["compress_ratios"]):
        names = [*EVERY_LAYER]
        names += [f"attn.mla_attn.compressor.{name}" for name in COMPRESSOR if ratio]
        names += [f"attn.indexer.{name}" for name in INDEXER if ratio == 4]
        for name in names:
            ends = ("weight", "weight_scale_inv") if name.endswith("*") else ("",)
            yield from (f"model.layers.{layer}.{name.removesuffix('*')}{end}" for end in ends)


def test_every_tensor_has_a_parameter_and_every_parameter_a_tensor(source: Path) -> None:
    folder = local_model("canary-v4")
    assert folder is not None
    names = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    config = json.loads((folder / "config.json").read_text())
    assert set(loaded(names, source)) == set(parameters(config))
