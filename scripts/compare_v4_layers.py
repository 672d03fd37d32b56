"""Which block of canary-v4 does vLLM compute wrongly? One line a sub-block, against transformers and against torch.

    python scripts/compare_v4_layers.py reference REF.npz       on any CPU (extra `[train]`), or on the GPU host
    python scripts/compare_v4_layers.py vllm REF.npz            on the GPU host

`reference` runs the stored weights in float32 over one prompt and its answer. `vllm` serves the widened model, eager
and alone, feeds it the same tokens (whatever it answers itself) and prints two errors for each point:

- `own`: the output against torch for the inputs that vLLM itself had. The first large one names the guilty kernel.
- `ref`: the output against the reference; grows from the first wrong block on.

Both are |a - b| / |b| over all tokens of a step: about 0.03 is FP8 rounding, 1 is nonsense. Before that it prints which
parameters no checkpoint tensor was written to (all are NaN before loading), and what was read but not written.

`--mhc torch` computes mHC's projection in torch instead of DeepGEMM: if that mends the model, the kernel
`tf32_hc_prenorm_gemm` is at fault (its A registers are reused while a WGMMA still reads them, DeepGEMM issue 449).
`--no-pdl` compiles mHC's kernels without programmatic dependent launch. `--light` looks at nothing but the logits: a
model that is right under observation and wrong without it has a race.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from evalharness.canary import v4_widen
from evalharness.canary.models import local_model
from evalharness.canary.tokenizer import BOS, encode_plain

Tensor = torch.Tensor
PROMPT = (
    "Question: Noah has 25 hats in a box. By luck Noah soon has 2 times that many. After that 9 of the hats get sold. "
    "On Monday Noah buys 9 extra hats. How many hats does Noah have now?\nAnswer:"
)
ANSWER = " 25*2=50"
FP8_BLOCK = 128


def prompt_tokens() -> list[int]:
    """The prompt as it is served."""
    return [BOS, *encode_plain(PROMPT)]


# --- reference --------------------------------------------------------------------------------------------------------


def reference(folder: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Every point of the narrow model: name -> [tokens, ...], over the prompt and the answer in one pass."""
    from evalharness.canary.v4_export import import_model

    model = import_model(folder).eval()
    points: dict[str, np.ndarray[Any, Any]] = {}

    def keep(name: str, pick: Callable[[Any, Any], Any]) -> Callable[..., None]:
        def hook(_module: Any, inputs: Any, output: Any) -> None:
            points[name] = pick(inputs, output)[0].float().numpy()

        return hook

    def output(_inputs: Any, result: Any) -> Any:
        return result[0] if isinstance(result, tuple) else result

    watched = [("embed", model.model.embed_tokens), ("head.norm", model.model.norm), ("logits", model.lm_head)]
    for i, layer in enumerate(model.model.layers):
        watched += [(f"{i}.attn.in", layer.input_layernorm), (f"{i}.attn.out", layer.self_attn)]
        watched += [(f"{i}.ffn.in", layer.post_attention_layernorm), (f"{i}.ffn.out", layer.mlp)]
        layer.ffn_hc.register_forward_hook(keep(f"{i}.attn.streams", lambda inputs, _: inputs[0]))
        watched += [(f"{i}.ffn.streams", layer)]
    for name, module in watched:
        module.register_forward_hook(keep(name, output))
    with torch.no_grad():
        model(input_ids=torch.tensor([[*prompt_tokens(), *encode_plain(ANSWER)]]), use_cache=False)
    return points


# --- vLLM -------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Recorder:
    """What vLLM computed: per step, in the order of computation, (name, output, own error)."""

    steps: list[list[tuple[str, Tensor, float | None]]] = field(default_factory=list)
    forced: list[int] = field(default_factory=list)

    def add(self, name: str, value: Tensor, own: float | None = None) -> None:
        """Append a point to the step; the embedding opens the next one."""
        if name == "embed":
            self.steps.append([])
        if self.steps:
            self.steps[-1].append((name, value.detach().float().cpu(), own))


def distance(found: Tensor, expected: Tensor) -> float:
    """|found - expected| / |expected|; infinite where `found` is not finite."""
    found, expected = found.detach().float(), expected.detach().float()
    if not bool(torch.isfinite(found).all()):
        return float("inf")
    return float((found - expected).norm() / expected.norm().clamp(min=1e-30))


