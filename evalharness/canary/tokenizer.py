"""The canaries' tokenizer: one token a byte, as a tokenizer.json that transformers, vLLM and lm-eval load.

A byte-level BPE without merges, so every text can be represented and a character of ASCII is a token. The ids are
`<s>` 0, `</s>` 1, `<pad>` 2 and byte b at b + 3; `<s>` is put in front of every text by the post-processor.
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

SPECIALS = ("<s>", "</s>", "<pad>")
BOS, EOS, PAD = range(3)
BYTE_OFFSET = len(SPECIALS)
VOCAB_SIZE = 264  # 259 in use, rounded up to a multiple of 8, which GPU matrix products like
MAX_LENGTH = 4096


def byte_alphabet() -> list[str]:
    """The printable character that stands for each byte in a byte-level vocabulary (the convention of GPT-2)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def build_tokenizer() -> Tokenizer:
    """The tokenizer itself."""
    vocabulary = {token: i for i, token in enumerate((*SPECIALS, *byte_alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", BOS)]
    )
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIALS])
    return tokenizer


def encode_plain(text: str) -> list[int]:
    """Token ids of a text that holds no special token, without the leading `<s>`."""
    return [byte + BYTE_OFFSET for byte in text.encode()]


def write_tokenizer(folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json into a model's folder."""
    folder.mkdir(parents=True, exist_ok=True)
    build_tokenizer().save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "add_bos_token": True,
        "add_eos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": MAX_LENGTH,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
