"""Every experiment on the GPU host, one after another, each with a time limit of its own.

    python scripts/gpu_session.py OUT [--steps kernel,canary,...] [--data DIR] [--seconds 540]

OUT receives session.json (step, command, exit status, seconds) and runs.tar.gz, which holds the run folders and a log
of every step; both are written after every step, so that a session cut short keeps what it has. A step that fails
does not stop the next; one for which no time is left is skipped and says so.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from evalharness.engines.group import end_group

SWITCH = "EVALHARNESS_GRAPH_NODES"  # of evalharness.capture.graph_nodes
EVALHARNESS = (sys.executable, "-m", "evalharness")
HERE = Path(__file__).parent
TAIL_LINES = 25
STOP_S = 20.0


@dataclass(frozen=True, slots=True)
class Step:
    """One experiment: its command, with {runs} and {data} to be filled in, and its limit in seconds."""

    name: str
    command: tuple[str, ...]
    limit_s: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a step; `status` is None when it was skipped or ran out of time."""

    name: str
    command: tuple[str, ...]
    status: int | None
    seconds: float
    note: str = ""


RUN = (*EVALHARNESS, "run", "--out", "{runs}")
ONE = ("--set", "name=canary-v4-by-one", "--set", "engine.max_num_seqs=1", "--set", "engine.capture_sizes=[1]")
STEPS = (
    Step("host", (*EVALHARNESS, "doctor", "--out", "{runs}"), 60),
    Step("kernel", (sys.executable, "-m", "evalharness.capture.kernel_check"), 120),
    Step("canary", (*RUN, "canary-v3-gpu"), 420),
    Step("agreement", (*RUN, str(HERE / "gpu/agreement.yaml"), "--data", "{data}"), 300),
    Step("audit", (*EVALHARNESS, "audit", "canary-v3-gpu"), 180),
    Step("faults", (sys.executable, str(HERE / "gpu_faults.py"), "{runs}/faults", "--seconds", "400"), 540),
    Step("bench", (sys.executable, str(HERE.parent / "benchmarks/bench_vllm.py")), 540),
    Step("v4", (*RUN, "canary-v4-gpu"), 560),
    Step("v4-kinds", (*RUN, str(HERE / "gpu/canary-v4-kinds.yaml")), 300),
    # One request at a time; v4-kinds has 8, v4 32.
    Step("v4-one", (*RUN, "canary-v4-gpu", "--tasks", "gsm8k_canary", "--limit", "40", *ONE), 240),
)


def main() -> int:
    """Run the chosen steps; 1 when one of them did not end by itself with status 0."""
    options = arguments()
    options.out.mkdir(parents=True, exist_ok=True)
    runs = Path(options.runs)
    (runs / "logs").mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + options.seconds
    outcomes: list[Outcome] = []
    for step in chosen(options.steps):
        command = tuple(part.format(runs=runs, data=options.data) for part in step.command)
        log = runs / "logs" / f"{step.name}.log"
        outcome = perform(step, command, log, min(step.limit_s, deadline - time.monotonic()))
        if (outcome.status or 0) < 0:  # killed by a signal: should it be the driver's answers, do without them
            os.environ[SWITCH] = "0"
        outcomes.append(outcome)
        print(f"{outcome.name:10} status {outcome.status} in {outcome.seconds:.0f} s {outcome.note}", flush=True)
        print(tail(log), flush=True)
        save(options.out, runs, outcomes)
    return int(any(outcome.status != 0 for outcome in outcomes))


def perform(step: Step, command: tuple[str, ...], log: Path, limit_s: float) -> Outcome:
    """Run one command into its log."""
    if limit_s < step.limit_s / 4:
        return Outcome(step.name, command, None, 0.0, "skipped: no time left")
    began = time.monotonic()
    note = f"{SWITCH}=0" if os.environ.get(SWITCH) == "0" else ""
    with (
        log.open("w") as file,
        subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True) as started,
    ):
        try:
            started.wait(limit_s)
        except subprocess.TimeoutExpired:
            end_group(started, signal.SIGTERM, STOP_S) or end_group(started, signal.SIGKILL, STOP_S)
            return Outcome(step.name, command, None, time.monotonic() - began, f"stopped after {limit_s:.0f} s")
    return Outcome(step.name, command, started.returncode, time.monotonic() - began, note)


def tail(log: Path) -> str:
    """The last lines of a log, for whoever watches."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return "\n".join(f"    {line}" for line in lines[-TAIL_LINES:])


def save(out: Path, runs: Path, outcomes: list[Outcome]) -> None:
    """Write what there is so far."""
    (out / "session.json").write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=2) + "\n")
    with tarfile.open(out / "runs.tar.gz", "w:gz") as archive:
        archive.add(runs, arcname="runs")


def chosen(names: str) -> list[Step]:
    """Steps by name, in the order named; all of them for no names."""
    by_name = {step.name: step for step in STEPS}
    unknown = [name for name in names.split(",") if name and name not in by_name]
    if unknown:
        raise SystemExit(f"Unknown step {unknown[0]!r}. Choose from: {', '.join(by_name)}.")
    return [by_name[name] for name in names.split(",") if name] or list(STEPS)


def arguments() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", default="", help="comma-separated; all when left out")
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder with gsm8k/ and aime25/")
    parser.add_argument("--runs", default="/tmp/gpu-runs", help="where run folders go")  # noqa: S108
    parser.add_argument("--seconds", type=float, default=540, help="for all steps together")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
