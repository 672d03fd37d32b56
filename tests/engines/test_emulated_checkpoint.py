"""Model folders: what is read, and what a broken or unsupported one is told."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evalharness.engines.emulated.checkpoint import read_config, read_tensors
from evalharness.errors import EngineError
from tests.engines.tiny_model import CONFIG, answers, bfloat16_bits, opened, random_tensors, requests, write_safetensors
from tests.engines.tiny_model import write_model as write


def refusal(model: Path | str, **engine: Any) -> str:
    with pytest.raises(EngineError) as caught, opened(model, **engine):
        pass
    assert caught.value.remedy
    return str(caught.value)


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_every_float_format_is_read_exactly(tmp_path: Path, dtype: str) -> None:
    values = np.array([[0.0, -1.5, 3.140625], [1e-3, 300.0, -0.2]], np.float32)
    write_safetensors(tmp_path / "model.safetensors", {"w": values}, dtype)
    exact = {"F32": values, "F16": values.astype(np.float16), "BF16": _as_float(bfloat16_bits(values))}[dtype]
    assert np.array_equal(read_tensors(tmp_path).get("w", 2, 3), exact)


def _as_float(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def test_a_checkpoint_in_several_files_is_one_model(tmp_path: Path) -> None:
    whole, split = write(tmp_path / "whole"), write(tmp_path / "split")
    tensors = random_tensors(CONFIG)
    (split / "model.safetensors").unlink()
    for index in range(2):
        part = {name: tensors[name] for name in sorted(tensors)[index::2]}
        write_safetensors(split / f"model-{index}.safetensors", part)
    given = []
    for folder in (whole, split):
        with opened(folder) as engine:
            given.append(answers(engine, requests([70], 10), "eager")["r0"].token_ids)
    assert given[0] == given[1]


def test_rope_theta_is_read_from_either_place(tmp_path: Path) -> None:
    old = read_config(write(tmp_path / "old", rope_theta=5000.0))
    new = read_config(write(tmp_path / "new", rope_parameters={"rope_type": "default", "rope_theta": 5000.0}))
    assert old.rope_theta == new.rope_theta == 5000.0


def test_a_missing_folder_names_the_canaries(tmp_path: Path) -> None:
    assert "canary-v3" in refusal(tmp_path / "nowhere")
    assert "canary-v3" in refusal("canary-v33")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    folder = write(tmp_path)
    (folder / name).unlink()
    assert name.removeprefix("model") in refusal(folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_broken_file_is_named(tmp_path: Path, name: str) -> None:
    folder = write(tmp_path)
    (folder / name).write_bytes(b"\x10\x00\x00\x00 not this")
    assert name in refusal(folder)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, "LlamaForCausalLM"),
        ({"first_k_dense_replace": 1, "n_routed_experts": 8}, "mixture-of-experts"),
        ({"rope_scaling": {"type": "yarn", "factor": 40}}, "scales its rotary"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 40, "rope_theta": 1e4}}, "scales its rotary"),
        ({"attention_bias": True}, "biases"),
        ({"rope_interleave": False}, "interleave"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantised"),
        ({"kv_lora_rank": None}, "wrong value"),
    ],
)
def test_an_unsupported_model_says_what_is_not_supported(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    folder = write(tmp_path)
    (folder / "config.json").write_text(json.dumps(CONFIG | changes))
    assert words in refusal(folder)


def test_a_missing_setting_is_named(tmp_path: Path) -> None:
    folder = write(tmp_path)
    (folder / "config.json").write_text(json.dumps({k: v for k, v in CONFIG.items() if k != "v_head_dim"}))
    assert "v_head_dim" in refusal(folder)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    tensors = random_tensors(CONFIG)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    assert "model.layers.1.mlp.up_proj.weight" in refusal(write(tmp_path, tensors=tensors))


def test_a_misshapen_tensor_is_named_with_both_shapes(tmp_path: Path) -> None:
    message = refusal(write(tmp_path, intermediate_size=128, tensors=random_tensors(CONFIG)))
    assert "[96, 64]" in message
    assert "[128, 64]" in message


def test_an_unknown_weight_format_is_named(tmp_path: Path) -> None:
    assert "I8" in refusal(write(tmp_path, "I8"))


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    assert "tokenizer" in refusal(write(tmp_path, vocab_size=200))


@pytest.mark.parametrize("sizes", [[], [0], [4, -1]])
def test_impossible_capture_sizes_are_refused(tmp_path: Path, sizes: list[int]) -> None:
    assert "capture_sizes" in refusal(write(tmp_path), capture_sizes=sizes)


def test_a_cache_larger_than_memory_says_what_to_lower(tmp_path: Path) -> None:
    assert "Lower engine.max_model_len" in refusal(write(tmp_path), capture_sizes=[10**9])


def test_a_context_over_the_models_own_is_refused_with_the_limit(tmp_path: Path) -> None:
    assert "300" in refusal(write(tmp_path, max_position_embeddings=300), max_model_len=512)
