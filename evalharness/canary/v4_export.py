"""canary-v4 in the checkpoint format that vLLM reads, and back; needs the extra `[train]`.

Names and number formats are those of DeepSeek's own checkpoints, which vLLM 0.22.1 maps in
`vllm/models/deepseek_v4/nvidia/model.py` (`_make_deepseek_v4_weights_mapper`, then `DeepseekV4Model.load_weights`):
linear layers and experts are e4m3 with a float32 scale per 128 x 128 block under `.scale` (`expert_dtype` "fp8"); mHC,
attention sinks, compressor position biases and router biases are float32; everything else is bfloat16.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import save_torch_state_dict
from safetensors.torch import load_file
from transformers import DeepseekV4Config, DeepseekV4ForCausalLM

from evalharness.canary.tokenizer import write_tokenizer
from evalharness.canary.v4_quant import BLOCK, dequantise, quantise
from evalharness.errors import DataError

State = dict[str, torch.Tensor]

MAX_PIECE_BYTES = 14_000_000
FP8, BF16, FP32 = "fp8", "bf16", "fp32"
RATIOS = {"sliding_attention": 0, "compressed_sparse_attention": 4, "heavily_compressed_attention": 128}

TOP = (
    ("embed.weight", "model.embed_tokens.weight", BF16),
    ("head.weight", "lm_head.weight", BF16),
    ("norm.weight", "model.norm.weight", BF16),
    ("hc_head_fn", "model.hc_head.hc_fn", FP32),
    ("hc_head_base", "model.hc_head.hc_base", FP32),
    ("hc_head_scale", "model.hc_head.hc_scale", FP32),
)
LAYER = (
    ("attn.wq_a.weight", "self_attn.q_a_proj.weight", FP8),
    ("attn.q_norm.weight", "self_attn.q_a_norm.weight", BF16),
    ("attn.wq_b.weight", "self_attn.q_b_proj.weight", FP8),
    ("attn.wkv.weight", "self_attn.kv_proj.weight", FP8),
    ("attn.kv_norm.weight", "self_attn.kv_norm.weight", BF16),
    ("attn.wo_a.weight", "self_attn.o_a_proj.weight", FP8),
    ("attn.wo_b.weight", "self_attn.o_b_proj.weight", FP8),
    ("attn.attn_sink", "self_attn.sinks", FP32),
    ("attn_norm.weight", "input_layernorm.weight", BF16),
    ("ffn_norm.weight", "post_attention_layernorm.weight", BF16),
    ("ffn.gate.weight", "mlp.gate.weight", BF16),
    ("ffn.gate.bias", "mlp.gate.e_score_correction_bias", FP32),
    ("ffn.shared_experts.w1.weight", "mlp.shared_experts.gate_proj.weight", FP8),
    ("ffn.shared_experts.w2.weight", "mlp.shared_experts.down_proj.weight", FP8),
    ("ffn.shared_experts.w3.weight", "mlp.shared_experts.up_proj.weight", FP8),
    *((f"hc_{site}_{part}", f"{site}_hc.{part}", FP32) for site in ("attn", "ffn") for part in ("fn", "base", "scale")),
)
COMPRESSOR = (
    ("ape", "position_bias", FP32),
    ("wkv.weight", "kv_proj.weight", BF16),
    ("wgate.weight", "gate_proj.weight", BF16),
    ("norm.weight", "kv_norm.weight", BF16),
)
INDEXER = (
    ("attn.indexer.wq_b.weight", "self_attn.compressor.indexer.q_b_proj.weight", FP8),
    ("attn.indexer.weights_proj.weight", "self_attn.compressor.indexer.scorer.weights_proj.weight", BF16),
    *(
        (f"attn.indexer.compressor.{name}", f"self_attn.compressor.indexer.{source}", form)
        for name, source, form in COMPRESSOR
    ),
)
EXPERT = (("w1", "gate_up_proj", 0), ("w3", "gate_up_proj", 1), ("w2", "down_proj", None))


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor: its name in the checkpoint, its source in the model, its number format and its place in the source.

    `expert` is the index into a stacked source; `half` picks one half of the rows of that matrix (None: all rows).
    """

    name: str
    source: str
    form: str
    expert: int | None = None
    half: int | None = None

    def slot(self, source: torch.Tensor) -> torch.Tensor:
        """The view of the source tensor that this entry stands for."""
        part = source if self.expert is None else source[self.expert]
        return part if self.half is None else part.chunk(2)[self.half]

    @property
    def scale_name(self) -> str:
        """The name of the block scales that go with an FP8 tensor."""
        return f"{self.name.removesuffix('.weight')}.scale"


