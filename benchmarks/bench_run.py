"""One run of three arms against a bare engine loop, against three runs of one arm, and against lm_eval once per arm.

The same emulated engine answers the same prompts in all of them, and they must agree: the bare loop's tokens and
lm_eval's scores are those of the run, or the benchmark stops.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from functools import partial
from pathlib import Path

from benchmarks.measure import NOTHING, ROOT, Figures, Spent, evalharness, main, part, ratio_row, spent

ARMS = ("eager", "stock", "patched")
TASK = "gsm8k_canary"


def harness_figures(documents: int, rounds: int) -> list[Figures]:
    """The three ratios; what is compared takes turns, `rounds` times."""
    run = bare = single = typed = lean = imports = NOTHING
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as scratch:
            out = Path(scratch)
            run += _run(ARMS, documents, out / "run")
            used, tokens = part("bench_run", "bare", documents)
            bare += used
            _agree("bare loop", tokens, {arm: _digest(out / "run", arm) for arm in ARMS})
            for arm in ARMS:
                single += _run((arm,), documents, out / arm)
                score = {"exact_match": _accuracy(out / "run", arm)}
                typed += _lm_eval("lm_eval", documents, arm, score)
                lean += _lm_eval("lm_eval_lean", documents, arm, score)
        imports += spent([sys.executable, "-c", "import lm_eval.api.task"])[0]
    against = (("bare", bare, 1.5), ("loads", single, 0.85), ("lm_eval", typed, 0.65), ("lm_eval_lean", lean, 0.85))
    return [ratio_row(name, run, theirs, bare + imports, limit) for name, theirs, limit in against]


def _run(arms: tuple[str, ...], documents: int, out: Path) -> Spent:
    chosen = ("--arms", ",".join(arms), "--tasks", TASK, "--limit", str(documents))
    return evalharness("run", "canary-v3", *chosen, "--out", out)


def _lm_eval(how: str, documents: int, arm: str, ours: Figures) -> Spent:
    used, theirs = part("bench_run", how, documents, arm)
    _agree(how, theirs, ours)
    return used


def _agree(name: str, theirs: Figures, ours: Figures) -> None:
    if theirs != ours:
        raise SystemExit(f"The {name} answered otherwise than the run: {theirs}, {ours}.")


def _rows(results: Path, arm: str) -> list[Figures]:
    (path,) = results.glob(f"*/samples/{TASK}/{arm}.jsonl")
    with path.open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return sorted(rows, key=lambda row: row["doc_id"])


def _digest(results: Path, arm: str) -> str:
    return digest([row["token_ids"] for row in _rows(results, arm)])


def _accuracy(results: Path, arm: str) -> float:
    rows = _rows(results, arm)
    return float(round(sum(row["scores"]["exact_match"] for row in rows) / len(rows), 6))


def digest(answers: list[list[int]]) -> str:
    """Hash of the token ids of all answers in order."""
    return hashlib.sha256(json.dumps(answers).encode()).hexdigest()


# --- in processes of their own --------------------------------------------------------------------------------


def bare_loop(documents: str) -> Figures:
    """The engine alone: loaded once, each arm brought up and asked everything; a digest of the tokens per arm."""
    from benchmarks.bench_emulated import MAX_TOKENS, opened_engine, word_problems
    from evalharness.spec import ArmSpec

    engine, found = opened_engine("canary-v3", ARMS), {}
    for arm in ARMS:
        engine.use(ArmSpec.parse(arm))
        done = {
            one.request_id: list(one.token_ids) for one in engine.generate(word_problems(int(documents), MAX_TOKENS))
        }
        found[arm] = digest([done[request.id] for request in word_problems(int(documents), MAX_TOKENS)])
    engine.close()
    return found


def lm_eval_once(documents: str, arm: str, *, defaults: bool = True) -> Figures:
    """lm_eval's own evaluator with the engine as its model, one arm; its score. The command indexes the `defaults`,
    lm_eval's thousands of task files, before it finds the one it was asked for."""
    import lm_eval
    from lm_eval.tasks import TaskManager

    from evalharness.scoring.lm import EngineLM

    manager = TaskManager(include_path=str(ROOT / "tasks"), include_defaults=defaults)
    model = EngineLM(profile="canary-v3", arm=arm)
    found = lm_eval.simple_evaluate(
        model=model, tasks=[TASK], limit=int(documents), task_manager=manager, bootstrap_iters=0
    )
    model.engine.close()
    return {"exact_match": round(found["results"][TASK]["exact_match,strict-match"], 6)}


if __name__ == "__main__":
    main({"bare": bare_loop, "lm_eval": lm_eval_once, "lm_eval_lean": partial(lm_eval_once, defaults=False)})
