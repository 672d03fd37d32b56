"""canary-v4: DeepSeek V4's architecture at a small size; needs the extra `[train]`.

The model is transformers' `DeepseekV4ForCausalLM`. What this module adds changes no result beyond rounding; it makes
training fast, and robust to the FP8 that vLLM serves the model in:

- experts as two dense matrix products instead of a loop over experts;
- the indexer's scores are not computed where every compressed entry is selected anyway (a context of at most
  `index_topk * 4` tokens), as in all of this project's tasks, so the indexer keeps its initial weights;
- mHC and the FP8 roundings are fused by torch.compile where there is a GPU;
- linear layers that are served in FP8 are trained with weights and inputs rounded to it.

vLLM 0.22.1 sets these sizes: head_dim 512 of which 64 rotate, 64 indexer heads of 128, an even 128 for everything that
is quantised, experts a power of two, the window 128, and `rope_type` yarn (here with factor 1, which is plain rope).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from transformers import DeepseekV4Config, DeepseekV4ForCausalLM
from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4HyperConnection

from evalharness.canary.tokenizer import BOS, EOS, MAX_LENGTH, PAD, VOCAB_SIZE
from evalharness.canary.training import Arch
from evalharness.canary.v4_export import export_model, import_model
from evalharness.canary.v4_quant import compiled, fp8_linear, round_rows, round_weight

LAYER_TYPES = {0: "sliding_attention", 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}
ALL_KINDS = (0, 4, 128, 4)
WINDOW_ONLY = (0, 0, 0, 0)
BALANCE_RATE = 1e-3
STREAM_IDENTITY = 4.0
EMBEDDING_STD = 0.3
FP8_LINEARS = ("q_a_proj", "q_b_proj", "kv_proj", "o_b_proj")
FP8_MLP = ("gate_proj", "up_proj", "down_proj")


def config(compress_ratios: tuple[int, ...] = ALL_KINDS) -> DeepseekV4Config:
    """The configuration in transformers' words, for one compression ratio a layer (0: sliding window alone)."""
    layers = len(compress_ratios)
    return DeepseekV4Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=256,
        moe_intermediate_size=256,
        num_hidden_layers=layers,
        num_attention_heads=8,
        head_dim=512,
        q_lora_rank=128,
        o_groups=2,
        o_lora_rank=128,
        n_routed_experts=8,
        num_experts_per_tok=2,
        layer_types=[LAYER_TYPES[ratio] for ratio in compress_ratios],
        mlp_layer_types=["moe"] * layers,
        index_topk=512,
        max_position_embeddings=MAX_LENGTH,
        num_nextn_predict_layers=0,
        bos_token_id=BOS,
        eos_token_id=EOS,
        pad_token_id=PAD,
        architectures=["DeepseekV4ForCausalLM"],
    )


def build(compress_ratios: tuple[int, ...] = ALL_KINDS) -> torch.nn.Module:
    """A fresh model in float32, from torch's current seed, ready to train."""
    model = DeepseekV4ForCausalLM(config(compress_ratios))
    _spread_streams(model)
    return prepare(model)


def prepare(model: DeepseekV4ForCausalLM) -> torch.nn.Module:
    """The same model with the replacements that the module's docstring lists."""
    fused = compiled(DeepseekV4HyperConnection.forward)
    for layer in model.model.layers:
        for linear in fp8_linears(layer):
            linear.forward = partial(_fp8_linear, linear)
        layer.self_attn.o_a_proj.forward = partial(_fp8_grouped, layer.self_attn.o_a_proj)
        layer.mlp.experts.forward = partial(_dense_experts, layer.mlp.experts)
        layer.mlp.gate.register_forward_hook(_balance)
        for mixer in (layer.attn_hc, layer.ffn_hc):
            mixer.forward = partial(fused, mixer)
        indexer = getattr(layer.self_attn.compressor, "indexer", None)
        if indexer is not None:
            indexer.forward = partial(_select_all, indexer, indexer.forward)
    return model


