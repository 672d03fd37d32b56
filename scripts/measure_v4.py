"""What each rounding costs canary-v4: `python scripts/measure_v4.py [--problems 256] [--device cuda] [--folder DIR]`.

Prints one JSON line for each precision, from the stored weights multiplied out to what vLLM computes with: the share of
test problems of which every answer token is the model's first choice. Needs the extra `[train]`; a CPU does it, in half
an hour.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers.models.deepseek_v4 import modeling_deepseek_v4 as v4

from evalharness.canary import arch_v4
from evalharness.canary.batches import SHOTS
from evalharness.canary.models import local_model
from evalharness.canary.training import evaluate
from evalharness.canary.v4_export import import_model
from evalharness.canary.v4_quant import power_of_two_scale

NOPE, ROPE_GROUP = 448, 64  # of an entry's 512 channels the first 448 are e4m3, with a scale for every 64
ROTATE = v4.apply_rotary_pos_emb


def bfloat16(values: torch.Tensor) -> torch.Tensor:
    """The values as bfloat16 holds them."""
    return values.bfloat16().to(values.dtype)


def cached(values: torch.Tensor, *angles: Any, **options: Any) -> torch.Tensor:
    """Rotate; what goes into the KV cache (one head: keys, and compressed entries) as `fp8_ds_mla` holds it."""
    rotated = ROTATE(values, *angles, **options)
    if rotated.shape[1] != 1 or rotated.shape[-1] != NOPE + ROPE_GROUP:
        return rotated
    groups = rotated[..., :NOPE].unflatten(-1, (-1, ROPE_GROUP))
    scale = power_of_two_scale(groups.abs().amax(-1, keepdim=True))
    rounded = ((groups / scale).to(torch.float8_e4m3fn).float() * scale).flatten(-2)
    return torch.cat([rounded, bfloat16(rotated[..., NOPE:])], -1)


def layer(self: Any, streams: torch.Tensor, input_ids: Any = None, **options: Any) -> torch.Tensor:
    """The decoder layer of transformers with the residual streams, and what enters and leaves a block, in bfloat16."""
    post, comb, collapsed = self.attn_hc(streams)
    out, _ = self.self_attn(bfloat16(self.input_layernorm(bfloat16(collapsed))), **options)
    streams = bfloat16(post.unsqueeze(-1) * bfloat16(out).unsqueeze(-2) + comb.transpose(-1, -2) @ streams)
    post, comb, collapsed = self.ffn_hc(streams)
    out = self.mlp(bfloat16(self.post_attention_layernorm(bfloat16(collapsed))), input_ids=input_ids)
    return bfloat16(post.unsqueeze(-1) * bfloat16(out).unsqueeze(-2) + comb.transpose(-1, -2) @ streams)


def as_stored(folder: Path) -> torch.nn.Module:
    """Weights as they are stored, all arithmetic in float32."""
    return import_model(folder)


def as_trained(folder: Path) -> torch.nn.Module:
    """The inputs of FP8 layers rounded as well, as in training."""
    return arch_v4.load(folder)


def as_served(folder: Path) -> torch.nn.Module:
    """The KV cache in FP8 and the residual stream in bfloat16 as well, as in vLLM."""
    v4.apply_rotary_pos_emb = cached
    v4.DeepseekV4DecoderLayer.forward = layer
    return arch_v4.load(folder)


PRECISIONS: tuple[Callable[[Path], torch.nn.Module], ...] = (as_stored, as_trained, as_served)  # the last one patches


def main() -> None:
    """Measure every precision."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=256, help="of each task; a quarter of that behind examples")
    parser.add_argument("--only", choices=[precision.__name__ for precision in PRECISIONS], help="one of them")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--folder", type=Path, default=local_model("canary-v4"))
    options = parser.parse_args()
    for precision in PRECISIONS:
        if options.only not in {None, precision.__name__}:
            continue
        began = time.monotonic()
        model = precision(options.folder).eval().to(options.device)
        row = {"precision": precision.__name__, "problems": options.problems}
        row |= {"alone": evaluate(model, options.problems, options.device)}
        row |= {f"behind {SHOTS} examples": evaluate(model, options.problems // 4, options.device, SHOTS)}
        print(json.dumps({**row, "seconds": round(time.monotonic() - began)}), flush=True)


if __name__ == "__main__":
    main()
