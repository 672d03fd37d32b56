"""What goes wrong on a GPU host, provoked: fifteen faults of the vllm engine that a user was promised words for.

    python scripts/gpu_faults.py OUT [--cases killed-capturing,interrupted,...] [--seconds 540] [--together]

Runs `evalharness run canary-v3-gpu` once a case, does the damage from outside (a signal, an environment, a process
that holds the GPU's memory) and checks what is left: exit code, state of the arm, an error that names its remedy,
finished answers, processes, GPU memory and, where a run can go on, that `--resume` finishes it. Prints a row a case;
OUT receives faults.json (what it ran on, a row a case, the GPU memory held after the last), the run folders and what
each run printed. Exit status 1: a check failed, or a case was skipped. With --together all cases that leave room for
others share the GPU; its memory is then looked at once, after the last.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from evalharness.engines.gpu import visible_gpus, wait_until_released
from evalharness.provenance import collect

MARK = "EVALHARNESS_FAULT_RUN"  # every process of a run inherits it
PROFILE, TASK = "canary-v3-gpu", "gsm8k_canary"
DOCUMENTS = 400
SOME = 20
POLL_S, MOMENT_S = 0.02, 0.001
GONE_S = 15.0
ANSWERED = {0, 1, 3, 4}  # exit codes of a run that reached a verdict
FAILED, INVALID, RUNNING, DONE = "failed", "invalid", "running", "done"
RESUME = r"--resume"
# vLLM takes what others allocate while it measures for its own; told the cache's size, it does not measure.
SHARED = ("engine.engine_args={kv_cache_memory_bytes: 1000000000}",)
BALLAST = Path(__file__).parent / "gpu/ballast.py"


class Missed(Exception):
    """The moment for a fault did not come."""


class Running:
    """One run of the harness: its processes, its folder, its output."""

    def __init__(self, command: list[str], place: Path, environment: Mapping[str, str], limit_s: float) -> None:
        self.results, self.printed, self.mark = place / "runs", place / "printed.txt", uuid.uuid4().hex
        self.deadline = time.monotonic() + limit_s
        self.sessions: set[int] = set()
        with self.printed.open("a") as file:
            self.process = subprocess.Popen(
                command,
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **environment, MARK: self.mark},
                start_new_session=True,
            )

    @property
    def folder(self) -> Path | None:
        """The run's folder, once there is one."""
        return next((path.parent for path in self.results.glob("*/run.json")), None)

    def saved(self) -> int:
        """Answers on disk that were not lost to infrastructure."""
        return len(answers(self.folder))

    def log(self, arm: str) -> str:
        """What the engine printed under `arm`."""
        path = (self.folder or self.results) / "logs" / f"{arm}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def until(self, happened: Callable[[], bool], every_s: float = POLL_S) -> None:
        """Wait for a moment of the run; raises Missed when it ends before."""
        while not happened():
            if self.process.poll() is not None:
                raise Missed("the run ended before the fault could be provoked")
            if time.monotonic() > self.deadline:
                raise Missed("the moment for the fault did not come in time")
            time.sleep(every_s)

    def processes(self) -> dict[int, int]:
        """Live processes of this run and their sessions: by the mark they inherited or, should they hide it, by
        the session of one that does not."""
        found = dict(live_processes())
        marked = f"{MARK}={self.mark}".encode()
        self.sessions |= {session for pid, session in found.items() if marked in read(pid, "environ")}
        return {pid: session for pid, session in found.items() if session in self.sessions}

    def engine(self) -> int:
        """The process that has the GPU: vLLM's EngineCore, where it has one, else the engine's child process."""
        ours = {pid: session for pid, session in self.processes().items() if session != self.process.pid}
        leaders = [pid for pid, session in ours.items() if pid == session]
        cores = [pid for pid in ours if pid not in leaders and (b"EngineCore" in read(pid, "cmdline") or on_gpu(pid))]
        if not (cores or leaders):
            raise Missed("no engine process was found")
        return (cores or leaders)[0]

    def end(self) -> None:
        """Kill what is left; for runs that passed their limit."""
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


Fault = Callable[[Running], int]


def killed_loading(run: Running) -> int:
    """Kill the engine once it has opened the GPU and before it is asked for an arm."""
    run.until(lambda: any(map(on_gpu, run.processes())))
    os.kill(run.engine(), signal.SIGKILL)
    if run.log("patched"):
        raise Missed("the model was loaded before the kill")
    return run.saved()