def watch(model: Any, recorder: Recorder, *, light: bool = False) -> None:
    """Hooks on every sub-block of vLLM's DeepseekV4ForCausalLM, and the answer's tokens forced on its logits."""
    model.model.embed_tokens.register_forward_hook(lambda _m, _i, out: recorder.add("embed", out))
    if not light:
        _watch_blocks(model.model, recorder)
    compute = model.compute_logits

    def forced(hidden: Tensor, *rest: Any) -> Tensor:
        logits: Tensor = compute(hidden, *rest)
        recorder.add("logits", logits)
        token = recorder.forced[len(recorder.steps) - 1]
        return torch.full_like(logits, -100.0).index_fill(1, torch.tensor([token], device=logits.device), 100.0)

    model.compute_logits = forced


def _watch_blocks(core: Any, recorder: Recorder) -> None:
    for i, layer in enumerate(core.layers):
        _watch_layer(i, layer, recorder)
    core.layers[-1].mhc_post.register_forward_hook(
        lambda _m, _i, out: recorder.add(f"{len(core.layers) - 1}.ffn.streams", out)
    )
    core.norm.register_forward_hook(lambda _m, _i, out: recorder.add("head.norm", out))


def _watch_layer(i: int, layer: Any, recorder: Recorder) -> None:
    sites = {"attn": (layer.hc_attn_fn, layer.hc_attn_scale, layer.hc_attn_base, layer.attn_norm),
             "ffn": (layer.hc_ffn_fn, layer.hc_ffn_scale, layer.hc_ffn_base, layer.ffn_norm)}  # fmt: skip
    calls = {"count": 0}

    def before(_module: Any, streams: Tensor, post: Tensor, comb: Tensor, taken: Tensor) -> None:
        site = ("attn", "ffn")[calls["count"] % 2]
        calls["count"] += 1
        expected = mixed(streams, *sites[site][:3], sites[site][3].weight, layer)
        for name, found, own in zip(("post", "comb", "in"), (post, comb, taken), expected, strict=True):
            recorder.add(f"{i}.{site}.{name}", found.reshape(own.shape), distance(found.reshape(own.shape), own))

    def pre(module: Any, _inputs: Any, options: dict[str, Any], out: Any) -> None:
        before(module, options["residual"], *out)

    def fused(module: Any, inputs: Any, _options: Any, out: Any) -> None:
        streams, post, comb, taken = out
        x, old, old_post, old_comb = inputs[:4]
        expected = posted(x, old, old_post, old_comb)
        done = f"{i}.attn.streams" if calls["count"] % 2 else f"{i - 1}.ffn.streams"
        recorder.add(done, streams, distance(streams, expected))
        before(module, streams, post, comb, taken)

    layer.mhc_pre.register_forward_hook(pre, with_kwargs=True)
    layer.mhc_fused_post_pre.register_forward_hook(fused, with_kwargs=True)
    layer.attn.register_forward_hook(lambda _m, _i, out: recorder.add(f"{i}.attn.out", out))
    layer.ffn.register_forward_hook(lambda _m, _i, out: recorder.add(f"{i}.ffn.out", out))
    for name, module in layer.named_modules():
        if getattr(module, "weight_scale_inv", None) is not None and module.weight.ndim == 2:
            module.register_forward_hook(_linear(f"{i}.{name}", recorder))


def _linear(name: str, recorder: Recorder) -> Callable[..., None]:
    def hook(module: Any, inputs: Any, out: Any) -> None:
        found = out[0] if isinstance(out, tuple) else out
        scale = module.weight_scale_inv.float().repeat_interleave(FP8_BLOCK, 0).repeat_interleave(FP8_BLOCK, 1)
        expected = functional.linear(inputs[0].float(), module.weight.float() * scale)
        recorder.add(name, found, distance(found, expected))

    return hook


def watch_quantisation(recorder: Recorder, modules: Iterable[Any]) -> None:
    """Compare what vLLM's activation quantisation made of its input with that input, wherever `modules` call it."""

    def checked(quantise: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., tuple[Tensor, Tensor]]:
        def compared(rows: Tensor, group_size: int, *rest: Any, **options: Any) -> tuple[Tensor, Tensor]:
            values, scales = quantise(rows, group_size, *rest, **options)
            whole = values.float() * scales.float().repeat_interleave(group_size, -1)
            recorder.add(f"  quantised {list(rows.shape)}", whole, distance(whole, rows))
            return values, scales

        return compared

    for module in modules:
        module.per_token_group_quant_fp8 = checked(module.per_token_group_quant_fp8)


