"""What other schedulers read is read here by their own tools, or by a parser of their format."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from evalharness.errors import SpecError, UnknownName
from evalharness.schedule.render import TARGETS, plan, render
from evalharness.watch.jobs import Job, Schedule, load_schedule

ODD = 'results of 100% $HOME "night\'s"'


def files(target: str, tmp_path: Path, folder: str = "results", **changes: object) -> dict[str, str]:
    job = Job.model_validate({"name": "canary-v3", "profile": "canary-v3", "at": "22:45", "grace_hours": 3, **changes})
    return render(target, plan(job, tmp_path / folder))


def test_an_unknown_target_lists_the_choices(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="systemd"):
        files("sysvinit", tmp_path)
    assert set(TARGETS) == {"systemd", "cron", "slurm", "kubernetes", "github"}


def test_a_job_must_be_called_as_its_runs_are(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="name: canary-v3"):
        plan(Job(name="other", profile="canary-v3"), tmp_path)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("folder", ["results", ODD])
def test_systemd_accepts_the_units(tmp_path: Path, folder: str) -> None:
    units = files("systemd", tmp_path, folder, days=["mon", "sun"])
    for name, text in units.items():
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", *(str(tmp_path / name) for name in units)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not [line for line in done.stderr.splitlines() if "evalharness" in line]


def test_systemd_runs_at_the_time_and_looks_after_the_grace(tmp_path: Path) -> None:
    units = files("systemd", tmp_path, ODD, days=["mon", "sun"])
    assert "OnCalendar=Mon,Sun *-*-* 22:45:00 UTC" in units["evalharness-canary-v3.timer"]
    assert "OnCalendar=Tue,Mon *-*-* 02:00:00 UTC" in units["evalharness-canary-v3-check.timer"]
    start = re.search(r"^ExecStart=(.*)$", units["evalharness-canary-v3.service"], re.MULTILINE)
    assert start
    words = [word.replace("%%", "%").replace("$$", "$") for word in shlex.split(start[1])]
    assert words[1:6] == ["-m", "evalharness", "schedule", "run", "canary-v3"]
    assert words[-1].endswith(ODD)


def cron_fields(line: str) -> tuple[list[str], str]:
    *fields, command = line.split(maxsplit=5)
    assert len(fields) == 5
    for field, most in zip(fields, (59, 23, 31, 12, 7), strict=True):
        assert field == "*" or all(0 <= int(part) <= most for part in field.split(","))
    return fields, command


def test_the_crontab_parses_and_a_percent_sign_is_escaped(tmp_path: Path) -> None:
    (text,) = files("cron", tmp_path, ODD, days=["sat", "sun"]).values()
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert lines[0] == "CRON_TZ=UTC"
    night, check = (cron_fields(line) for line in lines[1:])
    assert night[0] == ["45", "22", "*", "*", "6,0"]
    assert check[0] == ["0", "2", "*", "*", "0,1"]
    assert not re.search(r"(?<!\\)%", night[1])
    assert shlex.split(night[1].replace("\\%", "%"))[-1].endswith(ODD)


def test_the_sbatch_script_parses_and_queues_the_next_night_first(tmp_path: Path) -> None:
    (text,) = files("slurm", tmp_path, ODD).values()
    script = tmp_path / "night.sbatch"
    script.write_text(text)
    subprocess.run(["bash", "-n", str(script)], check=True)
    options = re.findall(r"^#SBATCH (--[a-z]+)=(.+)$", text, re.MULTILINE)
    assert dict(options)["--time"] == "390"
    assert text.index("sbatch --begin") < text.index("exec ")


@pytest.mark.parametrize(
    ("at", "days"), [("22:45", ["mon", "tue", "wed", "thu", "fri", "sat", "sun"]), ("01:10", ["wed"])]
)
def test_the_sbatch_script_finds_the_next_day(tmp_path: Path, at: str, days: list[str]) -> None:
    (text,) = files("slurm", tmp_path, at=at, days=days).values()
    script = text.replace("exec ", "exit 0 # ")
    fake = tmp_path / "sbatch"
    fake.write_text('#!/bin/sh\necho "$1"\n')
    fake.chmod(0o755)
    path = tmp_path / "night.sbatch"
    path.write_text(script)
    done = subprocess.run(
        ["bash", str(path)],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "TZ": "UTC"},
        capture_output=True,
        text=True,
        check=True,
    )
    begin = re.fullmatch(r"--begin=(\d{4}-\d\d-\d\d)T(\d\d:\d\d):00\n", done.stdout)
    assert begin
    assert begin[2] == at
    weekday = subprocess.run(
        ["date", "-d", begin[1], "+%a"],
        env={"LC_ALL": "C", "PATH": "/bin:/usr/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert weekday.stdout.strip().lower() in days


def test_the_cron_jobs_are_valid_and_never_overlap(tmp_path: Path) -> None:
    (text,) = files("kubernetes", tmp_path, days=["sun"]).values()
    config, night, check = yaml.safe_load_all(text)
    assert config["kind"] == "ConfigMap"
    for job in (night, check):
        assert job["apiVersion"] == "batch/v1"
        assert job["kind"] == "CronJob"
        assert re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", job["metadata"]["name"])
        assert job["spec"]["concurrencyPolicy"] == "Forbid"
        assert job["spec"]["timeZone"] == "Etc/UTC"
    assert night["spec"]["schedule"] == "45 22 * * 0"
    (container,) = night["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    assert container["command"][:6] == ["python", "-m", "evalharness", "schedule", "run", "canary-v3"]
    (tmp_path / "schedule.yaml").write_text(config["data"]["schedule.yaml"])
    assert load_schedule(tmp_path / "schedule.yaml").jobs[0].at == "22:45"


def test_a_gpu_profile_asks_for_its_gpus(tmp_path: Path) -> None:
    job = Job(name="dsv4-flash", profile="dsv4-flash")
    found = plan(job, tmp_path)
    assert found.gpus >= 1
    (slurm,) = render("slurm", found).values()
    assert f"#SBATCH --gres=gpu:{found.gpus}" in slurm
    (kubernetes,) = render("kubernetes", found).values()
    assert f"nvidia.com/gpu: {found.gpus}" in kubernetes
    assert "self-hosted" in render("github", found)["evalharness-dsv4-flash.yml"]


def test_the_workflow_is_valid_and_carries_results_from_night_to_night(tmp_path: Path) -> None:
    found = files("github", tmp_path)
    workflow = yaml.safe_load(found["evalharness-canary-v3.yml"])
    assert workflow["on"]["schedule"] == [{"cron": "45 22 * * *"}]
    steps = workflow["jobs"]["night"]["steps"]
    assert all(("uses" in step) != ("run" in step) for step in steps)
    used = [step.get("uses", "").partition("@")[0] for step in steps]
    assert used.index("actions/cache/restore") < used.index("actions/cache/save")
    assert load_schedule_text(found["schedule.yaml"], tmp_path).jobs[0].name == "canary-v3"


def load_schedule_text(text: str, tmp_path: Path) -> Schedule:
    path = tmp_path / "s.yaml"
    path.write_text(text)
    return load_schedule(path)