def killed_capturing(run: Running) -> int:
    """Kill the engine in the middle of the arm's capture, which begins when the prefix cache has been emptied."""
    run.until(lambda: "reset prefix cache" in run.log("stock"), MOMENT_S)
    os.kill(run.engine(), signal.SIGKILL)
    if "along the stock path" in run.log("stock"):
        raise Missed("the capture was over before the kill")
    return run.saved()


def answering(victim: Callable[[Running], int], number: signal.Signals) -> Fault:
    """Signal a process of the run once some answers are saved."""

    def fault(run: Running) -> int:
        run.until(lambda: run.saved() >= SOME)
        pid, saved = victim(run), run.saved()
        os.kill(pid, number)
        return saved

    return fault


def harness(run: Running) -> int:
    """The harness itself as a fault's victim."""
    return run.process.pid


def nothing(run: Running) -> int:
    """The fault lies in how the run was started."""
    return run.saved()


@dataclass(frozen=True, slots=True)
class Case:
    """One fault and what was promised for it. `says` and `remedy` are patterns of the error; `state` is the arm's,
    None where no run may begin; `site` is the text of a sitecustomize.py that every process of the run loads; `alone`:
    it takes more of the GPU than others could spare."""

    name: str
    arm: str
    exit_code: int
    state: str | None
    says: str
    remedy: str
    settings: tuple[str, ...] = ()
    fault: Fault = nothing
    environment: Mapping[str, str] = field(default_factory=dict)
    site: str = ""
    alone: bool = False
    ballast: bool = False
    resumes: bool = False
    limit_s: float = 300