def entries(config: DeepseekV4Config) -> Iterator[Entry]:
    """Every tensor of a checkpoint of that configuration."""
    yield from (Entry(*row) for row in TOP)
    for layer, kind in enumerate(config.layer_types):
        for name, source, form in _layer_rows(kind):
            yield Entry(f"layers.{layer}.{name}", f"model.layers.{layer}.{source}", form)
        for expert in range(config.n_routed_experts):
            for name, source, half in EXPERT:
                yield Entry(
                    f"layers.{layer}.ffn.experts.{expert}.{name}.weight",
                    f"model.layers.{layer}.mlp.experts.{source}", FP8, expert, half,
                )  # fmt: skip


def _layer_rows(kind: str) -> Iterable[tuple[str, str, str]]:
    yield from LAYER
    if RATIOS[kind]:
        yield from (
            (f"attn.compressor.{name}", f"self_attn.compressor.{source}", form) for name, source, form in COMPRESSOR
        )
    if RATIOS[kind] == 4:
        yield from INDEXER


# --- configuration ----------------------------------------------------------------------------------------------------

REQUIRED = {
    "model_type": "deepseek_v4",
    "head_dim": 512,
    "qk_rope_head_dim": 64,
    "sliding_window": 128,
    "index_n_heads": 64,
    "index_head_dim": 128,
    "hidden_act": "silu",
    "scoring_func": "sqrtsoftplus",
    "norm_topk_prob": True,
    "n_shared_experts": 1,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
}
MULTIPLES_OF_128 = ("hidden_size", "moe_intermediate_size", "q_lora_rank", "o_lora_rank")
COPIED = (
    *REQUIRED,
    *MULTIPLES_OF_128,
    "vocab_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "o_groups", "n_routed_experts",
    "num_experts_per_tok", "routed_scaling_factor", "swiglu_limit", "index_topk", "hc_mult", "hc_sinkhorn_iters",
    "hc_eps", "rms_norm_eps", "rope_theta", "compress_rope_theta", "max_position_embeddings",
    "num_nextn_predict_layers", "bos_token_id", "eos_token_id", "pad_token_id", "initializer_range",
)  # fmt: skip


def check_config(config: DeepseekV4Config) -> None:
    """Raise DataError for a configuration that vLLM's kernels or this exporter do not know."""
    wrong = [
        f"{key}={getattr(config, key, None)!r} (expected {value!r})"
        for key, value in REQUIRED.items()
        if getattr(config, key, None) != value
    ]
    wrong += [
        f"{key}={getattr(config, key)} (not a multiple of 128)"
        for key in MULTIPLES_OF_128
        if getattr(config, key) % BLOCK
    ]
    wrong += [f"layer kind {kind!r}" for kind in {*config.layer_types} - {*RATIOS}]
    wrong += [f"mlp layer kind {kind!r} (expected 'moe')" for kind in {*config.mlp_layer_types} - {"moe"}]
    wrong += [
        f"rope of {name!r}: {rope['rope_type']!r} (expected 'default')"
        for name, rope in config.rope_parameters.items()
        if rope["rope_type"] != "default"
    ]
    if config.num_attention_heads > 128 or config.num_attention_heads % config.o_groups:
        wrong.append(f"num_attention_heads={config.num_attention_heads} (at most 128, a multiple of o_groups)")
    if wrong:
        raise DataError(
            f"This configuration cannot be exported: {'; '.join(wrong)}.", "Change it, or extend the exporter."
        )


def served_config(config: DeepseekV4Config) -> dict[str, Any]:
    """The config.json that vLLM reads.

    Without `rope_scaling` vLLM builds another rotary embedding, whose table its FP8 kernels refuse; yarn with factor 1
    is plain rope, and vLLM takes the base of a layer from its compression ratio.
    """
    return {
        "architectures": ["DeepseekV4ForCausalLM"],
        **{key: getattr(config, key) for key in COPIED},
        "compress_ratios": [RATIOS[kind] for kind in config.layer_types],
        "num_hash_layers": 0,
        "topk_method": "noaux_tc",
        "expert_dtype": "fp8",
        "torch_dtype": "bfloat16",
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 1.0,
            "original_max_position_embeddings": config.max_position_embeddings,
            "beta_fast": 32,
            "beta_slow": 1,
        },
        "quantization_config": {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "scale_fmt": "ue8m0",
            "activation_scheme": "dynamic",
            "weight_block_size": [BLOCK, BLOCK],
        },
    }


