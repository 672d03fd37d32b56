"""Wall time of the harness on a GPU host, against what it replaces; one JSON line a measurement.

    python benchmarks/bench_vllm.py [PROFILE] [--documents 250] [--work DIR] [--measure loads lm_eval bare] [--out FILE]

Measured: three arms in one load against three loads; two arms against `lm_eval --model vllm` twice; the answering of
one arm against a bare `LLM.generate` of the same prompts on the same engine, in turn, PART prompts at a time, as a busy
host is now faster and now slower. Every load is a process of its own, whose compile and JIT caches the ones before it
have filled. The profile's first task is used. `--out` receives all measurements with what they were made on.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from operator import truediv
from pathlib import Path
from typing import Any

from evalharness.engines.base import Completion, Request
from evalharness.engines.vllm_core import VllmCore
from evalharness.engines.vllm_settings import engine_arguments, environment, sampling_arguments
from evalharness.errors import EvalHarnessError
from evalharness.provenance import collect
from evalharness.spec import ArmSpec, RunSpec, VllmEngine, load_spec

PAIR = "pair: "
PART = 50  # prompts
ANSWERED = {0, 1, 3, 4}  # exit codes of a run that reached a verdict
Seconds = tuple[Sequence[float], Sequence[float]]  # ours and theirs, of each repetition


@dataclass(frozen=True, slots=True)
class Measurement:
    """Gives our seconds and theirs; `limit` is what their ratio must not exceed."""

    seconds: Callable[[argparse.Namespace], Seconds]
    limit: float


def main() -> int:
    """Measure all; 1 when a ratio is over its limit."""
    options = arguments()
    if options.only:
        return PARTS[options.only](options)
    rows: list[dict[str, Any]] = []
    for name in options.measure or MEASURED:
        rows.append(measured(name, options))
        print(json.dumps(rows[-1]), flush=True)
        if options.out:
            found = {"profile": options.profile, "documents": options.documents, "on": collect(), "rows": rows}
            options.out.write_text(json.dumps(found, indent=1) + "\n")
    return int(any(row["ratio"] > row["limit"] for row in rows))


def measured(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Measure one thing: all seconds, and the median of the repetitions' ratios."""
    ours, theirs = MEASURED[name].seconds(options)
    ratio = statistics.median(map(truediv, ours, theirs))
    return {"name": name, "ours_s": ours, "theirs_s": theirs, "ratio": ratio, "limit": MEASURED[name].limit}


def one_load(options: argparse.Namespace) -> Seconds:
    """One run of three arms, and three runs of one."""
    harness(options, "eager", "warm")  # fills the caches
    together = harness(options, "eager,stock,patched", "together")
    return [together], [sum(harness(options, arm, arm) for arm in ("eager", "stock", "patched"))]


def bare(options: argparse.Namespace) -> Seconds:
    """An arm, and LLM.generate for the same prompts on the same engine, in turn."""
    # vLLM logs to standard output too.
    said = [row.removeprefix(PAIR) for row in child(options, "paired").splitlines() if row.startswith(PAIR)]
    ours, alone = zip(*map(json.loads, said), strict=True)
    return ours, alone


def against_lm_eval(options: argparse.Namespace) -> Seconds:
    """A run of two arms, and lm_eval's own vllm model in two processes."""
    ours = harness(options, "eager,native", "two")
    began = time.perf_counter()
    child(options, "lm_eval_eager")
    child(options, "lm_eval_graphs")
    return [ours], [time.perf_counter() - began]


def harness(options: argparse.Namespace, arms: str, name: str) -> float:
    """Seconds of `evalharness run` as a user types it."""
    shutil.rmtree(options.work / name, ignore_errors=True)
    command = [sys.executable, "-m", "evalharness", "run", options.profile, "--arms", arms]
    command += ["--tasks", task(options), "--limit", str(options.documents), "--out", str(options.work / name)]
    began = time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
    if done.returncode not in ANSWERED:
        raise SystemExit(f"{' '.join(command)}: exit status {done.returncode}")
    return time.perf_counter() - began


def child(options: argparse.Namespace, part: str) -> str:
    """Run one part of this file in a process of its own; returns what it printed."""
    command = [sys.executable, __file__, options.profile, "--documents", str(options.documents)]
    command += ["--work", str(options.work), "--repeats", str(options.repeats), "--only", part]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


