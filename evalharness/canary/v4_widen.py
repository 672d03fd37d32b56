"""canary-v4 made wide enough for vLLM's kernels, computing the same function; needs numpy and safetensors only.

vLLM 0.22.1 walks over the residual stream of mHC in pieces, and two of its kernels take a wide one for granted
(vllm/_tilelang_ops.py, called in vllm/model_executor/kernels/mhc/tilelang.py):

- `mhc_fused_tilelang`, for at most 16 tokens: each block walks over `hidden_size` divided by 8 in steps of 256
  channels, without a remainder. Below 2048 channels the loop is empty and the stream stays uninitialised memory.
- `mhc_pre_big_fuse_with_norm_tilelang`: pieces of 1024 channels, copied three ahead. With two pieces TileLang 0.1.9
  waits for "all but the last two" copies of two, so for none: half of the block's input is read before it is there.
  scripts/pipeline_waits.py prints that; docs/LOG.md says what it did to the answers.

DeepSeek V4 Flash has 4096 channels, and so has the canary when it is served. A committed checkpoint that wide would
take 200 MB, so a narrow one is trained, and every channel of its residual stream is repeated.

Repeating all channels changes no RMS norm. A matrix that reads the stream sums every channel `factor` times, so it is
divided by that; one that writes it only repeats its rows. With a power of two all of this is exact, in bfloat16 and in
the scales of FP8 blocks too; what is left is the order of summation.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import struct
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, deserialize

from evalharness.errors import DataError

Stored = Mapping[str, Any]  # a tensor as safetensors hands it out: dtype, shape and data (bytes)

HIDDEN_NEEDED = 4096
BLOCK = 128  # channels of an FP8 block
NUMPY_TYPES = {"F8_E4M3": "u1", "BF16": "<u2", "F32": "<f4"}
INDEX = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class Role:
    """How a tensor meets the residual stream: along which axis (None: not at all), and whether it reads it.

    `streams`: that axis holds so many parallel streams of `hidden_size` channels, one after another.
    """

    axis: int | None
    reads: bool = False
    streams: int = 1


APART, READS, WRITES, NORM, EMBEDS = Role(None), Role(1, reads=True), Role(0), Role(0), Role(1)
# The first pattern that fits a whole name, without `layers.N.`, decides. `P` ends a linear layer's tensors.
P = r"\.(weight|scale)"
ROLES: tuple[tuple[str, Role], ...] = (
    (r"embed\.weight", EMBEDS),
    (r"head\.weight", READS),
    (r"(attn_|ffn_)?norm\.weight", NORM),
    (r"hc_(attn|ffn|head)_fn", Role(1, reads=True, streams=4)),
    (rf"attn\.(wq_a|wkv){P}", READS),
    (rf"attn\.wo_b{P}", WRITES),
    (r"attn\.(indexer\.)?compressor\.(wkv|wgate)\.weight", READS),
    (r"attn\.indexer\.weights_proj\.weight", READS),
    (r"ffn\.gate\.weight", READS),
    (rf"ffn\.(shared_experts|experts\.\d+)\.(w1|w3){P}", READS),
    (rf"ffn\.(shared_experts|experts\.\d+)\.w2{P}", WRITES),
    (r"hc_(attn|ffn|head)_(base|scale)", APART),
    (r"attn\.(attn_sink|(q_norm|kv_norm)\.weight)", APART),
    (rf"attn\.(wq_b|wo_a|indexer\.wq_b){P}", APART),
    (r"attn\.(indexer\.)?compressor\.(ape|norm\.weight)", APART),
    (r"ffn\.gate\.bias", APART),
)


def role_of(name: str) -> Role:
    """The role of a tensor by its name in the checkpoint; raises DataError for a name that V4 does not have."""
    local = re.sub(r"^layers\.\d+\.", "", name)
    for pattern, role in ROLES:
        if re.fullmatch(pattern, local):
            return role
    raise DataError(f"{name!r} is no tensor of a DeepSeek V4 checkpoint.", "Only such checkpoints can be widened.")


def factor_for(config: Mapping[str, Any]) -> int:
    """How often the channels of a model are repeated for vLLM's kernels, a power of two; 1 for a V4 of 4096 channels
    and more, as all that DeepSeek published are, and for every other model."""
    hidden = int(config.get("hidden_size", HIDDEN_NEEDED))
    if config.get("model_type") != "deepseek_v4" or hidden >= HIDDEN_NEEDED:
        return 1
    return HIDDEN_NEEDED // math.gcd(hidden, HIDDEN_NEEDED)


def servable(folder: Path) -> Path:
    """The folder that vLLM can serve the model of `folder` from: itself, or a widened copy in the cache.

    The cache is `evalharness/models` in XDG_CACHE_HOME (else ~/.cache); a copy is named after the bytes it was made of.

    Raises:
        DataError: see `widen`; or the cache cannot be written.
    """
    factor = factor_for(read_config(folder))
    if factor == 1:
        return folder
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "evalharness" / "models"
    out = cache / f"{folder.name}-x{factor}-{_digest(folder)}"
    if not out.is_dir():
        try:
            _widen_whole(folder, out, factor)
        except OSError as error:
            raise DataError(f"{out.parent} cannot be written: {error}.", "Point XDG_CACHE_HOME elsewhere.") from error
    return out


def _digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for file in (Path(__file__), *sorted(folder.iterdir())):
        if file.suffix in (".py", ".json", ".safetensors"):
            digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()[:16]


def _widen_whole(folder: Path, out: Path, factor: int) -> None:
    """`widen` under a temporary name, so that no other process finds half a folder."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent) as scratch:
        widen(folder, Path(scratch) / out.name, factor)
        try:
            (Path(scratch) / out.name).rename(out)
        except OSError:  # another process was first
            if not out.is_dir():
                raise


