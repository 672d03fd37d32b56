"""What other schedulers read: systemd units, a crontab line, an sbatch script, a CronJob, a workflow."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import yaml

from evalharness.engines.vllm_settings import gpus
from evalharness.errors import SpecError, UnknownName
from evalharness.spec import VllmEngine, load_spec
from evalharness.watch.jobs import FILE, WEEK, Job, plain_job

MARGIN: Final = timedelta(minutes=30)  # beyond the night's own timeout, for comparison, site and alerts
CHECK_AFTER: Final = timedelta(minutes=15)  # past the grace
CONFIG_FOLDER: Final = "/etc/evalharness"
IMAGE: Final = "ghcr.io/example/evalharness:latest"


@dataclass(frozen=True, slots=True)
class Plan:
    """A job with all that its files need. `gpus` is 0 for an engine that needs none."""

    job: Job
    results: Path
    gpus: int
    image: str = IMAGE
    python: str = sys.executable

    @property
    def unit(self) -> str:
        """The name of its units and jobs."""
        return f"evalharness-{self.job.name}"

    def command(self, *words: str) -> list[str]:
        """`python -m evalharness schedule ...` on this machine, as an argument list."""
        return [self.python, "-m", "evalharness", "schedule", *words, "--out", str(self.results.absolute())]

    def command_elsewhere(self, *words: str, results: str, config: str) -> list[str]:
        """The same where this machine's folders are not."""
        return ["python", "-m", "evalharness", "schedule", *words, "--out", results, "--config", config]

    @property
    def schedule(self) -> str:
        """A schedule of this job alone, for a machine that does not share the results folder."""
        return yaml.safe_dump({"jobs": [plain_job(self.job)]}, sort_keys=False)

    @property
    def limit(self) -> timedelta:
        """After which the scheduler itself may end the job."""
        return self.job.timeout + MARGIN


def plan(job: Job, results: Path, image: str = IMAGE) -> Plan:
    """A plan for `job`.

    Raises:
        UnknownName: its profile does not exist.
        SpecError: the profile does not hold together, or its runs would have another name than the job.
    """
    spec = load_spec(job.profile, job.settings)
    if spec.name != job.name:
        raise SpecError(
            f"The job {job.name} runs {job.profile}, whose runs are called {spec.name}.", f"Give it name: {spec.name}."
        )
    return Plan(job, results, gpus(spec.engine) if isinstance(spec.engine, VllmEngine) else 0, image)


def render(target: str, found: Plan) -> dict[str, str]:
    """File name -> text of everything `target` needs; raises UnknownName."""
    if target not in TARGETS:
        raise UnknownName("target", target, TARGETS)
    return TARGETS[target](found)


# --- systemd ------------------------------------------------------------------------------------------------


def _systemd(found: Plan) -> dict[str, str]:
    """The night with its timer, and a watchman that looks when the night should have begun."""
    job = found.job
    due = _clock(job)
    check = due + job.grace + CHECK_AFTER
    night = _service(f"Nightly accuracy of {job.name}", found.command("run", job.name), found.limit)
    watch = _service(f"Did the night of {job.name} begin?", found.command("check"), timedelta(minutes=30))
    return {
        f"{found.unit}.service": night,
        f"{found.unit}.timer": _timer(f"Nightly accuracy of {job.name}", job.days, due),
        f"{found.unit}-check.service": watch,
        f"{found.unit}-check.timer": _timer(f"Watch over {job.name}", _shifted(job, check), check),
    }


def _service(description: str, command: list[str], limit: timedelta) -> str:
    return f"""\
[Unit]
Description={description}
Wants=network-online.target
After=network-online.target

[Service]
Type=oneshot
WorkingDirectory={_specifiers(str(Path.cwd()))}
ExecStart={" ".join(_systemd_word(word) for word in command)}
TimeoutStartSec={round(limit.total_seconds())}
KillMode=mixed
"""


def _timer(description: str, days: tuple[str, ...], clock: timedelta) -> str:
    on = "" if len(days) == len(WEEK) else ",".join(day.capitalize() for day in days) + " "
    return f"""\
[Unit]
Description={description}

[Timer]
OnCalendar={on}*-*-* {_hhmm(clock)}:00 UTC
Persistent=true

[Install]
WantedBy=timers.target
"""


