"""The executor `slurm`: replicas as Slurm jobs, through submitit. Orders and answers pass over shared storage, in the
run's folder; the process that started the run joins them into its samples."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from evalharness.engines.base import Completion, Request
from evalharness.errors import EngineError, UnknownName, UsageError
from evalharness.records import ArmEvidence
from evalharness.runner.executors.base import Placement, refuse_endpoint, refuse_options
from evalharness.runner.executors.fleet import Fleet
from evalharness.runner.executors.mailbox import HEARTBEAT, REPLICAS, Desk, Outbox, earlier, end_all
from evalharness.runner.executors.room import Need
from evalharness.runner.executors.worker import Brief, Lost, Order, Report, Worker, heard
from evalharness.spec import ArmSpec, RunSpec
from evalharness.store import RunFolder, writing

MINUTES: Final = 240  # of a job, unless --slurm time=... says otherwise; it is then put back into the queue
REQUEUES: Final = 1000
CLUSTERS: Final = ("slurm", "local")
# What a replica's job depends on: its one process, the GPUs of the spec, the way back into the queue, its logs.
OURS: Final = {
    *("array", "error", "gpus", "gpus_per_node", "gpus_per_task", "no_requeue", "nodes", "ntasks", "ntasks_per_node"),
    *("open_mode", "output", "requeue", "signal"),
}
POLL_S: Final = 0.3
CLOSE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class SlurmExecutor:
    """`size` jobs of one replica each, submitted to `cluster` (`slurm`, or `local`: processes of this machine)."""

    submitit: Any
    cluster: str
    need: Need
    size: int
    options: Mapping[str, str]

    def begin(self, spec: RunSpec) -> None:
        """Nothing: jobs are submitted for a run that is planned."""

    def engine(self, spec: RunSpec, folder: RunFolder) -> Fleet:
        """The fleet of replicas, not yet submitted; their files lie in `folder`."""
        shards = _fresh(folder)
        return Fleet(SlurmCluster(self.submitter(shards / "jobs"), Brief.of(spec), shards, folder), self.size)

    def submitter(self, folder: Path) -> Any:
        """Submitit's executor with the parameters of a replica's job."""
        made = self.submitit.AutoExecutor(folder, cluster=self.cluster, slurm_max_num_timeout=REQUEUES)
        made.update_parameters(
            name="evalharness",
            timeout_min=MINUTES,
            nodes=1,
            tasks_per_node=1,
            gpus_per_node=self.need.gpus,
            slurm_additional_parameters={"requeue": True, **self.options},
        )
        return made

    def about(self) -> Mapping[str, str | int]:
        """Submitit's version, the number of jobs and what each takes."""
        version = self.submitit.__version__
        return {"executor": "slurm", "submitit": version, "replicas": self.size, **self.need.about()}

    def close(self) -> None:
        """Nothing is held beyond the fleet's jobs."""


@dataclass(frozen=True, slots=True)
class Job:
    """What runs in a Slurm job: a replica that serves what its folder orders."""

    brief: Brief
    folder: Path
    run: Path

    def __call__(self) -> None:
        """Serve until the folder says to end."""
        desk, run = Desk(self.folder), RunFolder(self.run)
        worker = Worker(self.brief, lambda arm: run.log_path(f"{arm}.{self.folder.name}"))
        try:
            for order in desk.orders():
                for line in worker.serve(order):
                    desk.tell(line)
                    if desk.recalled:
                        worker.recall()
        finally:
            worker.close()

    def checkpoint(self) -> Any:
        """What submitit puts back into the queue when the job is preempted or out of time: the same again."""
        return import_module("submitit.helpers").DelayedSubmission(self)