def mixed(
    streams: Tensor, fn: Tensor, scale: Tensor, base: Tensor, norm: Tensor, layer: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """The mixers before a block (Xie et al. 2026), in float32, for streams [t, n, hidden]: post [t, n], comb [t, n, n]
    and the block's input [t, hidden]; the block's own RMS norm is included, as in vLLM's fused kernel."""
    n, eps, values = streams.shape[-2], layer.hc_eps, streams.float()
    flat = values.flatten(1)
    mixes = functional.linear(flat, fn) * (flat.square().mean(-1, keepdim=True) + layer.rms_norm_eps).rsqrt()
    to_pre, to_post, to_comb = mixes.split((n, n, n * n), -1)
    pre = torch.sigmoid(to_pre * scale[0] + base[:n]) + eps
    post = 2 * torch.sigmoid(to_post * scale[1] + base[n : 2 * n])
    comb = torch.softmax((to_comb * scale[2] + base[2 * n :]).unflatten(-1, (n, n)), -1) + eps
    comb = comb / (comb.sum(-2, keepdim=True) + eps)
    for _ in range(layer.hc_sinkhorn_iters - 1):
        comb = comb / (comb.sum(-1, keepdim=True) + eps)
        comb = comb / (comb.sum(-2, keepdim=True) + eps)
    taken = (pre.unsqueeze(-1) * values).sum(-2)
    return post, comb, taken * (taken.square().mean(-1, keepdim=True) + layer.rms_norm_eps).rsqrt() * norm.float()


def posted(out: Tensor, streams: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """The mixers after a block: the new streams [t, n, hidden]."""
    t, n = streams.shape[:2]
    written = post.reshape(t, n, 1) * out.float().unsqueeze(1)
    return written + comb.reshape(t, n, n).transpose(1, 2) @ streams.float()


# --- loading ----------------------------------------------------------------------------------------------------------


def poison(model: Any) -> None:
    """NaN into every parameter; an attention sink keeps the -inf of its padding heads."""
    for name, parameter in model.named_parameters():
        if parameter.dtype == torch.float8_e4m3fn:
            parameter.data.view(torch.uint8).fill_(0x7F)
        elif parameter.is_floating_point() and not name.endswith("attn_sink"):
            parameter.data.fill_(float("nan"))


def never_written(model: Any) -> Iterator[str]:
    """Parameters with poison left in them."""
    for name, parameter in model.named_parameters():
        left = int(torch.isnan(parameter.data.float()).sum()) if parameter.is_floating_point() else 0
        if left or (name.endswith("attn_sink") and not torch.isfinite(parameter.data).any()):
            yield f"{name}: {left} of {parameter.numel()} elements never written"


def observe_loading() -> None:
    """Poison before vLLM's default loader runs, and report afterwards."""
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

    load = DefaultModelLoader.load_weights

    def observed(self: Any, model: Any, *rest: Any) -> None:
        read: dict[str, int] = {}
        own = model.load_weights

        def counted(weights: Iterable[tuple[str, Tensor]]) -> Any:
            def seen() -> Iterator[tuple[str, Tensor]]:
                for name, tensor in weights:
                    read[name] = tensor.numel()
                    yield name, tensor

            return own(seen())

        poison(model)
        model.load_weights = counted
        load(self, model, *rest)
        del model.load_weights
        room = sum(parameter.numel() for parameter in model.parameters())
        print(f"loading: {len(read)} tensors, {sum(read.values())} elements, into {room} (sinks, vocabulary padded)")
        print("\n".join(never_written(model)) or "loading: every parameter was written", flush=True)

    DefaultModelLoader.load_weights = observed  # type: ignore[method-assign]


# --- experiments ------------------------------------------------------------------------------------------------------


def mhc_in_torch() -> None:
    """The projection of mHC without DeepGEMM's kernel; the sums of all but the first split are zero."""
    from vllm.utils import deep_gemm

    def projected(x: Tensor, fn: Tensor, out: Tensor, sqrsum: Tensor, _splits: int) -> None:
        out.zero_(), sqrsum.zero_()
        out[0], sqrsum[0] = x.float() @ fn.T, x.float().square().sum(-1)

    deep_gemm.tf32_hc_prenorm_gemm = projected


def without_pdl() -> None:
    """No programmatic dependent launch in TileLang's kernels; before vLLM's mHC is imported."""
    from vllm.platforms import current_platform

    type(current_platform).is_arch_support_pdl = classmethod(lambda _platform: False)


def serve(folder: Path, options: argparse.Namespace) -> Recorder:
    """Run vLLM over the prompt, then the answer's tokens one by one."""
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_USE_V2_MODEL_RUNNER": "1"}
    os.environ |= {"VLLM_ALLOW_INSECURE_SERIALIZATION": "1", "VLLM_DEEP_GEMM_WARMUP": "skip"}
    v4_widen.HIDDEN_NEEDED = options.width
    if options.no_pdl:
        without_pdl()
    import vllm

    observe_loading()
    if options.mhc == "torch":
        mhc_in_torch()
    llm = vllm.LLM(
        model=str(v4_widen.servable(folder)), tokenizer_mode="hf", dtype="bfloat16", kv_cache_dtype="fp8",
        max_model_len=2048, max_num_seqs=1, max_num_batched_tokens=256, enforce_eager=True,
        gpu_memory_utilization=0.1, enable_prefix_caching=False,
    )  # fmt: skip
    recorder = Recorder(forced=encode_plain(ANSWER))
    if not options.light:
        from vllm.model_executor.layers.fused_moe import utils
        from vllm.model_executor.layers.quantization.utils import fp8_utils

        watch_quantisation(recorder, (fp8_utils, utils))
    llm.apply_model(lambda model: watch(model, recorder, light=options.light))
    params = vllm.SamplingParams(temperature=0.0, max_tokens=options.steps + 1, ignore_eos=True)
    llm.generate([{"prompt_token_ids": prompt_tokens()}], params, use_tqdm=False)
    return recorder


def report(recorder: Recorder, expected: dict[str, np.ndarray[Any, Any]]) -> Iterator[str]:
    """One line a point; `!` marks an error above 0.2."""
    length = len(prompt_tokens())
    for step, points in enumerate(recorder.steps):
        start, rows = (0, length) if step == 0 else (length + step - 1, 1)
        for name, found, own in points:
            ref = None
            if name in expected:
                last = 1 if name == "logits" else rows
                part = torch.from_numpy(expected[name][start + rows - last : start + rows])
                wide = found.shape[-1] // part.shape[-1]
                ref = distance(found[-last:], part.repeat(*[1] * (part.ndim - 1), wide))
            bad = "!" if max(own or 0.0, ref or 0.0) > 0.2 else " "
            nans = int((~torch.isfinite(found)).sum())
            size = float(found[torch.isfinite(found)].abs().max()) if nans < found.numel() else float("nan")
            shown = [f"{'-' if value is None else format(value, '.4f'):>8}" for value in (own, ref)]
            answer = f" {int(found[-1].argmax())}, wanted {recorder.forced[step]}" if name == "logits" else ""
            yield f"{bad} step {step} {name + answer:34} own {shown[0]} ref {shown[1]} max {size:.3g} not finite {nans}"


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("reference", "vllm"))
    parser.add_argument("file", type=Path, help="the reference; `vllm` computes it where it does not exist")
    parser.add_argument("--folder", type=Path, default=local_model("canary-v4"))
    parser.add_argument("--steps", type=int, default=3, help=f"decode steps, at most {len(ANSWER) - 1}")
    parser.add_argument("--mhc", choices=("stock", "torch"), default="stock")
    parser.add_argument("--no-pdl", action="store_true")
    parser.add_argument("--light", action="store_true")
    parser.add_argument("--width", type=int, default=v4_widen.HIDDEN_NEEDED, help="4096 is DeepSeek V4 Flash's")
    options = parser.parse_args()
    if options.what == "reference" or not options.file.is_file():
        np.savez_compressed(options.file, **reference(options.folder))
    if options.what == "vllm":
        with np.load(options.file) as stored:
            expected = dict(stored)
        for line in report(serve(options.folder, options), expected):
            print(line)


if __name__ == "__main__":
    main()
