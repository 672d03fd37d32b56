"""The tokenizer of a model folder, and the search for stop strings in a growing answer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from evalharness.errors import EngineError


class Text:
    """Encodes prompts (with the tokenizer's own special tokens) and decodes answers (without)."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    @classmethod
    def read(cls, folder: Path, vocab_size: int) -> Text:
        """Load `folder`/tokenizer.json; raises EngineError when it cannot serve a model of that vocabulary."""
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise EngineError(f"There is no tokenizer.json in {folder}.", "Save the model's fast tokenizer there.")
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises plain Exception
            raise EngineError(f"Cannot read {path}: {error}.", "Restore the file from the model's source.") from error
        if tokenizer.get_vocab_size() > vocab_size:
            raise EngineError(
                f"The tokenizer knows {tokenizer.get_vocab_size()} tokens, the model only {vocab_size}.",
                "Use the tokenizer.json that belongs to these weights.",
            )
        return cls(tokenizer)

    def encode(self, text: str) -> list[int]:
        """Token ids of a prompt."""
        ids: list[int] = self._tokenizer.encode(text).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of an answer's tokens."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=True)
        return text

    def ends_with_stop(self, ids: Sequence[int], stops: Sequence[str]) -> bool:
        """Whether the newest token of an answer completed a stop string.

        Looks at the newest tokens only: a token has at least a byte of text, special ones (rare in an answer) aside.
        """
        if not stops:
            return False
        longest = max(len(stop.encode()) for stop in stops)
        tail = self.decode(ids[-2 * longest - 8 :])
        return any(stop in tail for stop in stops)


def cut_at_stop(text: str, stops: Sequence[str]) -> str:
    """`text` up to the first stop string in it."""
    ends = [place for stop in stops if (place := text.find(stop)) >= 0]
    return text[: min(ends, default=len(text))]