OWN_CORE = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}  # vLLM's EngineCore in a process of its own
SLOW_CAPTURE = ("engine.max_num_seqs=64", f"engine.capture_sizes={list(range(1, 65))}")
CASES = (
    Case("model-missing", "patched", 5, FAILED, "nobody/nothing", "engine.model|hf download|connection",
         ("engine.model=nobody/nothing",)),
    Case("mode-unknown", "patched", 2, None, "cudagraph_mode", "FULL_DECODE_ONLY",
         ("engine.cudagraph_mode=PIECEWISE",)),
    Case("backend-refused", "patched", 5, FAILED, "Selected backend .* is not valid", "engine.attention_backend",
         ("engine.attention_backend=FLASH_ATTN",)),
    Case("memory-taken", "patched", 5, FAILED, "GiB free", "gpu_memory_utilization", alone=True, ballast=True),
    Case("memory-short", "patched", 5, FAILED, "out of memory|OutOfMemory", "gpu_memory_utilization",
         ("engine.engine_args={kv_cache_memory_bytes: 300000000000}",), alone=True),
    Case("start-slow", "patched", 5, FAILED, "did not answer within 5 s", "engine.start_timeout_s",
         ("engine.start_timeout_s=5",)),
    Case("killed-loading", "patched", 5, FAILED, "SIGKILL", RESUME, (), killed_loading),
    Case("killed-capturing", "stock", 5, FAILED, "SIGKILL", RESUME, SLOW_CAPTURE, killed_capturing),
    Case("killed-generating", "patched", 5, FAILED, "killed by SIGKILL", RESUME, (),
         answering(Running.engine, signal.SIGKILL), OWN_CORE, resumes=True),
    Case("hanging", "patched", 5, FAILED, "did not answer within 15 s", "stall_timeout_s",
         ("engine.stall_timeout_s=15",), answering(Running.engine, signal.SIGSTOP), OWN_CORE),
    Case("plugin-missing", "patched", 4, INVALID, "plugin did not load", "VLLM_PLUGINS",
         environment={"VLLM_PLUGINS": "another_plugin"}),
    Case("runner-v1", "patched", 4, INVALID, "runner is V1", "VLLM_USE_V2_MODEL_RUNNER",
         environment={"VLLM_USE_FLASHINFER_SAMPLER": "0"},  # V1's sampler wants a package that may be missing
         site='import os\nos.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"\n'),
    Case("mode-fallback", "patched", 4, INVALID, "cudagraph_mode is", "engine.cudagraph_mode",
         ("engine.cudagraph_mode=FULL_AND_PIECEWISE",)),
    Case("interrupted", "patched", 130, RUNNING, "interrupted", RESUME, (), answering(harness, signal.SIGINT)),
    Case("terminated", "patched", 130, RUNNING, "interrupted", RESUME, (), answering(harness, signal.SIGTERM)),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a case; `wrong` lists the promises that were not kept."""

    case: str
    exit_code: int | None
    state: str | None
    kept: int
    processes_left: int
    gpu_mib_left: int | None
    resumed: str
    seconds: float
    message: str
    wrong: tuple[str, ...]


def main() -> int:
    """Provoke the chosen faults."""
    options = arguments()
    options.out.mkdir(parents=True, exist_ok=True)
    cases, before = chosen(options.cases), visible_gpus()
    results: list[Result] = []
    found = {"on": collect(), "cases": results, "gpu_mib_left_at_end": None}
    for result in provoked(cases, options):
        results.append(result)
        write(options.out / "faults.json", found)
        print(row(result), flush=True)
    holding = wait_until_released(before, GONE_S)
    found["gpu_mib_left_at_end"] = sum(gpu.used >> 20 for gpu in holding) if before else None
    write(options.out / "faults.json", found)
    for gpu in holding:
        print(f"GPU {gpu.index} still has {gpu.used >> 20} MiB in use after the last case")
    return int(bool(holding) or len(results) < len(cases) or any(result.wrong for result in results))


def write(path: Path, found: Mapping[str, Any]) -> None:
    """What was found so far, as JSON."""
    path.write_text(json.dumps(found, indent=2, default=asdict) + "\n")


def provoked(cases: Sequence[Case], options: argparse.Namespace) -> Iterator[Result]:
    """Results as they come: of the cases that may share the GPU, where that is asked for, then of each other one."""
    deadline = time.monotonic() + options.seconds
    sharing = [case for case in cases if options.together and not case.alone]
    with ThreadPoolExecutor(len(sharing) or 1) as pool:
        started = [pool.submit(provoke, replace(case, settings=SHARED + case.settings), options) for case in sharing]
        yield from (done.result() for done in as_completed(started))
    for case in cases:
        if case not in sharing and time.monotonic() < deadline:
            yield provoke(case, options)
        elif case not in sharing:
            print(f"{case.name:18} skipped: no time left", flush=True)


def row(result: Result) -> str:
    """One line for whoever watches, and a second one for what is wrong."""
    gpu = "-" if result.gpu_mib_left is None else str(result.gpu_mib_left)
    line = (
        f"{result.case:18} {'WRONG' if result.wrong else 'ok':5} exit {result.exit_code} arm {result.state}"
        f" kept {result.kept} processes {result.processes_left} GPU MiB {gpu} resumed {result.resumed}"
        f" {result.seconds:.0f} s: {result.message}"
    )
    return "\n    ".join([line, *result.wrong])


def provoke(case: Case, options: argparse.Namespace) -> Result:
    """Run one case to its end, and judge it."""
    place = options.out / case.name
    place.mkdir(parents=True)
    before, began = visible_gpus(), time.monotonic()
    wrong: list[str] = []
    with ballast() if case.ballast else nullcontext():
        run = start(case, place, options, ["--limit", str(DOCUMENTS)])
        saved = attended(run, case, case.fault, wrong)
        left = leftover(run)
    shared = options.together and not case.alone
    holding = [] if shared else wait_until_released(before, GONE_S)
    arm, kept, code = arm_of(run.folder, case.arm), run.saved(), run.process.returncode
    message, state = str(arm.get("message") or last_line(run.printed, case.says)), arm.get("state")
    wrong += judged(case, code, state, message, run.printed.read_text())
    wrong += [f"{saved - kept} saved answers are gone"] if kept < saved else []
    wrong += [f"process {pid} is left" for pid in left] + [f"GPU {gpu.index} is not given back" for gpu in holding]
    resumed = resume(case, run, options, wrong) if case.resumes else "-"
    mib, took = sum(gpu.used >> 20 for gpu in holding) if before and not shared else None, time.monotonic() - began
    return Result(case.name, code, state, kept, len(left), mib, resumed, took, message[:300], tuple(wrong))


def start(case: Case, place: Path, options: argparse.Namespace, more: list[str]) -> Running:
    """Start the harness on the case's arm, or let it go on with `more`."""
    environment = dict(case.environment)
    if case.site:
        (place / "sitecustomize.py").write_text(case.site)
        environment["PYTHONPATH"] = os.pathsep.join([str(place), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [*shlex.split(options.harness), "run", "--out", str(place / "runs"), *more]
    if "--resume" not in more:
        command += [PROFILE, "--arms", case.arm, "--tasks", TASK]
        command += [part for setting in case.settings for part in ("--set", setting)]
    return Running(command, place, environment, case.limit_s)


def attended(run: Running, case: Case, fault: Fault, wrong: list[str]) -> int:
    """Provoke the fault and wait for the run's end; the answers that were saved when it struck."""
    saved = 0
    try:
        saved = fault(run)
    except Missed as error:
        wrong.append(str(error))
    while run.process.poll() is None:
        if time.monotonic() > run.deadline:
            wrong.append(f"the run did not end within {case.limit_s:.0f} s")
            run.end()
        run.processes()  # learns of sessions while those who began them are there
        time.sleep(POLL_S)
    return saved


def judged(case: Case, code: int | None, state: str | None, message: str, printed: str) -> Iterator[str]:
    """The promises about words and states that were not kept."""
    if code != case.exit_code:
        yield f"exit code {code}, promised {case.exit_code}"
    if state != case.state:
        yield f"the arm is {state}, promised {case.state}"
    for pattern in (case.says, case.remedy):
        if not re.search(pattern, message) and not (case.state in {None, RUNNING} and re.search(pattern, printed)):
            yield f"the error does not say {pattern!r}"
    if "Traceback" in printed:
        yield "the user was shown a traceback"


def resume(case: Case, run: Running, options: argparse.Namespace, wrong: list[str]) -> str:
    """Let the run go on to its end: `answers/DOCUMENTS`."""
    earlier = answers(run.folder)
    again = start(case, run.results.parent, options, ["--resume", run.folder.name if run.folder else "latest"])
    attended(again, case, nothing, wrong)
    now, arm = answers(run.folder), arm_of(run.folder, case.arm)
    if again.process.returncode not in ANSWERED or arm.get("state") != DONE:
        wrong.append(f"--resume ended with {again.process.returncode}, the arm is {arm}")
    if len(now) != DOCUMENTS or len(set(now)) != DOCUMENTS or now[: len(earlier)] != earlier:
        wrong.append(f"--resume left {len(now)} answers to {len(set(now))} of {DOCUMENTS} questions")
    wrong += [f"process {pid} is left after --resume" for pid in leftover(again)]
    return f"{len(now)}/{DOCUMENTS}"


def leftover(run: Running) -> list[int]:
    """Processes of the run that outlive it by GONE_S."""
    deadline = time.monotonic() + GONE_S
    while (left := list(run.processes())) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return left


@contextmanager
def ballast() -> Iterator[None]:
    """Somebody else's process that holds the GPU's memory."""
    command = [sys.executable, str(BALLAST)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None  # noqa: S101 - PIPE was asked for
        if holder.stdout.readline() != "holding\n":
            print("the GPU's memory could not be taken", flush=True)
        yield


# --- what lies on disk and in /proc ----------------------------------------------------------------------


def answers(folder: Path | None) -> list[tuple[str, int]]:
    """(document, repeat) of every whole answer line that is not an infrastructure error, in order."""
    files = folder.glob("samples/*/*.jsonl") if folder else ()
    lines = [line for path in files for line in path.read_bytes().splitlines(True)]
    rows = [json.loads(line) for line in lines if line.endswith(b"\n")]
    return [(sample["doc_hash"], sample["repeat"]) for sample in rows if sample["cause"] != "error"]


def arm_of(folder: Path | None, name: str) -> dict[str, Any]:
    """The arm's summary in run.json; empty when no run began."""
    arms = json.loads((folder / "run.json").read_text())["arms"] if folder else []
    return next((arm for arm in arms if arm["name"] == name), {})


def last_line(printed: Path, pattern: str) -> str:
    """The last line of the output that fits."""
    lines = printed.read_text(errors="replace").splitlines()
    return next((line.strip() for line in reversed(lines) if re.search(pattern, line)), "")


def live_processes() -> Iterator[tuple[int, int]]:
    """(pid, session) of every process that is no zombie."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            state, _, _, session = (read(int(entry.name), "stat").rpartition(b")")[2].split() + [b"Z"] * 4)[:4]
            if state != b"Z":
                yield int(entry.name), int(session)


def read(pid: int, name: str) -> bytes:
    """A file of /proc/PID; empty when the process is gone or another user's."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def on_gpu(pid: int) -> bool:
    """Whether the process has a CUDA context."""
    try:
        return any(link.readlink().name == "nvidia-uvm" for link in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False


def chosen(names: str) -> list[Case]:
    """Cases by name, in the order named; all of them for no names."""
    by_name = {case.name: case for case in CASES}
    unknown = [name for name in names.split(",") if name and name not in by_name]
    if unknown:
        raise SystemExit(f"Unknown case {unknown[0]!r}. Choose from: {', '.join(by_name)}.")
    return [by_name[name] for name in names.split(",") if name] or list(CASES)


def arguments() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=lambda text: Path(text).resolve())
    parser.add_argument("--cases", default="", help="comma-separated; all when left out")
    parser.add_argument("--seconds", type=float, default=540, help="no case begins later than this")
    parser.add_argument("--together", action="store_true", help="many cases at a time")
    parser.add_argument("--harness", default=f"{sys.executable} -m evalharness", help="what stands for `evalharness`")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
