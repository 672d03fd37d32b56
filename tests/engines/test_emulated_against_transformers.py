"""The emulated forward pass against transformers' own DeepseekV3ForCausalLM, on the same weights in float32."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from evalharness.canary.models import local_model
from evalharness.engines.emulated.engine import load_model
from evalharness.engines.emulated.memory import Row
from evalharness.engines.emulated.prefill import prefill
from evalharness.engines.emulated.runner import ModelRunner
from tests.engines.tiny_model import REAL_HEADS, TEXT, write_model

torch = pytest.importorskip("torch", reason="needs the extra [train]")
transformers = pytest.importorskip("transformers", reason="needs the extra [train]")

pytestmark = pytest.mark.filterwarnings("default")  # other people's deprecations are not ours to fail on

PROMPT = 150
DECODED = 60
TOLERANCE = 1e-3  # on logits of size 10 and more: float32, summed in another order


def emulated_logits(folder: Path, tokens: list[int]) -> NDArray[np.float32]:
    """Logits [1 + DECODED, vocabulary]: of the prefill's last token, then of each decode step, teacher-forced."""
    model, _ = load_model(str(folder), 512)
    runner = ModelRunner(model, (1,), 512)
    first = prefill(model, tokens[:PROMPT])
    blocks = runner.cache.allocate(len(tokens))
    runner.cache.write(blocks, first.entries)
    steps = [runner.step([Row(tokens[i], i, blocks)])[0].copy() for i in range(PROMPT, len(tokens))]
    return np.stack([first.logits, *steps])


def transformers_logits(folder: Path, tokens: list[int]) -> NDArray[np.float32]:
    """The same logits in one pass of transformers' model."""
    model = transformers.DeepseekV3ForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        logits: Any = model(torch.tensor([tokens]), use_cache=False).logits[0, PROMPT - 1 :]
    result: NDArray[np.float32] = logits.numpy()
    return result


def largest_difference(folder: Path) -> float:
    tokens = [0, *(byte + 3 for byte in TEXT.encode())][: PROMPT + DECODED]
    ours, theirs = emulated_logits(folder, tokens), transformers_logits(folder, tokens)
    assert ours.shape == theirs.shape
    difference = float(np.abs(ours - theirs).max())
    print(f"{folder.name}: largest logit difference {difference:.2e}, logits up to {np.abs(theirs).max():.1f}")
    return difference


@pytest.mark.parametrize(
    "changes", [{}, {"q_lora_rank": 48}, {"tie_word_embeddings": True}, {"rms_norm_eps": 1e-5}, REAL_HEADS], ids=str
)
def test_random_weights_give_the_logits_of_transformers(tmp_path: Path, changes: dict[str, Any]) -> None:
    # transformers checks the numbers of experts even where no layer has any
    experts = {"n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1}
    folder = write_model(tmp_path / "model", "BF16", **(experts | changes))
    assert largest_difference(folder) < TOLERANCE


def test_the_canary_gives_the_logits_of_transformers() -> None:
    folder = local_model("canary-v3")
    if folder is None or not (folder / "model.safetensors").is_file():
        pytest.skip("canary-v3 has not been trained here")
    assert largest_difference(folder) < TOLERANCE
