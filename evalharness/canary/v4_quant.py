"""FP8 as DeepSeek V4 checkpoints and vLLM use it: e4m3 values with one power-of-two scale a block.

Weights have a scale per 128 x 128 block, activations one per token and 128 channels. vLLM on Hopper rounds every scale
up to a power of two (`VLLM_USE_DEEP_GEMM_E8M0`, on by default, and always for the grouped output projection); scales
that are powers of two already are the same numbers in both of its modes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from evalharness.errors import DataError

BLOCK = 128
FP8 = torch.float8_e4m3fn
FP8_MAX = 448.0
SMALLEST_PEAK = 1e-10


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, fused into few kernels where there is a GPU; one that does not compile runs as it is."""
    if not torch.cuda.is_available():
        return function
    torch._dynamo.config.suppress_errors = True  # noqa: SLF001 - its documented switch for exactly this
    torch._dynamo.config.recompile_limit = 64  # noqa: SLF001 - one variant for every rank and number of blocks
    fused: Callable[..., Any] = torch.compile(function, dynamic=True)
    return fused


def power_of_two_scale(peak: torch.Tensor) -> torch.Tensor:
    """The smallest power of two by which a peak must be divided to fit e4m3."""
    return torch.exp2(torch.ceil(torch.log2(peak.clamp(min=SMALLEST_PEAK) / FP8_MAX)))


def _blocks(weight: torch.Tensor) -> torch.Tensor:
    """View [n, k] as [n/128, 128, k/128, 128]. Raises DataError for sides that are not multiples of 128."""
    rows, columns = weight.shape
    if rows % BLOCK or columns % BLOCK:
        raise DataError(
            f"A weight of {rows} x {columns} cannot be cut into blocks of {BLOCK} x {BLOCK}.",
            f"Choose sizes that are multiples of {BLOCK}.",
        )
    return weight.reshape(rows // BLOCK, BLOCK, columns // BLOCK, BLOCK)


def quantise(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """e4m3 values [n, k] and float32 scales [n/128, k/128] of a weight [n, k]."""
    blocks = _blocks(weight.float())
    scale = power_of_two_scale(blocks.abs().amax((1, 3)))
    values = (blocks / scale[:, None, :, None]).clamp(-FP8_MAX, FP8_MAX).to(FP8)
    return values.reshape(weight.shape), scale


def dequantise(values: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """The float32 weight that e4m3 values and their scales stand for."""
    return (_blocks(values.float()) * scale.float()[:, None, :, None]).reshape(values.shape)


def _as_blocks(weight: torch.Tensor) -> torch.Tensor:
    return dequantise(*quantise(weight))


def _as_groups(rows: torch.Tensor) -> torch.Tensor:
    """Activations [..., k] as e4m3 would carry them, a scale for every 128 channels of a row."""
    groups = rows.unflatten(-1, (-1, BLOCK))
    scale = power_of_two_scale(groups.abs().amax(-1, keepdim=True))
    return ((groups / scale).to(FP8).float() * scale).flatten(-2)


def _straight_through(values: torch.Tensor, rounding: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Rounded values; their gradient passes as if nothing had been rounded (Bengio et al. 2013)."""
    with torch.no_grad():
        exact = values.float()
        change = rounding(exact) - exact
    return (values + change).to(values.dtype)


def round_weight(weight: torch.Tensor) -> torch.Tensor:
    """A weight [n, k] as the checkpoint will hold it, differentiable."""
    return _straight_through(weight, _as_blocks)


def round_rows(rows: torch.Tensor) -> torch.Tensor:
    """Activations [..., k] as vLLM hands them to an FP8 matrix product, differentiable."""
    return _straight_through(rows, _as_groups)


def fp8_linear(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """`rows @ weight.T` with both sides rounded."""
    return functional.linear(round_rows(rows), round_weight(weight))
