"""One decode step as a sequence of launches: embedding, absorbed MLA over the paged cache, MLP."""

from __future__ import annotations

from evalharness.engines.emulated import kernels
from evalharness.engines.emulated.device import Device
from evalharness.engines.emulated.flashmla import AttentionState, mla_with_kv_cache
from evalharness.engines.emulated.kernels import Floats
from evalharness.engines.emulated.memory import Activations, InputBuffers, KVCache
from evalharness.engines.emulated.weights import Layer, Model


def decode_step(
    device: Device, model: Model, inputs: InputBuffers, cache: KVCache, state: AttentionState, act: Activations
) -> None:
    """Launch a step over `act`'s rows; the normed hidden states end in `act.hidden`."""
    eps, rows = model.config.rms_norm_eps, len(act.residual)
    device.launch(kernels.embed, inputs.tokens[:rows], model.embedding, act.residual)
    for layer, pool in zip(model.layers, cache.layers, strict=True):
        device.launch(kernels.rms_norm, act.residual, layer.input_norm, eps, act.normed)
        _project(device, model, layer, inputs, pool, state, act)
        batch = len(state.seq_lens)
        mla_with_kv_cache(device, act.query[:batch], pool, state, model.scale, act.partials, act.attended[:batch])
        device.launch(kernels.head_linear, act.attended, layer.value_up, act.values)
        device.launch(kernels.linear, act.values.reshape(rows, -1), layer.output, act.delta)
        device.launch(kernels.add, act.delta, act.residual)
        _mlp(device, layer, eps, act)
    device.launch(kernels.rms_norm, act.residual, model.norm, eps, act.hidden)


def _project(
    device: Device,
    model: Model,
    layer: Layer,
    inputs: InputBuffers,
    pool: Floats,
    state: AttentionState,
    act: Activations,
) -> None:
    """Make the queries, in the latent space, and store the new cache entries."""
    c, rows = model.config, len(act.residual)
    positions, nope = inputs.positions[:rows], model.config.qk_nope_head_dim
    _query(device, layer, c.rms_norm_eps, act)
    per_head = act.q_flat.reshape(rows, c.num_attention_heads, -1)
    device.launch(kernels.head_linear, per_head[..., :nope], layer.key_up, act.query[..., : c.kv_lora_rank])
    rotary = per_head[..., nope:], positions, model.cos, model.sin, act.query[..., c.kv_lora_rank :]
    device.launch(kernels.rotate_heads, *rotary)
    device.launch(kernels.linear, act.normed, layer.kv_down, act.kv)
    tables = (model.cos, model.sin)
    device.launch(kernels.store_latent, act.kv, layer.kv_norm, c.rms_norm_eps, positions, tables, state.slots, pool)


def _query(device: Device, layer: Layer, eps: float, act: Activations) -> None:
    source = act.normed
    if layer.query.down is not None:
        source = act.q_down
        device.launch(kernels.linear, act.normed, layer.query.down, source)
        device.launch(kernels.rms_norm, source, layer.query.norm, eps, source)
    device.launch(kernels.linear, source, layer.query.project, act.q_flat)


def _mlp(device: Device, layer: Layer, eps: float, act: Activations) -> None:
    device.launch(kernels.rms_norm, act.residual, layer.mlp_norm, eps, act.normed)
    device.launch(kernels.linear, act.normed, layer.gate_up, act.gate_up)
    device.launch(kernels.swiglu, act.gate_up, act.gated)
    device.launch(kernels.linear, act.gated, layer.down, act.delta)
    device.launch(kernels.add, act.delta, act.residual)
