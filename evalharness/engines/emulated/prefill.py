"""Prefill: exact causal attention over one whole prompt, outside any graph; a pure function of the prompt's tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evalharness.engines.emulated import kernels
from evalharness.engines.emulated.kernels import Floats
from evalharness.engines.emulated.weights import Layer, Model

QUERY_CHUNK = 256  # bounds the score matrix of a long prompt


@dataclass(frozen=True, slots=True)
class Prefilled:
    """What decode goes on from: cache entries[layer, tokens, latent] and the last token's logits[vocabulary]."""

    entries: Floats
    logits: Floats


def prefill(model: Model, tokens: Sequence[int]) -> Prefilled:
    """Run a prompt of at least one token; the last layer is computed for the last token, the only one asked for."""
    c = model.config
    entries = np.empty((c.num_hidden_layers, len(tokens), c.latent), np.float32)
    x = model.embedding[list(tokens)]
    for index, layer in enumerate(model.layers):
        normed = _norm(x, layer.input_norm, c.rms_norm_eps)
        _cache_entries(model, layer, normed, entries[index])
        if index == c.num_hidden_layers - 1:
            x, normed = x[-1:], normed[-1:]
        x = x + _attention(model, layer, normed, entries[index])
        x = x + _mlp(layer, _norm(x, layer.mlp_norm, c.rms_norm_eps))
    return Prefilled(entries, (_norm(x[-1:], model.norm, c.rms_norm_eps) @ model.head)[0])


def _norm(x: Floats, weight: Floats, eps: float) -> Floats:
    out = np.empty_like(x)
    kernels.rms_norm(x, weight, eps, out)
    return out


def _cache_entries(model: Model, layer: Layer, normed: Floats, out: Floats) -> None:
    rank, tokens = model.config.kv_lora_rank, len(normed)
    np.matmul(normed, layer.kv_down, out=out)
    out[:, :rank] = _norm(out[:, :rank], layer.kv_norm, model.config.rms_norm_eps)
    kernels.rotate(out[:, rank:], model.cos[:tokens], model.sin[:tokens], out[:, rank:])


def _queries(model: Model, layer: Layer, normed: Floats, first: int) -> Floats:
    """Queries [heads, tokens, nope + rope] of the tokens from position `first` on, scaled for the softmax."""
    c, nope = model.config, model.config.qk_nope_head_dim
    if layer.query.down is not None and layer.query.norm is not None:
        normed = _norm(normed @ layer.query.down, layer.query.norm, c.rms_norm_eps)
    query = (normed @ layer.query.project).reshape(len(normed), c.num_attention_heads, c.query).swapaxes(0, 1)
    span = slice(first, first + len(normed))
    kernels.rotate(query[..., nope:], model.cos[span], model.sin[span], query[..., nope:])
    return query * np.float32(model.scale)


def _attention(model: Model, layer: Layer, normed: Floats, entries: Floats) -> Floats:
    """Attention's contribution [queries, hidden] for the last len(normed) of the prompt's tokens."""
    c, tokens, first = model.config, len(entries), len(entries) - len(normed)
    latent = entries[:, : c.kv_lora_rank]
    key = np.empty((c.num_attention_heads, tokens, c.query), np.float32)
    np.matmul(latent, layer.key_up.swapaxes(1, 2), out=key[..., : c.qk_nope_head_dim])
    key[..., c.qk_nope_head_dim :] = entries[:, c.kv_lora_rank :]
    value = np.matmul(latent, layer.value_up)
    query = _queries(model, layer, normed, first)
    attended = np.empty((len(normed), c.num_attention_heads, c.v_head_dim), np.float32)
    for start in range(0, len(normed), QUERY_CHUNK):
        part = slice(start, min(start + QUERY_CHUNK, len(normed)))
        attended[part] = _causal(query[:, part], key, value, first + part.start).swapaxes(0, 1)
    return attended.reshape(len(normed), -1) @ layer.output


def _causal(query: Floats, key: Floats, value: Floats, position: int) -> Floats:
    """Attention [heads, queries, v] of queries that begin at `position` to all keys up to their own."""
    last = position + query.shape[1]
    scores = np.matmul(query, key[:, :last].swapaxes(1, 2))
    future = np.arange(last) > np.arange(position, last)[:, None]
    np.copyto(scores, -np.inf, where=future)
    np.exp(scores - scores.max(axis=-1, keepdims=True), out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    attended: Floats = np.matmul(scores, value[:, :last])
    return attended


def _mlp(layer: Layer, normed: Floats) -> Floats:
    gated = np.empty((len(normed), len(layer.down)), np.float32)
    kernels.swiglu(normed @ layer.gate_up, gated)
    return gated @ layer.down
