"""The tables of docs/PERFORMANCE.md, made of the committed figures and of nothing else."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import STEEPEST, Figures

RESULTS = Path(__file__).parent / "results"
RESULT, VLLM = RESULTS / "performance.json", RESULTS / "vllm.json"
BLOCK = re.compile(r"(<!-- (\w+) -->\n).*?(<!-- /\2 -->)", re.DOTALL)
RATIOS = {
    "bare": "`run` of three arms / bare loop around the engine",
    "loads": "three arms in one load / three runs of one arm",
    "lm_eval": "three arms in one run / `lm_eval` three times",
    "lm_eval_lean": "the same, `lm_eval` spared the index of its own tasks",
}
GPU = {
    "loads": "three arms in one load / three loads",
    "lm_eval": "two arms in one run / `lm_eval` twice",
    "bare": "answering of one arm / bare `LLM.generate`",
}


def fill(page: str) -> str:
    """`page` with every table between its markers as the committed figures say."""
    found = json.loads(RESULT.read_text(encoding="utf-8"))
    made = {**tables(found), "gpu": gpu_table(json.loads(VLLM.read_text(encoding="utf-8")))}
    return BLOCK.sub(lambda match: f"{match[1]}{made[match[2]]}\n{match[3]}", page)


def tables(found: Figures) -> Mapping[str, str]:
    """Each table by the name of its markers; only of parts that were measured."""
    machine = found["machine"]
    before, after = machine["load"]
    where = (
        f"{machine['cores']} cores, shared (load {before} at the beginning, {after} at the end), "
        f"Python {machine['python']}, {machine['minutes']} minutes for all of it."
    )
    made = {"machine": where}
    for name, parts in PARTS.items():
        if name in found:
            made |= {table: make(found[name]) for table, make in parts.items()}
    return made


def gpu_table(found: Figures) -> str:
    """What bench_vllm.py measured, and on what."""
    on = found["on"]
    where = (
        f"{on['gpu'][0]['name']}, vLLM {on['packages']['vllm']}, {found['profile']}, {found['documents']} documents, "
        f"medians where a measurement was repeated."
    )
    table = _table(
        ("on vLLM", "wall s", "wall s of what it replaces", "ratio", "limit"),
        (
            (
                GPU[row["name"]],
                *(f"{statistics.median(row[whose]):.2f}" for whose in ("ours_s", "theirs_s")),
                f"{row['ratio']:.3f}",
                f"{row['limit']:g}",
            )
            for row in found["rows"]
        ),
    )
    return f"{where}\n\n{table}"


def faults(found: Figures) -> list[str]:
    """A sentence for every ratio over its limit, and for everything that grows faster than its size."""
    over = [
        f"{RATIOS[row['name']]}: {row['ratio']} is over {row['limit']}."
        for row in found.get("ratios", ())
        if row["ratio"] > row["limit"]
    ]
    steep = [
        f"{row['name']}: {what} grows with exponent {row[what]['net']}, over {STEEPEST}."
        for row in found.get("growth", ())
        for what in ("time", "memory")
        if row[what]["net"] > STEEPEST
    ]
    return [*over, *steep]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _ratios(rows: Sequence[Figures]) -> str:
    return _table(
        ("on the CPU", "ratio of processor time", "limit", "ours / floor", "peak memory / theirs"),
        (
            (
                RATIOS[row["name"]],
                f"{row['ratio']:.2f}",
                f"{row['limit']:g}",
                f"{row['to_floor']:.2f}",
                f"{row['ours']['peak_mib'] / row['theirs']['peak_mib']:.2f}",
            )
            for row in rows
        ),
    )


def _start(rows: Sequence[Figures]) -> str:
    return _table(
        ("command", "processor s", "floor: its imports alone", "ratio", "peak MiB"),
        (
            (
                f"`{row['name']}`",
                f"{row['cpu_s']:.2f}",
                f"{row['floor']['cpu_s']:.2f}",
                f"{row['cpu_s'] / row['floor']['cpu_s']:.2f}",
                f"{row['peak_mib']:.0f}",
            )
            for row in rows
        ),
    )


def _sizes(rows: Sequence[Figures]) -> str:
    return _table(
        ("what", "size", "processor s", "floor", "ratio", "peak MiB"),
        (
            (
                row["name"],
                f"{size['n']:,} {row['unit']}",
                f"{size['cpu_s']:.2f}",
                f"{size['floor_s']:.2f}",
                f"{size['cpu_s'] / size['floor_s']:.1f}" if size["floor_s"] >= 0.01 else "",
                f"{size['peak_mib']:.0f}",
            )
            for row in rows
            for size in row["sizes"]
        ),
    )


def _exponents(rows: Sequence[Figures]) -> str:
    return _table(
        (
            "what",
            "time, all sizes",
            "time, largest two, start off",
            "memory, all sizes",
            "memory, largest two, start off",
        ),
        (
            (row["name"], *(f"{row[what][how]:.2f}" for what in ("time", "memory") for how in ("fit", "net")))
            for row in rows
        ),
    )


def _engine(found: Figures) -> str:
    return _table(
        ("emulated engine", "tokens a processor second", "floor: dense products alone", "time / floor"),
        ((name, f"{ours:.0f}", f"{floor:.0f}", f"{floor / ours:.1f}") for name, ours, floor in _speeds(found)),
    )


def _speeds(found: Figures) -> Iterator[tuple[str, float, float]]:
    """(what, tokens a second, tokens a second of its dense products alone)."""
    steps = {step["name"]: step for step in found["steps"]}
    prefill = steps["prefill, 150 tokens"]["floor_per_s"]
    decode = {
        "one request at a time": "decode, batch 1, context 170",
        "batches of up to 32": "decode, batch 32, context 170",
    }
    for one in found["answering"]:
        least = one["prompt"] / prefill + one["tokens"] / steps[decode[one["name"]]]["floor_per_s"]
        yield f"answers, {one['name']}, prefill included", one["tokens"] / one["cpu_s"], one["tokens"] / least
    for step in found["steps"]:
        yield step["name"], step["per_s"], step["floor_per_s"]


def _profile(found: Figures) -> str:
    return _table(
        ("where the time of answering goes", "share"),
        ((group["name"], f"{group['share']:.1%}") for group in found["profile"]),
    )


PARTS: Mapping[str, Mapping[str, Callable[[Any], str]]] = {
    "ratios": {"ratios": _ratios},
    "start": {"start": _start},
    "growth": {"growth": _exponents, "sizes": _sizes},
    "emulated": {"engine": _engine, "profile": _profile},
}
