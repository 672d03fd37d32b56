"""The weights of a dense DeepSeek V3 model, laid out for the kernels: [in, out], and kv_b absorbed per head."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evalharness.engines.emulated.checkpoint import ModelConfig, Tensors
from evalharness.engines.emulated.kernels import Floats


@dataclass(frozen=True, slots=True)
class Query:
    """The query projection: [hidden, heads * 192], or through a normed bottleneck of q_lora_rank."""

    project: Floats
    down: Floats | None = None
    norm: Floats | None = None


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer.

    `kv_down` [hidden, latent] makes the cache entry. `key_up` [heads, nope, rank] and `value_up` [heads, rank, v] are
    the two halves of kv_b_proj: decode absorbs the first into the query and applies the second to attention's result.
    `gate_up` is [hidden, 2 * intermediate].
    """

    input_norm: Floats
    query: Query
    kv_down: Floats
    kv_norm: Floats
    key_up: Floats
    value_up: Floats
    output: Floats
    mlp_norm: Floats
    gate_up: Floats
    down: Floats


@dataclass(frozen=True, slots=True)
class Model:
    """A model ready to run; `cos` and `sin` are [max_model_len, rope / 2], `head` is [hidden, vocabulary]."""

    config: ModelConfig
    embedding: Floats
    layers: tuple[Layer, ...]
    norm: Floats
    head: Floats
    cos: Floats
    sin: Floats

    @property
    def scale(self) -> float:
        """The softmax scale."""
        return float(self.config.query**-0.5)


def build_model(config: ModelConfig, tensors: Tensors, max_model_len: int) -> Model:
    """Lay out the checkpoint's tensors; raises EngineError for a missing or misshapen one."""
    vocabulary, hidden = config.vocab_size, config.hidden_size
    embedding = tensors.get("model.embed_tokens.weight", vocabulary, hidden)
    head = embedding if config.tie_word_embeddings else tensors.get("lm_head.weight", vocabulary, hidden)
    cos, sin = rotary_tables(max_model_len, config.qk_rope_head_dim, config.rope_theta)
    return Model(
        config=config,
        embedding=embedding,
        layers=tuple(_layer(config, tensors, f"model.layers.{i}.") for i in range(config.num_hidden_layers)),
        norm=tensors.get("model.norm.weight", hidden),
        head=_transposed(head),
        cos=cos,
        sin=sin,
    )


def rotary_tables(length: int, width: int, theta: float) -> tuple[Floats, Floats]:
    """Cosines and sines [length, width / 2] of position * theta^(-2 i / width)."""
    frequencies = theta ** (-np.arange(0, width, 2, dtype=np.float64) / width)
    angles = np.outer(np.arange(length), frequencies)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def _layer(config: ModelConfig, tensors: Tensors, prefix: str) -> Layer:
    c, attention, mlp = config, prefix + "self_attn.", prefix + "mlp."
    heads, hidden, nope, value, rank = (
        c.num_attention_heads, c.hidden_size, c.qk_nope_head_dim, c.v_head_dim, c.kv_lora_rank)  # fmt: skip
    kv_up = tensors.get(attention + "kv_b_proj.weight", heads * (nope + value), rank).reshape(heads, -1, rank)
    gate, up = (tensors.get(f"{mlp}{part}_proj.weight", c.intermediate_size, hidden) for part in ("gate", "up"))
    return Layer(
        input_norm=tensors.get(prefix + "input_layernorm.weight", hidden),
        query=_query(config, tensors, attention),
        kv_down=_transposed(tensors.get(attention + "kv_a_proj_with_mqa.weight", c.latent, hidden)),
        kv_norm=tensors.get(attention + "kv_a_layernorm.weight", rank),
        key_up=np.ascontiguousarray(kv_up[:, :nope]),
        value_up=np.ascontiguousarray(kv_up[:, nope:].swapaxes(1, 2)),
        output=_transposed(tensors.get(attention + "o_proj.weight", hidden, heads * value)),
        mlp_norm=tensors.get(prefix + "post_attention_layernorm.weight", hidden),
        gate_up=_transposed(np.concatenate([gate, up])),
        down=_transposed(tensors.get(mlp + "down_proj.weight", hidden, c.intermediate_size)),
    )


def _query(config: ModelConfig, tensors: Tensors, attention: str) -> Query:
    width, hidden, rank = config.num_attention_heads * config.query, config.hidden_size, config.q_lora_rank
    if rank is None:
        return Query(_transposed(tensors.get(attention + "q_proj.weight", width, hidden)))
    return Query(
        project=_transposed(tensors.get(attention + "q_b_proj.weight", width, rank)),
        down=_transposed(tensors.get(attention + "q_a_proj.weight", rank, hidden)),
        norm=tensors.get(attention + "q_a_layernorm.weight", rank),
    )


def _transposed(weight: Floats) -> Floats:
    return np.ascontiguousarray(weight.T)