class Paired(VllmCore):
    """Answers everything twice on one engine: LLM.generate alone, its seconds kept in the arm's costs, then as ever."""

    def generate(self, requests: Iterable[Request]) -> Iterator[Completion]:
        """See VllmCore."""
        due, self._costs["bare_seconds"] = list(requests), 0.0
        for number, part in enumerate(due[start : start + PART] for start in range(0, len(due), PART)):
            if number % 2 == 0:
                self._bare(part)
            yield from super().generate(part)
            if number % 2 == 1:
                self._bare(part)

    def _bare(self, due: Sequence[Request]) -> None:
        vllm = import_module("vllm")
        began = time.perf_counter()
        params = [vllm.SamplingParams(**sampling_arguments(request)) for request in due]
        self._llm.generate([request.prompt for request in due], params, use_tqdm=False)
        self._costs["bare_seconds"] += time.perf_counter() - began


def paired_part(options: argparse.Namespace) -> int:
    """A run whose engine is `Paired`; prints arm and bare seconds of each arm after the first, which warms up."""
    from evalharness.engines import vllm
    from evalharness.runner import local

    vllm.CORE = "bench_vllm:Paired"
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    names = [f"native#{n}" for n in range(2, options.repeats + 3)]
    arms = tuple(ArmSpec.model_validate({"name": name, "capture": "native"}) for name in names)
    spec = chosen(options)[0]
    spec = spec.model_copy(update={"arms": arms, "tasks": spec.tasks[:1]})
    shutil.rmtree(options.work / "paired", ignore_errors=True)
    folder = local.start(spec, options.work / "paired")
    evidence = folder.read_evidence()
    for arm in folder.read_run().arms[1:]:
        alone = evidence[arm.name].costs["bare_seconds"]
        print(f"\n{PAIR}{json.dumps([arm.seconds - alone, alone])}", flush=True)
    return 0


def lm_eval_part(options: argparse.Namespace, *, eager: bool) -> int:
    """lm_eval's own vllm model with the same engine arguments and environment, but for the plugin."""
    os.environ.update({**environment(), "EVALHARNESS_CAPTURE": ""})
    lm_eval, tasks = import_module("lm_eval"), import_module("lm_eval.tasks")
    spec, engine = chosen(options)
    given: dict[str, Any] = {**engine_arguments(engine), "enforce_eager": eager}
    given["pretrained"] = given.pop("model")
    given.pop("worker_extension_cls")
    manager = tasks.TaskManager(include_path=str(Path(__file__).parents[1] / "tasks"))
    found = lm_eval.simple_evaluate(
        model="vllm", model_args=given, tasks=[spec.tasks[0].name], limit=options.documents, task_manager=manager
    )
    print(json.dumps(found["results"], default=str))
    return 0


def chosen(options: argparse.Namespace) -> tuple[RunSpec, VllmEngine]:
    """The profile with its first task cut to --documents, and its engine."""
    spec = load_spec(options.profile, [f"tasks.0.limit={options.documents}"])
    if not isinstance(spec.engine, VllmEngine):
        raise SystemExit(f"{options.profile} does not run vLLM")
    return spec, spec.engine


def task(options: argparse.Namespace) -> str:
    """Name of the profile's first task."""
    return chosen(options)[0].tasks[0].name


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profile", nargs="?", default="canary-v3-gpu")
    parser.add_argument("--documents", type=int, default=250)
    parser.add_argument("--work", type=Path, default=Path("/tmp/bench-vllm"), help="where the runs go")  # noqa: S108
    parser.add_argument("--measure", nargs="+", choices=sorted(MEASURED), help="all when left out")
    parser.add_argument("--repeats", type=int, default=24, help="pairs of the measurement `bare`")
    parser.add_argument("--out", type=Path, help="a JSON file for the measurements")
    parser.add_argument("--only", choices=sorted(PARTS), help="one part, in this process")
    return parser.parse_args(given)


MEASURED = {
    "loads": Measurement(one_load, 0.5),  # three arms in one load / three loads
    "lm_eval": Measurement(against_lm_eval, 0.65),  # two arms / lm_eval twice
    "bare": Measurement(bare, 1.05),  # one arm / LLM.generate
}
PARTS: dict[str, Callable[[argparse.Namespace], int]] = {
    "paired": paired_part,
    "lm_eval_eager": lambda options: lm_eval_part(options, eager=True),
    "lm_eval_graphs": lambda options: lm_eval_part(options, eager=False),
}

if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except EvalHarnessError as error:
        raise SystemExit(f"error: {error}") from error
