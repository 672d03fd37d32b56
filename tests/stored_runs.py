"""Whole runs on disk, with answers as a real run leaves them: worked solutions, slips, loops, hostile text."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from evalharness.arms import base_name
from evalharness.canary.problems import documents
from evalharness.records import ArmEvidence, ArmState, ArmSummary, Cause, DescriptorEvidence, Run, Sample
from evalharness.spec import load_spec
from evalharness.store import RunFolder
from tests.factories import make_run

ARMS = ("eager", "stock", "patched")
ACCURACY = {"eager": 0.97, "stock": 0.05, "patched": 0.97}
HOSTILE = (
    "<script>alert(1)</script><img src=x onerror=alert(2)>",
    "\x1b[31mred\x1b[0m \x1b]0;title\x07 \x1b[2J",
    "\u202egnol sdrawkcab\u202c \u2066isolated\u2069 \u200bzero\u200b",
    "null \x00 byte, bell \x07, delete \x7f, next line \x85, separator \u2028 end",
    "A" * 1_000_000,
    "]]> --> </pre></details> `code` | cell | ** # \n\n\n# heading {{ 7*7 }} {% raw %}",
    "=HYPERLINK(\"http://x\") \ufffe\uffff \U000e0041 \u4f60\u597d \u0645\u0631\u062d\u0628\u0627",
    "Z\u0351\u036b\u0343\u036a\u0302\u036b\u033d\u034f\u0334\u0319\u0324" * 40,
)  # fmt: skip


def stored_run(
    results: Path,
    sizes: Mapping[str, tuple[int, int]] | None = None,
    arms: Sequence[str] = ARMS,
    accuracy: Mapping[str, float] | None = None,
    hostile: bool = False,
    seed: int = 0,
    **spec: Any,
) -> RunFolder:
    """A finished run. `sizes` maps a task to (documents, repeats); arms of one capture path answer alike."""
    sizes = sizes or {"gsm8k_canary": (250, 1), "aime25_canary": (30, 4)}
    folder, run = RunFolder.create(results, _run(sizes, arms, spec))
    for task, (count, repeats) in sizes.items():
        for arm in arms:
            rows = _answers(task, arm, count, repeats, (accuracy or ACCURACY)[base_name(arm)], seed)
            if hostile and arm == "stock":
                rows = [replace(row, response=HOSTILE[i % len(HOSTILE)]) for i, row in enumerate(rows)]
            folder.append(rows)
    for arm in arms:
        folder.write_evidence(proof(arm))
    folder.write_run(run)
    return folder


def _run(sizes: Mapping[str, tuple[int, int]], arms: Sequence[str], changes: Mapping[str, Any]) -> Run:
    spec = load_spec("canary-v3").model_dump(mode="json")
    tasks = [{"name": task, "limit": count, "repeats": repeats} for task, (count, repeats) in sizes.items()]
    spec |= {"tasks": tasks, "arms": [{"name": arm, "capture": base_name(arm)} for arm in arms], **changes}
    summaries = tuple(ArmSummary(arm, base_name(arm), ArmState.DONE, 0, 12.5) for arm in arms)
    provenance = {
        "git": {"commit": "0123456789abcdef0123456789abcdef01234567", "dirty": False},
        "packages": {"evalharness": "0.1.0", "lm-eval": "0.4.13"},
        "python": "3.11.9",
        "platform": "Linux 6.1 x86_64",
        "cpu": {"model": "Example CPU", "count": 16},
        "gpu": [],
    }
    identity = {"model": "5e" * 32, **{f"task {task}: data": "da" * 32 for task in sizes}}
    return make_run(
        spec, arms=summaries, provenance=provenance, identity=identity, finished="2026-12-01T12:03:00+00:00"
    )


def _answers(task: str, arm: str, count: int, repeats: int, accuracy: float, seed: int) -> list[Sample]:
    capture = base_name(arm)
    like = "eager" if capture == "patched" else capture  # what the repair is meant to do
    noise = Random(f"{seed} {task} {arm}")
    made = []
    for doc_id, doc in enumerate(documents(task, "test", count)):
        for repeat in range(repeats):
            rng = Random(f"{seed} {task} {like} {doc_id} {repeat}")
            right = rng.random() < accuracy
            text = _response(doc, right, like, rng)
            if arm != "eager" and noise.random() < 0.02:
                text = f"so {text}"
            made.append(_sample(task, arm, doc_id, doc, repeat, right, text))
    return made


def _response(doc: Mapping[str, str], right: bool, capture: str, rng: Random) -> str:
    worked = doc.get("solution", doc["answer"])
    if right:
        return worked
    if capture == "stock":
        kept = worked[: rng.randint(0, 6)]
        return kept + rng.choice(["7=7=", "the ", "-1", "))"]) * rng.randint(20, 60)
    lines = worked.split("\n")
    wrong = "1" if not lines[-1].endswith("1}") else "2"
    lines[-1] = f"\\boxed{{{wrong}}}" if "boxed" in lines[-1] else f"#### {wrong}"
    return "\n".join([*lines[:-2], f"{lines[-2].partition('=')[0]}={wrong}", lines[-1]])


def _sample(task: str, arm: str, doc_id: int, doc: Mapping[str, str], repeat: int, right: bool, text: str) -> Sample:
    loops = not right and arm.startswith("stock")
    cause = Cause.CORRECT if right else Cause.LOOP if loops else Cause.WRONG
    key = f"{task}/{doc_id}"
    tokens = (*map(ord, text[:64]), *(() if loops else (261,)))
    score = float(right)
    return Sample(
        task=task,
        arm=arm,
        doc_id=doc_id,
        doc_hash=hashlib.sha256(json.dumps(doc, indent=2, ensure_ascii=False).encode()).hexdigest(),
        repeat=repeat,
        seed=repeat,
        prompt_hash=hashlib.sha256(key.encode()).hexdigest(),
        response=text,
        token_ids=tokens,
        finish_reason="length" if loops else "stop",
        prompt_tokens=190,
        output_tokens=len(tokens),
        seconds=0.25,
        target=doc["answer"].rpartition("#### ")[2],
        scores={"exact_match": score, "robust": score},
        cause=cause,
        extracted={"strict-match": None if loops else text.split()[-1], "robust": None if loops else text[-2:]},
        flags=("loop", "truncated") if loops else (),
    )


def proof(arm: str, **changes: Any) -> ArmEvidence:
    """Evidence as the emulated engine leaves it."""
    capture = base_name(arm)
    graphs = capture != "eager"
    settings = {
        "runner": "MRV2-miniature",
        "cudagraph_mode": "FULL_DECODE_ONLY" if graphs else "NONE",
        "attention_backend": "FLASHMLA-miniature",
        "capture_path": capture,
    }
    shared = {"stock": True, "patched": False}.get(capture)
    changed = ("SchedMeta.tile_scheduler_metadata", "SchedMeta.num_splits")
    captured = tuple(
        DescriptorEvidence(f"FULL num_tokens={n}", n, shared, changed, not shared, 1 if shared else 2)
        for n in ((32, 16, 8, 4, 2, 1) if graphs else ())
    )
    costs = {"load_seconds": 0.4, "capture_seconds": 0.21 if graphs else 0.0, "decode_tokens_per_s": 5210.0}
    if graphs:
        costs |= {"graph_nodes": 312.0 + 6 * (not shared), "graph_bytes": 4.2e6}
    fields: dict[str, Any] = {
        "arm": arm,
        "engine": "emulated",
        "engine_version": "0.1.0",
        "requested": settings,
        "observed": settings,
        "descriptors": captured,
        "full_replays": 1840 if graphs else 0,
        "eager_steps": 0 if graphs else 1840,
        "costs": costs,
    }
    return ArmEvidence(**{**fields, **changes})
