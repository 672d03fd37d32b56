"""The canary's tokenizer: every text survives, and a character of ASCII is one token."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from evalharness.canary.problems import documents, render_prompt
from evalharness.canary.tokenizer import BOS, EOS, VOCAB_SIZE, build_tokenizer, encode_plain, write_tokenizer

TOKENIZER = build_tokenizer()


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_every_text_survives_the_round_trip(text: str) -> None:
    if any(special in text for special in ("<s>", "</s>", "<pad>")):
        return
    ids = TOKENIZER.encode(text).ids
    assert ids == [BOS, *encode_plain(text)]
    assert TOKENIZER.decode(ids) == text
    assert max(ids) < VOCAB_SIZE


@pytest.mark.parametrize(
    "text", ["naïve café", "数学は楽しい", "🙂👍🏽", "\x00\x7f\u00ad", "½ ÷ π ≤ ∞", "  two  spaces\n\n\ttab"]
)
def test_unicode_survives(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text).ids) == text


def test_one_token_a_character_after_the_leading_s() -> None:
    prompt = render_prompt(documents("gsm8k_canary", n=1)[0]["question"])
    assert len(TOKENIZER.encode(prompt).ids) == len(prompt) + 1


def test_the_end_token_is_one_id() -> None:
    assert TOKENIZER.encode("a</s>").ids[-1] == EOS


def test_the_written_file_is_the_tokenizer(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    loaded = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert loaded.encode("12+7=19\n#### 19").ids == TOKENIZER.encode("12+7=19\n#### 19").ids


def test_transformers_loads_it(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    write_tokenizer(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "deepseek_v3"}')
    loaded = transformers.AutoTokenizer.from_pretrained(tmp_path)
    text = "Question: 12+7? ½ 数\nAnswer:"
    ids = loaded(text)["input_ids"]
    assert ids == [BOS, *encode_plain(text)]
    assert loaded.decode(ids, skip_special_tokens=True) == text
    assert (loaded.bos_token_id, loaded.eos_token_id, loaded.pad_token_id) == (0, 1, 2)