def _specifiers(text: str) -> str:
    return text.replace("%", "%%")


def _systemd_word(word: str) -> str:
    """One quoted argument of ExecStart: no specifier, variable or escape in it is expanded."""
    quoted = word.replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$")
    return f'"{_specifiers(quoted)}"'


# --- cron, Slurm --------------------------------------------------------------------------------------------


def _cron(found: Plan) -> dict[str, str]:
    """A crontab: a percent sign would end the command there."""
    job, due = found.job, _clock(found.job)
    check = due + job.grace + CHECK_AFTER
    lines = (
        (due, job.days, found.command("run", job.name)),
        (check, _shifted(job, check), found.command("check")),
    )
    rows = [
        f"{_cron_time(clock, days)} {shlex.join(words).replace('%', chr(92) + '%')}" for clock, days, words in lines
    ]
    head = "# Times are UTC. A cron that ignores CRON_TZ (Debian's) reads them as local time: shift them there."
    return {f"{found.unit}.cron": "\n".join((head, "CRON_TZ=UTC", *rows)) + "\n"}


def _slurm(found: Plan) -> dict[str, str]:
    """An sbatch script that queues the next night first, so that a failing one does not end the chain."""
    job = found.job
    gres = f"#SBATCH --gres=gpu:{found.gpus}\n" if found.gpus else ""
    days = " ".join(str(WEEK.index(day) + 1) for day in job.days)
    text = f"""\
#!/bin/bash
#SBATCH --job-name={found.unit}
#SBATCH --time={round(found.limit.total_seconds() / 60)}
#SBATCH --output={found.results.absolute()}/slurm-%j.log
#SBATCH --dependency=singleton
{gres}
# Submit once: sbatch {found.unit}.sbatch. Every night queues the next one; scancel --name={found.unit} ends it.
set -u
for ahead in 1 2 3 4 5 6 7; do
  day=$(date -u -d "+$ahead day" +%u)
  case " {days} " in *" $day "*) break ;; esac
done
begin=$(date -d "$(date -u -d "+$ahead day" +%F) {job.at} UTC" +%Y-%m-%dT%H:%M:%S)
sbatch --begin="$begin" "$0"

exec {shlex.join(found.command("run", job.name))}
"""
    return {f"{found.unit}.sbatch": text}


# --- Kubernetes, GitHub -------------------------------------------------------------------------------------


def _kubernetes(found: Plan) -> dict[str, str]:
    """CronJobs over one claim that holds the results, and the schedule as a ConfigMap."""
    job, due = found.job, _clock(found.job)
    check = due + job.grace + CHECK_AFTER
    night = _cron_job(found, found.unit, _cron_time(due, job.days), ("run", job.name), found.limit, found.gpus)
    words = _cron_time(check, _shifted(job, check))
    watch = _cron_job(found, f"{found.unit}-check", words, ("check",), timedelta(minutes=30), 0)
    schedule = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": _dns_name(found.unit)},
        "data": {FILE: found.schedule},
    }
    return {f"{found.unit}.yaml": yaml.safe_dump_all([schedule, night, watch], sort_keys=False)}


def _cron_job(
    found: Plan, name: str, schedule: str, words: tuple[str, ...], limit: timedelta, gpus: int
) -> Mapping[str, Any]:
    container: dict[str, Any] = {
        "name": "evalharness",
        "image": found.image,
        "command": found.command_elsewhere(*words, results="/results", config=f"{CONFIG_FOLDER}/{FILE}"),
        "volumeMounts": [
            {"name": "results", "mountPath": "/results"},
            {"name": "schedule", "mountPath": CONFIG_FOLDER, "readOnly": True},
        ],
    }
    if gpus:
        container["resources"] = {"limits": {"nvidia.com/gpu": gpus}}
    pod = {
        "restartPolicy": "Never",
        "containers": [container],
        "volumes": [
            {"name": "results", "persistentVolumeClaim": {"claimName": "evalharness-results"}},
            {"name": "schedule", "configMap": {"name": _dns_name(found.unit)}},
        ],
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {"name": _dns_name(name)},
        "spec": {
            "schedule": schedule,
            "timeZone": "Etc/UTC",
            "concurrencyPolicy": "Forbid",
            "startingDeadlineSeconds": round(found.job.grace.total_seconds()),
            "jobTemplate": {
                "spec": {
                    "backoffLimit": 0,
                    "activeDeadlineSeconds": round(limit.total_seconds()),
                    "template": {"spec": pod},
                }
            },
        },
    }


