"""Reads a Hugging Face DeepseekV3ForCausalLM folder: its configuration and its tensors as float32."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, deserialize

from evalharness.errors import EngineError

ARCHITECTURE = "DeepseekV3ForCausalLM"
SIZES = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "kv_lora_rank",
    "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "max_position_embeddings",
)  # fmt: skip
SUPPORTED = "The emulated engine runs dense DeepseekV3ForCausalLM models, such as canary-v3"


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The sizes and constants of config.json that the forward pass needs, under their names there."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    tie_word_embeddings: bool
    eos_token_ids: frozenset[int]

    @property
    def latent(self) -> int:
        """Width of a KV cache entry: the compressed latent and the rotary key (576 in DeepSeek V3)."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    @property
    def query(self) -> int:
        """Width of one head's query, which the softmax scale is made of (192 in DeepSeek V3)."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim


def read_config(folder: Path) -> ModelConfig:
    """Read and check `folder`/config.json; raises EngineError for a model that this engine does not implement."""
    raw = _read_json(folder / "config.json")
    _refuse_unsupported(raw)
    try:
        return _parse(raw)
    except KeyError as error:
        raise EngineError(f"config.json has no {error.args[0]!r}.", "Use a complete Hugging Face folder.") from error
    except (TypeError, ValueError) as error:
        raise EngineError(f"config.json has a wrong value: {error}.", "Use a complete Hugging Face folder.") from error


def _parse(raw: Mapping[str, Any]) -> ModelConfig:
    eos = raw.get("eos_token_id")
    return ModelConfig(
        **{name: int(raw[name]) for name in SIZES},
        q_lora_rank=None if raw.get("q_lora_rank") is None else int(raw["q_lora_rank"]),
        rms_norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
        rope_theta=float(_rope(raw).get("rope_theta") or raw.get("rope_theta") or 10000.0),
        tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
        eos_token_ids=frozenset([] if eos is None else [eos] if isinstance(eos, int) else eos),
    )


def _rope(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Rotary settings: `rope_parameters` since transformers 5, `rope_scaling` before."""
    return raw.get("rope_parameters") or raw.get("rope_scaling") or {}


def _refuse_unsupported(raw: Mapping[str, Any]) -> None:
    rope, layers = _rope(raw), raw.get("num_hidden_layers", 0)
    experts = bool(raw.get("n_routed_experts")) and raw.get("first_k_dense_replace", 0) < layers
    faults = {
        f"is a {', '.join(raw.get('architectures') or ['model without architectures'])}": ARCHITECTURE
        not in (raw.get("architectures") or []),
        f"has mixture-of-experts layers (first_k_dense_replace < {layers})": experts,
        "scales its rotary embedding": rope.get("rope_type", rope.get("type", "default")) != "default",
        "has attention biases": bool(raw.get("attention_bias")),
        "does not interleave its rotary pairs": raw.get("rope_interleave", True) is not True,
        f"has the activation {raw.get('hidden_act')!r}": raw.get("hidden_act", "silu") != "silu",
        "is quantised": "quantization_config" in raw,
    }
    for fault, present in faults.items():
        if present:
            raise EngineError(f"The model {fault}.", f"{SUPPORTED}; use the vllm engine for this one.")


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise EngineError(f"There is no {path.name} in the model folder {path.parent}.", f"{SUPPORTED}.") from error
    except (OSError, ValueError) as error:
        raise EngineError(f"Cannot read {path}: {error}.", "Restore the file from the model's source.") from error
    if not isinstance(raw, dict):
        raise EngineError(f"{path} is not a JSON object.", "Restore the file from the model's source.")
    return raw


def read_tensors(folder: Path) -> Tensors:
    """All tensors of the folder's *.safetensors files; raises EngineError when there are none, or a broken one."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise EngineError(f"There is no *.safetensors file in {folder}.", f"{SUPPORTED}, as safetensors.")
    tensors: dict[str, Mapping[str, Any]] = {}
    for path in files:
        try:
            tensors.update(deserialize(path.read_bytes()))  # type: ignore[no-untyped-call]
        except (OSError, SafetensorError) as error:
            raise EngineError(f"Cannot read {path}: {error}.", "Restore the file from the model's source.") from error
    return Tensors(tensors)


class Tensors:
    """Tensors by Hugging Face name, handed out as float32 when their shape is the expected one."""

    def __init__(self, raw: Mapping[str, Mapping[str, Any]]) -> None:
        self._raw = raw

    def get(self, name: str, *shape: int) -> NDArray[np.float32]:
        """The tensor `name`; raises EngineError when it is missing, has another shape or a dtype not handled."""
        if name not in self._raw:
            raise EngineError(f"The checkpoint has no tensor {name!r}.", "Check that all its files are there.")
        stored = self._raw[name]
        if tuple(stored["shape"]) != shape:
            raise EngineError(
                f"Tensor {name!r} has shape {list(stored['shape'])}, but config.json asks for {list(shape)}.",
                "Use the config.json that belongs to these weights.",
            )
        return _as_float32(name, stored["dtype"], stored["data"]).reshape(shape)


def _as_float32(name: str, dtype: str, data: bytes) -> NDArray[np.float32]:
    if dtype == "BF16":  # the upper half of a float32; numpy has no such type
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
    if dtype in {"F16", "F32"}:
        return np.frombuffer(data, {"F16": "<f2", "F32": "<f4"}[dtype]).astype(np.float32)
    raise EngineError(f"Tensor {name!r} is stored as {dtype}.", "Convert the weights to BF16, F16 or F32.")
