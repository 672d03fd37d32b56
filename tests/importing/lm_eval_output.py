"""Writes what `lm_eval --output_path DIR --log_samples` writes (release 0.4.13), small."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

STAMP = "2026-11-30T08-15-00.123456"
QUESTION = "Question: Ann has {} eggs and buys 1 more. How many?\nAnswer:"


def line(doc_id: int, response: str = "#### 2", score: object = 1.0, **changes: Any) -> dict[str, Any]:
    """One line of a samples file; the document asks for 2."""
    prompt = changes.pop("prompt", QUESTION.format(doc_id))
    fields: dict[str, Any] = {
        "doc_id": doc_id,
        "doc": {"question": prompt, "answer": "1+1=2\n#### 2"},
        "target": "1+1=2\n#### 2",
        "arguments": {"gen_args_0": {"arg_0": prompt, "arg_1": {"until": ["Question:"]}}},
        "resps": [[response]],
        "filtered_resps": ["2" if score else "[invalid]"],
        "filter": "strict-match",
        "metrics": ["exact_match"],
        "doc_hash": f"{doc_id:064x}",
        "prompt_hash": "p" * 64,
        "target_hash": "t" * 64,
        "exact_match": score,
    }
    return {**fields, **changes}


def write(folder: Path, lines: Mapping[str, Sequence[Mapping[str, Any]]], stamp: str = STAMP, **changes: Any) -> Path:
    """Write results and samples below `folder`; returns the results file."""
    place = folder / "org__model"
    place.mkdir(parents=True, exist_ok=True)
    row = {"alias": "x", "exact_match,strict-match": 0.5, "exact_match_stderr,strict-match": "N/A"}
    counts = {
        task: {"original": 1319, "effective": len({sample["doc_id"] for sample in lines[task]})} for task in lines
    }
    content = {"results": dict.fromkeys(lines, row), "n-samples": counts, "model_name": "org/model", **changes}
    for task, samples in lines.items():
        text = "".join(json.dumps(sample) + "\n" for sample in samples)
        (place / f"samples_{task}_{stamp}.jsonl").write_text(text)
    path = place / f"results_{stamp}.json"
    path.write_text(json.dumps(content))
    return path