def _dns_name(name: str) -> str:
    """A name Kubernetes accepts: at most 52 of lower case, digits and dashes for a CronJob."""
    plain = "".join(c if c.isalnum() else "-" for c in name.lower())
    return plain if len(plain) <= 52 else f"{plain[:36]}-{plain[-15:]}".strip("-")


def _github(found: Plan) -> dict[str, str]:
    """A workflow that carries results from night to night in a cache and publishes the site as an artifact, and the
    schedule that belongs beside it at the top of the repository."""
    job = found.job
    run = shlex.join(found.command_elsewhere("run", job.name, results="results", config=FILE))
    build = f"python -m evalharness dashboard build --results results --config {FILE} --out site"
    cache = {
        "path": "results",
        "key": "evalharness-results-${{ github.run_id }}",
        "restore-keys": "evalharness-results-",
    }
    install = "pip install 'evalharness[vllm]'" if found.gpus else "pip install evalharness"
    steps: list[dict[str, Any]] = [
        {"uses": "actions/checkout@v4"},
        {"uses": "actions/setup-python@v5", "with": {"python-version": "3.12"}},
        {"run": install},
        {"uses": "actions/cache/restore@v4", "with": cache},
        {"name": "Night", "run": run},
        {"name": "Site", "if": "always()", "run": build},
        {"uses": "actions/cache/save@v4", "if": "always()", "with": {key: cache[key] for key in ("path", "key")}},
        {"uses": "actions/upload-artifact@v4", "if": "always()", "with": {"name": "accuracy-site", "path": "site"}},
    ]
    workflow = {
        "name": f"Nightly accuracy: {job.name}",
        "on": {"schedule": [{"cron": _cron_time(_clock(job), job.days)}], "workflow_dispatch": {}},
        "permissions": {"contents": "read"},
        "concurrency": {"group": found.unit, "cancel-in-progress": False},
        "jobs": {
            "night": {
                "runs-on": ["self-hosted", "gpu"] if found.gpus else "ubuntu-latest",
                "timeout-minutes": round(found.limit.total_seconds() / 60),
                "steps": steps,
            }
        },
    }
    text = yaml.safe_dump(workflow, sort_keys=False, width=1000)
    return {f"{found.unit}.yml": text, FILE: found.schedule}


# --- times --------------------------------------------------------------------------------------------------


def _clock(job: Job) -> timedelta:
    hours, _, minutes = job.at.partition(":")
    return timedelta(hours=int(hours), minutes=int(minutes))


def _shifted(job: Job, clock: timedelta) -> tuple[str, ...]:
    """The days on which `clock`, counted from the due day's midnight, falls."""
    return tuple(WEEK[(WEEK.index(day) + clock.days) % len(WEEK)] for day in job.days)


def _hhmm(clock: timedelta) -> str:
    minutes = int(clock.total_seconds()) // 60 % (24 * 60)
    return f"{minutes // 60:02}:{minutes % 60:02}"


def _cron_time(clock: timedelta, days: tuple[str, ...]) -> str:
    hours, minutes = _hhmm(clock).split(":")
    on = "*" if len(days) == len(WEEK) else ",".join(str((WEEK.index(day) + 1) % 7) for day in days)
    return f"{int(minutes)} {int(hours)} * * {on}"


TARGETS: Final[dict[str, Callable[[Plan], dict[str, str]]]] = {
    "systemd": _systemd,
    "cron": _cron,
    "slurm": _slurm,
    "kubernetes": _kubernetes,
    "github": _github,
}