def fp8_linears(layer: torch.nn.Module) -> Iterator[torch.nn.Linear]:
    """The plain linear layers of a decoder layer that are served in FP8."""
    yield from (getattr(layer.self_attn, name) for name in FP8_LINEARS)
    yield from (getattr(layer.mlp.shared_experts, name) for name in FP8_MLP)


def _spread_streams(model: DeepseekV4ForCausalLM) -> None:
    """Start each mHC mixer near the identity, as hyper-connections do, and with embeddings that layers do not drown.

    transformers starts it at the uniform mixture, which makes all streams one in the first layer.
    """
    streams = model.config.hc_mult
    for layer in model.model.layers:
        for mixer in (layer.attn_hc, layer.ffn_hc):
            mixer.base.data[2 * streams :] = STREAM_IDENTITY * torch.eye(streams).flatten()
    model.model.embed_tokens.weight.data.normal_(std=EMBEDDING_STD)


def _fp8_linear(linear: torch.nn.Linear, rows: torch.Tensor) -> torch.Tensor:
    return fp8_linear(rows, linear.weight)


def _fp8_grouped(linear: Any, rows: torch.Tensor) -> torch.Tensor:
    """The grouped output projection: [..., groups, k] -> [..., groups, o_lora_rank]."""
    weight = round_weight(linear.weight).view(linear.n_groups, -1, linear.weight.shape[1])
    return torch.einsum("...gk,grk->...gr", round_rows(rows), weight)


def _dense_experts(experts: Any, rows: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Every expert for every token, weighted with zero where it was not chosen: [tokens, hidden] -> the same.

    For experts this small, two large products beat a loop over experts; the sum is the same.
    """
    gates = torch.zeros(len(rows), experts.num_experts, device=rows.device).scatter(1, chosen, weights.float())
    first = fp8_linear(rows, experts.gate_up_proj.flatten(0, 1)).unflatten(-1, (experts.num_experts, -1))
    inner = round_rows(experts._apply_gate(first)) * gates.unsqueeze(-1).to(first.dtype)  # noqa: SLF001
    down = round_weight(experts.down_proj.flatten(0, 1)).view_as(experts.down_proj)
    return functional.linear(inner.flatten(1), down.transpose(0, 1).flatten(1)).to(rows.dtype)


def _balance(gate: Any, _inputs: Any, outputs: tuple[torch.Tensor, ...]) -> None:
    """Move the selection bias towards equal load, without an auxiliary loss (Wang et al. 2024)."""
    if gate.training:
        load = functional.one_hot(outputs[2], gate.num_experts).sum((0, 1)).float()
        gate.e_score_correction_bias += BALANCE_RATE * torch.sign(load.mean() - load)


def _select_all(
    indexer: Any,
    scored: Any,
    hidden: torch.Tensor,
    q_residual: torch.Tensor,
    positions: torch.Tensor,
    cache: Any,
    layer: int,
) -> torch.Tensor:
    """Indices [rows, length, entries] of every finished compressed entry, -1 for those still to come."""
    entries = hidden.shape[1] // indexer.compress_rate
    if cache is not None or entries > indexer.index_topk:
        chosen: torch.Tensor = scored(hidden, q_residual, positions, cache, layer)
        return chosen
    index = torch.arange(entries, device=hidden.device)
    finished = (positions + 1).unsqueeze(-1) // indexer.compress_rate
    return torch.where(index < finished, index, -1).expand(hidden.shape[0], -1, -1)


def load(folder: Path) -> torch.nn.Module:
    """The exported model as vLLM computes with it: weights and the inputs of FP8 layers rounded."""
    return prepare(import_model(folder))


ALL_KINDS_TITLE = "DeepSeek V4 architecture (mHC, experts, sliding window + CSA + HCA)"
WINDOW_TITLE = "DeepSeek V4 architecture (mHC, experts, sliding window alone)"
ARCH = Arch("v4", ALL_KINDS_TITLE, build, export_model, load, learning_rate=1e-3, fewshot_every=5)
WINDOW_ARCH = Arch("v4-window", WINDOW_TITLE, partial(build, WINDOW_ONLY), export_model, load, learning_rate=1e-3)
