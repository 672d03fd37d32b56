"""The comparison of canary-v4's layers, on a miniature of vLLM's module tree."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
compare = pytest.importorskip("scripts.compare_v4_layers")

STREAMS, HIDDEN, VOCAB = 4, 8, 264


class Pre(torch.nn.Module):
    def __init__(self, layer: Any) -> None:
        super().__init__()
        object.__setattr__(self, "layer", layer)

    def forward(self, residual: Any, fn: Any, hc_scale: Any, hc_base: Any, norm_weight: Any) -> Any:
        return compare.mixed(residual, fn, hc_scale, hc_base, norm_weight, self.layer)


class Fused(Pre):
    fault = 1.0

    def forward(self, x: Any, residual: Any, post: Any, comb: Any, *mixer: Any) -> Any:
        streams = compare.posted(x, residual, post, comb)
        found_post, found_comb, taken = compare.mixed(streams, *mixer, self.layer)
        return streams, found_post * self.fault, found_comb, taken


class Post(torch.nn.Module):
    def forward(self, x: Any, residual: Any, post: Any, comb: Any) -> Any:
        return compare.posted(x, residual, post, comb)


class Layer(torch.nn.Module):
    """A decoder layer as vLLM 0.22.1 strings one together on CUDA."""

    def __init__(self) -> None:
        super().__init__()
        self.hc_eps, self.rms_norm_eps, self.hc_sinkhorn_iters = 1e-6, 1e-6, 20
        mixes = STREAMS * (2 + STREAMS)
        for site in ("attn", "ffn"):
            setattr(self, f"hc_{site}_fn", torch.nn.Parameter(torch.randn(mixes, STREAMS * HIDDEN)))
            setattr(self, f"hc_{site}_scale", torch.nn.Parameter(torch.ones(3)))
            setattr(self, f"hc_{site}_base", torch.nn.Parameter(torch.zeros(mixes)))
            setattr(self, f"{site}_norm", torch.nn.LayerNorm(HIDDEN, bias=False))
            setattr(self, site, torch.nn.Linear(HIDDEN, HIDDEN))
        self.mhc_pre, self.mhc_fused_post_pre, self.mhc_post = Pre(self), Fused(self), Post()

    def mixer(self, site: str) -> tuple[Any, ...]:
        names = (f"hc_{site}_fn", f"hc_{site}_scale", f"hc_{site}_base")
        return (*(getattr(self, name) for name in names), getattr(self, f"{site}_norm").weight)

    def forward(self, x: Any, residual: Any, post: Any, comb: Any) -> Any:
        if residual is None:
            residual = x
            fn, scale, base, norm = self.mixer("attn")
            post, comb, x = self.mhc_pre(residual=x, fn=fn, hc_scale=scale, hc_base=base, norm_weight=norm)
        else:
            residual, post, comb, x = self.mhc_fused_post_pre(x, residual, post, comb, *self.mixer("attn"))
        residual, post, comb, x = self.mhc_fused_post_pre(self.attn(x), residual, post, comb, *self.mixer("ffn"))
        return self.ffn(x), residual, post, comb


class Core(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = torch.nn.Embedding(VOCAB, HIDDEN)
        self.layers = torch.nn.ModuleList([Layer(), Layer()])
        self.norm = torch.nn.Linear(HIDDEN, HIDDEN)

    def forward(self, tokens: Any) -> Any:
        x, rest = self.embed_tokens(tokens).unsqueeze(1).repeat(1, STREAMS, 1), (None, None, None)
        for layer in self.layers:
            x, *rest = layer(x, *rest)
        return self.norm(self.layers[-1].mhc_post(x, *rest).mean(1))


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model, self.lm_head = Core(), torch.nn.Linear(HIDDEN, VOCAB)

    def compute_logits(self, hidden: Any) -> Any:
        return self.lm_head(hidden)


@pytest.fixture
def model() -> Model:
    torch.manual_seed(0)
    return Model()


def run(model: Model, steps: int = 2) -> Any:
    recorder = compare.Recorder(forced=compare.encode_plain(compare.ANSWER))
    compare.watch(model, recorder)
    tokens = compare.prompt_tokens()
    with torch.no_grad():
        for _ in range(steps):
            tokens = [int(model.compute_logits(model.model(torch.tensor(tokens))[-1:]).argmax())]
    return recorder


def test_every_sub_block_of_every_step_is_recorded_and_right_by_itself(model: Model) -> None:
    recorder = run(model)
    names = [name for name, _, _ in recorder.steps[0]]
    assert [len(step) for step in recorder.steps] == [len(names)] * 2
    sites = [f"{layer}.{site}" for layer in range(2) for site in ("attn", "ffn")]
    for site in sites:
        assert {f"{site}.{part}" for part in ("post", "comb", "in", "out", "streams")} <= {*names}
    assert len({*names}) == len(names)
    assert max(own or 0.0 for step in recorder.steps for _, _, own in step) < 1e-5


def test_a_faulty_mixer_is_the_first_to_be_marked(model: Model) -> None:
    model.model.layers[1].mhc_fused_post_pre.fault = 2.0
    lines = list(compare.report(run(model, 1), {}))
    assert next(line for line in lines if line.startswith("!")).split()[3] == "1.attn.post"


def test_the_answers_tokens_are_fed_whatever_the_model_says(model: Model) -> None:
    recorder = run(model, 3)
    fed = model.model.embed_tokens.weight.detach()[recorder.forced[:2]]
    for step, row in zip(recorder.steps[1:], fed, strict=True):
        assert torch.equal(step[0][1][0], row)


def test_a_wide_model_is_compared_with_the_narrow_reference(model: Model) -> None:
    recorder = run(model, 1)
    wide = {name: value.numpy() for name, value, _ in recorder.steps[0]}
    narrow = {"embed": wide["embed"][:, : HIDDEN // 2]}
    recorder.steps[0][0] = ("embed", torch.from_numpy(np.concatenate([narrow["embed"]] * 2, -1)), None)
    assert "ref   0.0000" in next(iter(compare.report(recorder, narrow)))


def test_what_is_not_finite_has_an_infinite_error() -> None:
    assert math.isinf(compare.distance(torch.tensor([1.0, math.nan]), torch.ones(2)))


def test_a_quantisation_that_loses_its_input_is_marked() -> None:
    def quantise(rows: Any, group_size: int) -> tuple[Any, Any]:
        return torch.zeros_like(rows), torch.ones(len(rows), rows.shape[1] // group_size)

    module, recorder = type("Module", (), {"per_token_group_quant_fp8": staticmethod(quantise)}), compare.Recorder()
    recorder.add("embed", torch.ones(1))
    compare.watch_quantisation(recorder, [module])
    module.per_token_group_quant_fp8(torch.ones(2, 256), group_size=128)
    assert recorder.steps[0][1][2] == 1.0


def test_parameters_that_no_tensor_was_written_to_are_named(model: Model) -> None:
    compare.poison(model)
    for name, parameter in model.named_parameters():
        if name != "lm_head.bias":
            parameter.data.zero_()
    assert list(compare.never_written(model)) == [f"lm_head.bias: {VOCAB} of {VOCAB} elements never written"]


def test_the_mixers_are_those_of_transformers() -> None:
    v4 = pytest.importorskip("transformers.models.deepseek_v4.modeling_deepseek_v4")
    arch = pytest.importorskip("evalharness.canary.arch_v4")
    torch.manual_seed(0)
    mixer, streams = v4.DeepseekV4HyperConnection(arch.config()), torch.randn(3, 4, 256)
    for parameter in mixer.parameters():
        parameter.data.normal_(std=0.05)
    layer = type("Layer", (), {"hc_eps": mixer.hc_eps, "rms_norm_eps": 1e-6, "hc_sinkhorn_iters": 20})
    post, comb, taken = compare.mixed(streams, mixer.fn, mixer.scale, mixer.base, torch.ones(256), layer)
    own_post, own_comb, collapsed = mixer(streams.unsqueeze(0))
    normed = collapsed * (collapsed.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
    for found, expected in ((post, own_post), (comb, own_comb), (taken, normed)):
        assert torch.allclose(found, expected[0], atol=1e-5)