def model_config(served: Mapping[str, Any]) -> DeepseekV4Config:
    """The configuration of transformers for a config.json that `served_config` made."""
    known = {key: served[key] for key in COPIED if key not in ("model_type", "qk_rope_head_dim")}
    return DeepseekV4Config(
        **known,
        compress_ratios=list(served["compress_ratios"]),
        qk_rope_head_dim=served["qk_rope_head_dim"],
        num_hash_layers=served["num_hash_layers"],
        architectures=["DeepseekV4ForCausalLM"],
    )


# --- weights ----------------------------------------------------------------------------------------------------------


def _expected(config: DeepseekV4Config) -> dict[str, torch.Size]:
    with torch.device("meta"):
        return {name: tensor.shape for name, tensor in DeepseekV4ForCausalLM(config).state_dict().items()}


def _check_tensors(found: Mapping[str, torch.Size], expected: Mapping[str, torch.Size], what: str) -> None:
    problems = [f"{name} is missing" for name in sorted({*expected} - {*found})]
    problems += [f"{name} is unknown" for name in sorted({*found} - {*expected})]
    problems += [
        f"{name} is {list(found[name])} instead of {list(shape)}"
        for name, shape in expected.items()
        if name in found and found[name] != shape
    ]
    if problems:
        more = f" and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise DataError(
            f"The {what} does not fit its configuration: {', '.join(problems[:5])}{more}.", "Nothing was written."
        )


def to_checkpoint(state: State, config: DeepseekV4Config) -> State:
    """The checkpoint's tensors, on the CPU. Raises DataError for a missing, unknown or misshapen tensor."""
    _check_tensors({name: tensor.shape for name, tensor in state.items()}, _expected(config), "model")
    served: State = {}
    for entry in entries(config):
        tensor = entry.slot(state[entry.source]).detach().to("cpu", torch.float32)
        if entry.form == FP8:
            served[entry.name], served[entry.scale_name] = quantise(tensor)
        else:
            served[entry.name] = tensor.to(torch.bfloat16 if entry.form == BF16 else torch.float32).contiguous()
    return served


def from_checkpoint(served: State, config: DeepseekV4Config) -> State:
    """The model's state in float32, FP8 multiplied out. Raises DataError as `to_checkpoint` does."""
    shapes = _expected(config)
    _check_tensors(
        {name: tensor.shape for name, tensor in served.items()}, _checkpoint_shapes(config, shapes), "checkpoint"
    )
    state = {name: torch.empty(shape) for name, shape in shapes.items()}
    for entry in entries(config):
        tensor = served[entry.name]
        whole = dequantise(tensor, served[entry.scale_name]) if entry.form == FP8 else tensor.float()
        entry.slot(state[entry.source]).copy_(whole)
    return state


def _checkpoint_shapes(config: DeepseekV4Config, shapes: Mapping[str, torch.Size]) -> dict[str, torch.Size]:
    found: dict[str, torch.Size] = {}
    for entry in entries(config):
        found[entry.name] = shape = entry.slot(torch.empty(shapes[entry.source], device="meta")).shape
        if entry.form == FP8:
            found[entry.scale_name] = torch.Size(side // BLOCK for side in shape)
    return found


# --- folders ----------------------------------------------------------------------------------------------------------


def export_model(model: torch.nn.Module, folder: Path) -> None:
    """Write weights in pieces of at most 14 MB, config.json, generation_config.json and the tokenizer.

    Everything is checked and converted before the first file is written; see `check_config` and `to_checkpoint`.
    """
    config: Any = model.config
    check_config(config)
    served = to_checkpoint(model.state_dict(), config)
    folder.mkdir(parents=True, exist_ok=True)
    save_torch_state_dict(served, folder, max_shard_size=MAX_PIECE_BYTES)
    _write_json(folder / "config.json", served_config(config))
    _write_json(folder / "generation_config.json", {"eos_token_id": config.eos_token_id, "do_sample": False})
    write_tokenizer(folder)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")


def read_checkpoint(folder: Path) -> tuple[dict[str, Any], State]:
    """config.json and all tensors of a folder. Raises DataError where there is none."""
    pieces = sorted(folder.glob("*.safetensors"))
    if not pieces or not (folder / "config.json").is_file():
        raise DataError(f"{folder} holds no checkpoint.", "Name a folder with config.json and *.safetensors.")
    tensors: State = {}
    for piece in pieces:
        tensors |= load_file(piece)
    return json.loads((folder / "config.json").read_text()), tensors


def import_model(folder: Path) -> DeepseekV4ForCausalLM:
    """The model of transformers in float32 from an exported folder, FP8 multiplied out."""
    served, tensors = read_checkpoint(folder)
    config = model_config(served)
    check_config(config)
    model = DeepseekV4ForCausalLM(config)
    model.load_state_dict(from_checkpoint(tensors, config))
    return model
