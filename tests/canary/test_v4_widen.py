"""A widened canary-v4 is the same function, and what cannot be widened is refused before a file is written."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors import deserialize

from evalharness.canary.models import local_model
from evalharness.canary.v4_widen import READS, WRITES, factor_for, role_of, servable, widen
from evalharness.errors import DataError

FACTOR = 2
HIDDEN = 256


@pytest.fixture(scope="module")
def narrow() -> Path:
    folder = local_model("canary-v4")
    assert folder is not None
    return folder


@pytest.fixture(scope="module")
def wide(narrow: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wide") / "v4"
    widen(narrow, out, FACTOR)
    return out


@pytest.fixture
def copy(narrow: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(narrow, tmp_path / "copy"))


def _items(piece: Path) -> list[tuple[str, dict[str, Any]]]:
    return list(deserialize(piece.read_bytes()))  # type: ignore[no-untyped-call]


def read(folder: Path) -> dict[str, dict[str, Any]]:
    return dict(item for piece in sorted(folder.glob("*.safetensors")) for item in _items(piece))


def e4m3() -> NDArray[np.float32]:
    """The value of each of the 256 codes of float8 e4m3 (4 bits of exponent with bias 7, 3 of fraction)."""
    codes = np.arange(256)
    exponent, fraction = codes >> 3 & 15, codes & 7
    size = np.where(exponent == 0, fraction / 8 * 2.0**-6, (1 + fraction / 8) * 2.0 ** (exponent - 7.0))
    return np.asarray(np.where(codes < 128, size, -size), np.float32)


def matrix(tensors: dict[str, dict[str, Any]], name: str) -> NDArray[np.float32]:
    """A tensor as float32, FP8 multiplied out."""
    stored = tensors[name]
    shape, data = stored["shape"], stored["data"]
    if stored["dtype"] == "F8_E4M3":
        scale = matrix(tensors, name.removesuffix(".weight") + ".scale")
        return e4m3()[np.frombuffer(data, np.uint8)].reshape(shape) * scale.repeat(128, 0).repeat(128, 1)
    if stored["dtype"] == "BF16":
        return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(shape)
    return np.frombuffer(data, np.float32).reshape(shape)


def linears(tensors: dict[str, dict[str, Any]]) -> list[str]:
    return [name for name in tensors if name.endswith(".weight") and role_of(name) in (READS, WRITES)]


def test_matrices_that_read_or_write_the_stream_do_the_same_on_the_widened_one(narrow: Path, wide: Path) -> None:
    before, after = read(narrow), read(wide)
    rng = np.random.default_rng(0)
    names = [name for name in linears(before) if "experts." not in name or "experts.3." in name]
    assert len(names) > 40
    for name in names:
        if before[name]["shape"] == [HIDDEN]:
            continue
        old, new = matrix(before, name), matrix(after, name)
        x = rng.standard_normal(old.shape[1], np.float32)
        if role_of(name) == READS:
            np.testing.assert_allclose(new @ np.tile(x, FACTOR), old @ x, rtol=0, atol=1e-4, err_msg=name)
        else:
            np.testing.assert_allclose(new @ x, np.tile(old @ x, FACTOR), rtol=0, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("name", ["hc_head_fn", "layers.2.hc_attn_fn", "layers.3.hc_ffn_fn"])
def test_hyper_connections_read_every_stream_apart(narrow: Path, wide: Path, name: str) -> None:
    old, new = matrix(read(narrow), name), matrix(read(wide), name)
    streams = np.random.default_rng(1).standard_normal((4, HIDDEN), np.float32)
    np.testing.assert_allclose(new @ np.tile(streams, FACTOR).ravel(), old @ streams.ravel(), rtol=0, atol=1e-4)


def test_norms_and_the_embedding_repeat_and_nothing_else_changes(narrow: Path, wide: Path) -> None:
    before, after = read(narrow), read(wide)
    assert before.keys() == after.keys()
    for name in ("norm.weight", "layers.0.attn_norm.weight", "layers.3.ffn_norm.weight", "embed.weight"):
        old = matrix(before, name)
        np.testing.assert_array_equal(matrix(after, name), np.concatenate([old] * FACTOR, axis=-1))
    apart = [name for name in before if role_of(name).axis is None]
    assert {re.sub(r".*\.", "", name) for name in apart} >= {"attn_sink", "ape", "bias", "scale", "weight"}
    assert all(before[name] == after[name] for name in apart)


def test_the_folder_is_whole(narrow: Path, wide: Path) -> None:
    old, new = (json.loads((folder / "config.json").read_text()) for folder in (narrow, wide))
    assert new == {**old, "hidden_size": FACTOR * HIDDEN}
    assert {file.name for file in wide.iterdir()} == {
        "config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"
    }  # fmt: skip


def test_vllm_is_served_4096_channels_from_a_cache(copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    first = servable(copy)
    assert json.loads((first / "config.json").read_text())["hidden_size"] == 4096
    assert first.is_relative_to(tmp_path / "cache")
    made = (first / "model.safetensors").stat().st_mtime_ns
    assert servable(copy) == first
    assert (first / "model.safetensors").stat().st_mtime_ns == made
    (copy / "generation_config.json").write_text("{}")
    assert servable(copy) != first
    assert len(list(first.parent.iterdir())) == 2


@pytest.mark.parametrize(
    "config", [{"model_type": "deepseek_v3", "hidden_size": 256}, {"model_type": "deepseek_v4", "hidden_size": 4096}]
)
def test_other_models_are_served_as_they_are(tmp_path: Path, config: dict[str, Any]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert servable(tmp_path) == tmp_path


@pytest.mark.parametrize(("hidden", "factor"), [(128, 32), (256, 16), (384, 32), (2048, 2), (4096, 1), (7168, 1)])
def test_a_narrow_model_gets_a_multiple_of_4096_and_no_other_is_touched(hidden: int, factor: int) -> None:
    assert factor_for({"model_type": "deepseek_v4", "hidden_size": hidden}) == factor


def edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda folder: (folder / "model-00002-of-00002.safetensors").unlink(), "is not whole: .* is missing"),
        (lambda folder: (folder / "model-00002-of-00002.safetensors").write_bytes(b"garbage"), "cannot be read"),
        (lambda folder: edit(folder / "config.json", hidden_size=512), r"axis \d should hold"),
        (lambda folder: (folder / "config.json").unlink(), "no config.json"),
    ],
)
def test_a_spoilt_checkpoint_is_refused_before_anything_is_written(
    copy: Path, tmp_path: Path, spoil: Any, said: str
) -> None:
    spoil(copy)
    with pytest.raises(DataError, match=said):
        widen(copy, tmp_path / "out", FACTOR)
    assert not (tmp_path / "out").exists()


def test_a_factor_that_is_not_exact_is_refused(narrow: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="3 times exactly"):
        widen(narrow, tmp_path / "out", 3)


def test_a_tensor_that_v4_does_not_have_is_named() -> None:
    with pytest.raises(DataError, match=r"'layers\.0\.self_attn\.q_proj\.weight' is no tensor"):
        role_of("layers.0.self_attn.q_proj.weight")


def test_a_cache_that_cannot_be_written_is_said(copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(DataError, match="Point XDG_CACHE_HOME elsewhere"):
        servable(copy)


def test_the_committed_checkpoint_keeps_to_its_limits(narrow: Path) -> None:
    sizes = [file.stat().st_size for file in narrow.iterdir()]
    assert max(sizes) <= 14_000_000
    assert sum(sizes) <= 24_000_000
    config = json.loads((narrow / "config.json").read_text())
    assert {0, 4, 128} == set(config["compress_ratios"])
    assert all(role_of(name) for name in read(narrow))
