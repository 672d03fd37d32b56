"""canary-v4 in training and in its checkpoint format: the same model before and after, and refusals in time."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from transformers import DeepseekV4ForCausalLM  # noqa: E402

from evalharness.canary import arch_v4, v4_export, v4_quant  # noqa: E402
from evalharness.canary.batches import SHOTS, heldout_batches  # noqa: E402
from evalharness.canary.models import local_model  # noqa: E402
from evalharness.canary.training import exact_share  # noqa: E402
from evalharness.canary.v4_widen import widen  # noqa: E402
from evalharness.errors import DataError  # noqa: E402

Change = Callable[[Any], object]
KINDS = (0, 4, 128)
LONG = 264  # tokens: several entries of every kind of compressed attention


@pytest.fixture(scope="module")
def model() -> Any:
    """A model of all layer kinds with random weights of which every one counts."""
    torch.manual_seed(0)
    fresh = DeepseekV4ForCausalLM(arch_v4.config(KINDS)).eval()
    for name, parameter in fresh.named_parameters():
        if name.endswith(("norm.weight", "sinks", "base", "scale", "position_bias", "bias")):
            parameter.data += 0.3 * torch.randn_like(parameter)
    return fresh


@pytest.fixture(scope="module")
def folder(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("v4") / "model"
    v4_export.export_model(model, out)
    return out


def logits(model: Any, length: int = LONG) -> Any:
    tokens = torch.randint(3, 200, (1, length), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return model(input_ids=tokens, use_cache=False).logits


def tensors(folder: Path) -> dict[str, Any]:
    return v4_export.read_checkpoint(folder)[1]


def test_what_is_read_back_is_what_was_rounded_and_rounding_it_again_changes_nothing(
    model: Any, folder: Path, tmp_path: Path
) -> None:
    read = v4_export.import_model(folder)
    for name, weight in read.state_dict().items():
        exact = model.state_dict()[name]
        assert (weight - exact).abs().max() <= exact.abs().max() / 16, name
    v4_export.export_model(read, tmp_path / "again")
    first, second = tensors(folder), tensors(tmp_path / "again")
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name].view(torch.uint8), second[name].view(torch.uint8)) for name in first)


def test_logits_differ_by_the_rounding_alone(model: Any, folder: Path) -> None:
    exact, read = logits(model), logits(v4_export.import_model(folder).eval())
    assert 0 < float((exact - read).abs().mean()) < 0.1 * float(exact.std())


def test_the_files_are_vllm_s(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["DeepseekV4ForCausalLM"]
    assert config["compress_ratios"] == list(KINDS)
    assert config["quantization_config"]["weight_block_size"] == [128, 128]
    found = tensors(folder)
    assert found["layers.1.attn.wq_b.weight"].dtype == torch.float8_e4m3fn
    scale = found["layers.1.ffn.experts.7.w2.scale"]
    assert torch.equal(torch.exp2(torch.log2(scale).round()), scale)
    assert max(file.stat().st_size for file in folder.iterdir()) <= v4_export.MAX_PIECE_BYTES


def test_a_widened_checkpoint_answers_alike(folder: Path, tmp_path: Path) -> None:
    widen(folder, tmp_path / "wide", 2)
    narrow, wide = (v4_export.import_model(path).eval() for path in (folder, tmp_path / "wide"))
    assert wide.config.hidden_size == 2 * narrow.config.hidden_size
    torch.testing.assert_close(logits(wide), logits(narrow), rtol=0, atol=1e-4)


def test_the_replacements_for_training_change_nothing_but_rounding(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arch_v4, "fp8_linear", torch.nn.functional.linear)
    monkeypatch.setattr(arch_v4, "round_rows", lambda rows: rows)
    monkeypatch.setattr(arch_v4, "round_weight", lambda weight: weight)
    exact = logits(model)
    twin = DeepseekV4ForCausalLM(model.config).eval()
    twin.load_state_dict(model.state_dict())
    torch.testing.assert_close(logits(arch_v4.prepare(twin)), exact, rtol=0, atol=1e-4)


def test_training_moves_every_weight_but_the_indexer_s() -> None:
    torch.manual_seed(0)
    model = arch_v4.build(KINDS).train()
    tokens = torch.randint(3, 200, (1, 136))
    model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
    still = {name for name, weight in model.named_parameters() if weight.grad is None or not weight.grad.any()}
    assert all(".indexer." in name or ".experts." in name for name in still), still


@pytest.mark.slow
def test_the_committed_canary_answers_in_the_precision_that_is_served() -> None:
    folder = local_model("canary-v4")
    assert folder is not None
    served = arch_v4.load(folder).eval()
    assert exact_share(served, "gsm8k_canary", 5, "cpu") >= 0.8
    assert exact_share(served, "aime25_canary", 1, "cpu", shots=SHOTS) == 1
    (batch,) = heldout_batches("aime25_canary", 1, shots=SHOTS)
    assert batch.tokens.shape[1] > 512


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda state: state.pop("model.layers.1.self_attn.sinks"), "sinks is missing"),
        (lambda state: state.update(extra=torch.zeros(1)), "extra is unknown"),
        (
            lambda state: state.update({"lm_head.weight": torch.zeros(264, 255)}),
            r"\[264, 255\] instead of \[264, 256\]",
        ),
    ],
)
def test_a_model_with_wrong_tensors_is_refused(model: Any, change: Change, said: str) -> None:
    state = dict(model.state_dict())
    change(state)
    with pytest.raises(DataError, match=said):
        v4_export.to_checkpoint(state, model.config)


def drop(served: dict[str, Any]) -> None:
    del served["layers.2.ffn.experts.3.w1.scale"]


def shear(served: dict[str, Any]) -> None:
    served["layers.0.attn.wo_b.weight"] = served["layers.0.attn.wo_b.weight"][:128]


@pytest.mark.parametrize(
    ("change", "said"), [(drop, r"w1\.scale is missing"), (shear, r"wo_b\.weight is \[128, 256\] instead of")]
)
def test_a_checkpoint_with_wrong_tensors_is_refused(folder: Path, change: Change, said: str) -> None:
    served, found = v4_export.read_checkpoint(folder)
    change(found)
    with pytest.raises(DataError, match=said):
        v4_export.from_checkpoint(found, v4_export.model_config(served))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"head_dim": 256}, "head_dim=256"),
        ({"hidden_size": 200}, "hidden_size=200"),
        ({"scoring_func": "sigmoid"}, "scoring_func='sigmoid'"),
        ({"layer_types": ["full_attention"] * 3}, "layer kind 'full_attention'"),
        ({"mlp_layer_types": ["hash_moe"] * 3}, "mlp layer kind 'hash_moe'"),
        ({"num_attention_heads": 7}, "num_attention_heads=7"),
    ],
)
def test_an_unknown_configuration_is_refused_before_anything_is_written(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    config = arch_v4.config(KINDS)
    for key, value in changes.items():
        setattr(config, key, value)
    stand_in = type("Model", (), {"config": config, "state_dict": dict})()
    with pytest.raises(DataError, match=said):
        v4_export.export_model(stand_in, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_without_a_checkpoint_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no checkpoint"):
        v4_export.import_model(tmp_path)
    shutil.copyfile(folder / "config.json", tmp_path / "config.json")
    with pytest.raises(DataError, match="holds no checkpoint"):
        v4_export.import_model(tmp_path)


# --- FP8 --------------------------------------------------------------------------------------------------------------


def test_a_scale_is_the_smallest_power_of_two_that_fits() -> None:
    peaks = torch.tensor([448.0, 448.1, 1.0, 0.0, 3e4])
    scales = v4_quant.power_of_two_scale(peaks)
    assert scales[:3].tolist() == [1.0, 2.0, 2.0**-8]
    assert ((peaks / scales) <= 448.0).all()
    assert ((peaks / scales)[[0, 1, 2, 4]] > 224.0).all()


def test_a_matrix_is_rounded_by_at_most_a_16th_of_its_values() -> None:
    weight = torch.randn(256, 384, generator=torch.Generator().manual_seed(0))
    read = v4_quant.dequantise(*v4_quant.quantise(weight))
    assert ((read - weight).abs() <= weight.abs() / 16 + 1e-4).all()
    assert not torch.equal(read, weight)
    with pytest.raises(DataError, match="100 x 128 cannot be cut"):
        v4_quant.quantise(torch.zeros(100, 128))


def test_rounding_passes_gradients_as_if_it_were_not_there() -> None:
    weight = torch.randn(128, 128, requires_grad=True)
    v4_quant.round_weight(weight).sum().backward()
    assert torch.equal(weight.grad, torch.ones_like(weight))