class SlurmCluster:
    """A job and a folder for each replica."""

    patience_s: float | None = None  # a queue may take its time

    def __init__(self, submitter: Any, brief: Brief, shards: Path, run: RunFolder) -> None:
        self._submitter, self._brief, self._shards, self._run = submitter, brief, shards, run.path.absolute()
        self._boxes: dict[str, Outbox] = {}
        self._jobs: dict[str, Any] = {}
        self._all_well = True

    def hire(self, name: str) -> None:
        """Submit a job.

        Raises:
            StoreError: its files cannot be written.
            EngineError: sbatch refused it; in its words.
        """
        folder = self._shards / name.replace(" ", "-")
        with writing(folder):
            box, job = Outbox(folder), self._submitted(folder)
        self._boxes[name], self._jobs[name] = box, job

    def send(self, name: str, order: Order) -> None:
        """Write the order into the replica's folder."""
        with writing(self._shards):
            self._boxes[name].send(order)

    def earlier(self, arm: ArmSpec, wanted: Mapping[str, Request]) -> Iterator[tuple[str, ArmEvidence | Completion]]:
        """What jobs of earlier sittings told after the run that had submitted them was killed."""
        for folder in sorted(self._shards.parent.glob(REPLICAS)):
            if folder.parent != self._shards:
                yield from earlier(folder, arm, wanted)

    def recall(self, name: str) -> None:
        """Leave word in the replica's folder."""
        with writing(self._shards):
            self._boxes[name].recall()

    def reports(self, timeout_s: float) -> Iterator[tuple[str, Report]]:
        """New lines of every replica; a job that ended, and has told all, is lost."""
        deadline, quiet = time.monotonic() + timeout_s, True
        while quiet:
            with writing(self._shards):
                (self._shards / HEARTBEAT).touch()
            for name, box in list(self._boxes.items()):
                ended = self._jobs[name].done()  # asked first, so that its last words are read
                lines = box.news()
                yield from ((name, heard(line)) for line in lines)
                if ended and not lines:
                    yield name, Lost(_last_words(self._jobs[name]))
                quiet = quiet and not lines and not ended
            if time.monotonic() > deadline:
                return
            if quiet:
                time.sleep(POLL_S)

    def dismiss(self, name: str) -> None:
        """Cancel the job. Its files stay, to be looked at."""
        self._all_well = False
        self._boxes.pop(name, None)
        job = self._jobs.pop(name, None)
        if job is not None:
            job.cancel(check=False)

    def close(self) -> None:
        """Have every job end; when all did as they should, their folders go: what they told is in the samples."""
        for name, box in list(self._boxes.items()):
            try:
                box.close()
            except OSError:  # no room for word of it
                self.dismiss(name)
        deadline = time.monotonic() + CLOSE_S
        while not all(job.done() for job in self._jobs.values()) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        for name in [name for name, job in self._jobs.items() if not job.done()]:
            self.dismiss(name)
        if self._all_well:
            shutil.rmtree(self._shards, ignore_errors=True)
            with suppress(OSError):
                self._shards.parent.rmdir()

    def _submitted(self, folder: Path) -> Any:
        try:
            return self._submitter.submit(Job(self._brief, folder, self._run))
        except OSError:
            raise
        except Exception as error:  # submitit's own errors, and those of a subprocess
            said = " ".join(str(error).split())
            raise EngineError(f"Slurm took no job: {said[:500]}.", "Correct the options given with --slurm.") from error


def connect(placement: Placement, spec: RunSpec) -> SlurmExecutor:
    """See that jobs can be submitted from here.

    Raises:
        UsageError: options of another executor, one that is not KEY=VALUE, is given twice or would be of no use, or an
            engine that has no replicas.
        EngineError: submitit or Slurm's commands are missing, or a replica needs more than one node.
    """
    refuse_options(placement, "address")
    refuse_endpoint(spec)
    cluster, options = _options(placement.slurm)
    need = Need.of(spec)
    if need.spread:
        raise EngineError(
            "A replica's job has one node.", "For one that spreads over nodes start Ray in the job: --executor ray."
        )
    missing = [command for command in ("sbatch", "srun") if shutil.which(command) is None]
    if missing and cluster == "slurm":
        raise EngineError(
            f"There is no {missing[0]} on this machine's PATH.",
            "Start the run on a login node of the cluster; --slurm cluster=local tries it without one.",
        )
    return SlurmExecutor(_installed(), cluster, need, placement.replicas or 1, options)


def _installed() -> Any:
    try:
        return import_module("submitit")
    except ImportError as error:
        raise EngineError("submitit is not installed.", "pip install 'evalharness[slurm]'") from error


def _options(texts: tuple[str, ...]) -> tuple[str, dict[str, str]]:
    """The cluster that --slurm options name, and those of sbatch among them; none is dropped in silence."""
    options: dict[str, str] = {}
    for text in texts:
        name, _, value = text.partition("=")
        key = name.replace("-", "_")
        if not (key and value):
            raise UsageError(f"--slurm {text} is not KEY=VALUE.", "Write for example partition=gpu.")
        if key in options:
            raise UsageError(f"--slurm {name} is given twice.", "Leave one of them out.")
        if key in OURS:
            raise UsageError(f"--slurm {name} is not free: a replica's job sets it itself.", "Leave it out.")
        options[key] = value
    cluster = options.pop("cluster", CLUSTERS[0])
    if cluster not in CLUSTERS:
        raise UnknownName("cluster", cluster, CLUSTERS)
    if cluster == "local" and options:
        raise UsageError(f"--slurm cluster=local has no use for {', '.join(options)}.", "Leave it out.")
    return cluster, options


def _fresh(run: RunFolder) -> Path:
    """A place for this sitting's files; jobs of earlier ones, whose run was killed, are told to end."""
    shards = run.path.absolute() / "shards"
    with writing(shards):
        end_all(shards)
    return shards / str(1 + sum(1 for _ in shards.glob("*")))


def _last_words(job: Any) -> str:
    """How a job ended, and the last line that it printed."""
    try:
        lines = job.paths.stderr.read_text(errors="replace").strip().splitlines()
    except OSError:
        lines = []
    return f"Job {job.job_id} ended ({job.state}): {lines[-1] if lines else 'it printed nothing'}."
