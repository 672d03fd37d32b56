"""An engine that says what a test tells it to, and small data in the formats of the real tasks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from evalharness.engines.base import Completion, Request
from evalharness.records import ArmEvidence
from evalharness.scoring.data import SOURCES, Source
from evalharness.spec import ArmSpec, RunSpec, parse_spec

GSM8K = [
    {
        "question": f"Ann has {n} eggs and buys {n + 2} more. How many eggs has she?",
        "answer": f"{n}+{n + 2}\n#### {2 * n + 2}",
    }
    for n in range(3, 15)
]
AIME25 = [
    {"id": str(n), "problem": f"Find the remainder when ${n}^2$ is divided by 1000.", "answer": str(n * n % 1000)}
    for n in range(31, 37)
]
ROWS: dict[str, list[dict[str, str]]] = {
    "gsm8k/train.jsonl": GSM8K[4:],
    "gsm8k/test.jsonl": GSM8K[:4],
    "aime25/test.jsonl": AIME25,
}


class ScriptedEngine:
    """Answers each request with `answer(request)`: a text, or a whole completion. Answers come last one first."""

    def __init__(self, answer: Callable[[Request], str | Completion]) -> None:
        self.answer = answer
        self.asked: list[Request] = []

    def open(self, spec: RunSpec) -> None:
        """Nothing to load."""

    def use(self, arm: ArmSpec) -> ArmEvidence:
        """No evidence worth the name."""
        return ArmEvidence(arm.name, "scripted", "0", {}, {})

    def generate(self, requests: Iterable[Request]) -> Iterator[Completion]:
        """The scripted answers, in reverse."""
        self.asked = list(requests)
        for request in reversed(self.asked):
            said = self.answer(request)
            yield completion(said, request.id) if isinstance(said, str) else replace(said, request_id=request.id)

    def evidence(self) -> ArmEvidence:
        """No evidence worth the name."""
        return self.use(ArmSpec(name="eager", capture="eager"))

    def close(self) -> None:
        """Nothing to stop."""


def completion(text: str, request_id: str = "0", finish_reason: str = "stop", **changes: Any) -> Completion:
    """A completion of 100 prompt tokens; any field may be changed."""
    fields: dict[str, Any] = {"token_ids": (1, 2, 3), "prompt_tokens": 100, "output_tokens": 3, "seconds": 0.5}
    return Completion(request_id, text, finish_reason=finish_reason, **{**fields, **changes})


def write_data(folder: Path) -> Path:
    """Small files where `--data DIR` looks for the real ones."""
    for name, rows in ROWS.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return folder


def sources_of(folder: Path) -> dict[str, Source]:
    """SOURCES with the hashes of the files in `folder`."""
    hashes = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in ROWS}
    return {
        name: replace(
            source, files=tuple(replace(file, local_sha256=(hashes[file.local_path],)) for file in source.files)
        )
        for name, source in SOURCES.items()
    }


def make_spec(tasks: Sequence[Any], data_dir: Path | None = None, **changes: Any) -> RunSpec:
    """An emulated run of `tasks`."""
    raw: dict[str, Any] = {"name": "test", "engine": {"kind": "emulated"}, "arms": ["eager"], "tasks": list(tasks)}
    return parse_spec({**raw, "data_dir": data_dir, **changes})