def widen(folder: Path, out: Path, factor: int) -> None:
    """Write the model of `folder` into the new folder `out`, every channel of its residual stream `factor` times.

    Everything is read, checked and computed before the first file is written.

    Raises:
        DataError: `folder` holds no whole V4 checkpoint, a tensor does not fit config.json, or `factor` is no power
            of two.
    """
    if factor < 1 or factor & (factor - 1):
        raise DataError(f"A model cannot be widened {factor} times exactly.", "Give a power of two.")
    config = read_config(folder)
    hidden = int(config["hidden_size"])
    wide = {name: _widened(name, stored, hidden, factor) for name, stored in _read_tensors(folder).items()}
    out.mkdir(parents=True, exist_ok=True)
    _write_tensors(wide, out / "model.safetensors")
    (out / "config.json").write_text(json.dumps({**config, "hidden_size": hidden * factor}, indent=2) + "\n")
    for file in folder.glob("*.json"):
        if file.name not in ("config.json", INDEX):
            shutil.copyfile(file, out / file.name)


def read_config(folder: Path) -> dict[str, Any]:
    """config.json of a folder; raises DataError where there is none to be read."""
    try:
        config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{folder} has no config.json that can be read.", "Name the folder of a model.") from error
    return config


def _read_tensors(folder: Path) -> dict[str, Stored]:
    tensors: dict[str, Stored] = {}
    for piece in sorted(folder.glob("*.safetensors")):
        try:
            tensors.update(deserialize(piece.read_bytes()))  # type: ignore[no-untyped-call]
        except (OSError, SafetensorError) as error:
            raise DataError(f"{piece.name} cannot be read: {error}.", "Restore the file.") from error
    index = folder / INDEX
    named = json.loads(index.read_text())["weight_map"] if index.is_file() else tensors
    missing = sorted({*named} - {*tensors})
    if missing or not tensors:
        what = f"{missing[0]} is missing" if missing else "there are no tensors"
        raise DataError(f"The checkpoint in {folder} is not whole: {what}.", "Restore its *.safetensors files.")
    return tensors


def _write_tensors(tensors: Mapping[str, Stored], path: Path) -> None:
    """The safetensors format: length of the header (8 bytes), the header as JSON, the data one after another.

    Written by hand because the library's raw writer takes other arguments from release to release.
    """
    names = sorted(tensors, key=lambda name: (NUMPY_TYPES[tensors[name]["dtype"]][-1], name), reverse=True)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in names:  # the widest number format first, so that each tensor is aligned
        start, end = end, end + len(tensors[name]["data"])
        header[name] = {**{key: tensors[name][key] for key in ("dtype", "shape")}, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.writelines(tensors[name]["data"] for name in names)


def _widened(name: str, stored: Stored, hidden: int, factor: int) -> Stored:
    role = role_of(name)
    if stored["dtype"] not in NUMPY_TYPES:
        raise DataError(f"{name} is stored as {stored['dtype']}.", f"Store it as {', '.join(NUMPY_TYPES)}.")
    if role.axis is None or factor == 1:
        return stored
    values = _array(stored)
    channels = hidden // BLOCK if name.endswith(".scale") else hidden
    if values.ndim <= role.axis or values.shape[role.axis] != role.streams * channels:
        raise DataError(
            f"{name} is {list(values.shape)}; axis {role.axis} should hold {role.streams} x {channels}.",
            "Use the config.json that belongs to these weights.",
        )
    wide = _repeated(values, role, channels, factor)
    # The values of an FP8 matrix stay as they are: its scales carry the division.
    return _stored(wide if stored["dtype"] == "F8_E4M3" or not role.reads else _divided(wide, factor), stored["dtype"])


def _repeated(values: NDArray[Any], role: Role, channels: int, factor: int) -> NDArray[Any]:
    assert role.axis is not None  # noqa: S101 - the caller's condition
    streams = values.reshape(*values.shape[: role.axis], role.streams, channels, *values.shape[role.axis + 1 :])
    wide = np.concatenate([streams] * factor, axis=role.axis + 1)
    return wide.reshape(*values.shape[: role.axis], -1, *values.shape[role.axis + 1 :])


def _divided(values: NDArray[Any], factor: int) -> NDArray[Any]:
    if values.dtype == np.dtype("<u2"):  # bfloat16: the upper half of a float32
        exact = (values.astype("<u4") << 16).view("<f4") / np.float32(factor)
        return (exact.view("<u4") >> 16).astype("<u2")
    return values / np.float32(factor)


def _array(stored: Stored) -> NDArray[Any]:
    return np.frombuffer(stored["data"], NUMPY_TYPES[stored["dtype"]]).reshape(stored["shape"])


def _stored(values: NDArray[Any], dtype: str) -> Stored:
    return {"dtype": dtype, "shape": list(values.shape), "data": np.ascontiguousarray(values).tobytes()}
