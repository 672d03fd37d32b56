"""A model folder with random weights in Hugging Face's DeepSeek V3 layout, small enough to write in a test."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalharness.canary.tokenizer import EOS, VOCAB_SIZE, write_tokenizer
from evalharness.engines.base import Completion, Engine, Request, create_engine
from evalharness.spec import ArmSpec, RunSpec, parse_spec

Arrays = dict[str, NDArray[np.float32]]

CONFIG: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "q_lora_rank": None,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "first_k_dense_replace": 2,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "eos_token_id": EOS,
}
REAL_HEADS = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}


def random_tensors(config: Mapping[str, Any], seed: int = 0) -> Arrays:
    """Weights that keep activations near 1, with attention sharp enough to matter."""
    rng = np.random.default_rng(seed)
    c, heads = config, config["num_attention_heads"]
    query = heads * (c["qk_nope_head_dim"] + c["qk_rope_head_dim"])

    def matrix(rows: int, columns: int, gain: float = 1.0) -> NDArray[np.float32]:
        return (rng.standard_normal((rows, columns)) * gain / np.sqrt(columns)).astype(np.float32)

    def norm(width: int) -> NDArray[np.float32]:
        return rng.uniform(0.8, 1.2, width).astype(np.float32)

    tensors = {
        "model.embed_tokens.weight": matrix(c["vocab_size"], c["hidden_size"], 8.0),
        "model.norm.weight": norm(c["hidden_size"]),
    }
    if not c.get("tie_word_embeddings"):
        tensors["lm_head.weight"] = matrix(c["vocab_size"], c["hidden_size"], 3.0)
    for index in range(c["num_hidden_layers"]):
        prefix = f"model.layers.{index}."
        attention, mlp = prefix + "self_attn.", prefix + "mlp."
        if c["q_lora_rank"] is None:
            tensors[attention + "q_proj.weight"] = matrix(query, c["hidden_size"], 2.0)
        else:
            tensors[attention + "q_a_proj.weight"] = matrix(c["q_lora_rank"], c["hidden_size"])
            tensors[attention + "q_a_layernorm.weight"] = norm(c["q_lora_rank"])
            tensors[attention + "q_b_proj.weight"] = matrix(query, c["q_lora_rank"], 2.0)
        latent = c["kv_lora_rank"] + c["qk_rope_head_dim"]
        kv_up = heads * (c["qk_nope_head_dim"] + c["v_head_dim"])
        tensors |= {
            prefix + "input_layernorm.weight": norm(c["hidden_size"]),
            prefix + "post_attention_layernorm.weight": norm(c["hidden_size"]),
            attention + "kv_a_proj_with_mqa.weight": matrix(latent, c["hidden_size"]),
            attention + "kv_a_layernorm.weight": norm(c["kv_lora_rank"]),
            attention + "kv_b_proj.weight": matrix(kv_up, c["kv_lora_rank"], 2.0),
            attention + "o_proj.weight": matrix(c["hidden_size"], heads * c["v_head_dim"], 2.0),
            mlp + "gate_proj.weight": matrix(c["intermediate_size"], c["hidden_size"]),
            mlp + "up_proj.weight": matrix(c["intermediate_size"], c["hidden_size"]),
            mlp + "down_proj.weight": matrix(c["hidden_size"], c["intermediate_size"]),
        }
    return tensors


def bfloat16_bits(array: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Upper halves of the float32 values, cut off."""
    return (np.ascontiguousarray(array).view(np.uint32) >> 16).astype(np.uint16)


def write_safetensors(path: Path, tensors: Arrays, dtype: str = "F32") -> None:
    """Write a safetensors file of that dtype; by hand, because its numpy front end knows no BF16."""
    convert = {"F32": lambda a: a, "F16": lambda a: a.astype(np.float16), "BF16": bfloat16_bits, "I8": np.int8}
    header, body = {}, b""
    for name, array in tensors.items():
        data = convert[dtype](array).tobytes()
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)


def write_model(folder: Path, dtype: str = "F32", tensors: Arrays | None = None, **changes: Any) -> Path:
    """Write a complete model folder; `changes` replace values of CONFIG."""
    folder.mkdir(parents=True, exist_ok=True)
    config = CONFIG | changes
    (folder / "config.json").write_text(json.dumps(config))
    write_safetensors(folder / "model.safetensors", tensors or random_tensors(config), dtype)
    write_tokenizer(folder)
    return folder


TEXT = (
    "Ada has 12 apples and finds 7 more, then gives 5 of them to Ben, who eats two and keeps the others. How many? " * 8
)


def prompt_of(tokens: int, shift: int = 0) -> str:
    """A prompt of that many tokens (the tokenizer puts `<s>` in front); `shift` makes different ones."""
    return TEXT[shift : shift + tokens - 1]


def requests(lengths: Iterable[int], max_tokens: int, **options: Any) -> list[Request]:
    """One request per prompt length, each with another text."""
    return [Request(f"r{i}", prompt_of(n, 3 * i), max_tokens, **options) for i, n in enumerate(lengths)]


def run_spec(model: Path | str, **engine: Any) -> RunSpec:
    """A spec for the emulated engine on `model`."""
    options = {"kind": "emulated", "model": str(model), "max_model_len": 512} | engine
    return parse_spec({"name": "tiny", "engine": options, "arms": ["eager"], "tasks": ["gsm8k_canary"]})


@contextmanager
def opened(model: Path | str, **engine: Any) -> Iterator[Engine]:
    """An open emulated engine."""
    made = create_engine("emulated")
    made.open(run_spec(model, **engine))
    try:
        yield made
    finally:
        made.close()


def answers(engine: Engine, asked: Iterable[Request], arm: str | None = None) -> dict[str, Completion]:
    """Every completion by request id, under `arm` or the arm in use."""
    if arm is not None:
        engine.use(ArmSpec.parse(arm))
    return {completion.request_id: completion for completion in engine.generate(asked)}
