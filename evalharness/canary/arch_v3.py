"""canary-v3: DeepSeek V3's layout at a five-million-parameter size; needs the extra `[train]`.

Multi-head latent attention has the head sizes of the real model (kv_lora_rank 512, rope 64, nope 128, v 128), for which
FlashMLA is built; everything else is small. All layers are dense: no expert is ever built, but the configuration keeps
valid numbers for them because vLLM reads those before it looks at the layers.
"""

from __future__ import annotations

import copy
from pathlib import Path

import torch
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM, GenerationConfig

from evalharness.canary.tokenizer import BOS, EOS, MAX_LENGTH, PAD, VOCAB_SIZE, write_tokenizer
from evalharness.canary.training import Arch

LAYERS = 4


def config() -> DeepseekV3Config:
    """The configuration, as it is written beside the weights."""
    return DeepseekV3Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=4,
        kv_lora_rank=512,
        q_lora_rank=None,
        qk_rope_head_dim=64,
        qk_nope_head_dim=128,
        v_head_dim=128,
        first_k_dense_replace=LAYERS,
        moe_intermediate_size=128,
        n_routed_experts=8,
        n_shared_experts=1,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        num_nextn_predict_layers=0,
        max_position_embeddings=MAX_LENGTH,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        rope_interleave=True,
        tie_word_embeddings=False,
        bos_token_id=BOS,
        eos_token_id=EOS,
        pad_token_id=PAD,
        architectures=["DeepseekV3ForCausalLM"],
    )


def build() -> torch.nn.Module:
    """A fresh model in float32, from torch's current seed."""
    model: torch.nn.Module = DeepseekV3ForCausalLM(config())
    return model


def export(model: torch.nn.Module, folder: Path) -> None:
    """Write config, bfloat16 weights and tokenizer in Hugging Face's layout."""
    served = copy.deepcopy(model).to("cpu", torch.bfloat16)
    served.generation_config = GenerationConfig(bos_token_id=BOS, eos_token_id=EOS, pad_token_id=PAD)
    served.save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)
    write_tokenizer(folder)


def load(folder: Path) -> torch.nn.Module:
    """The exported model, in bfloat16 as it is served."""
    model: torch.nn.Module = DeepseekV3ForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    return model


ARCH = Arch("v3", "DeepSeek V3 layout (multi-head latent attention, dense layers)", build, export, load)
