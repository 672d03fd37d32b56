"""Slurm's commands, made small: sbatch runs its script in the background, srun its command, sacct says how it went."""

from __future__ import annotations

from pathlib import Path

COMMANDS = {
    "sbatch": """
        number=$(( $(ls {home} | grep -c script) + 1 ))
        cp "$1" {home}/$number.script
        SLURM_JOB_ID=$number setsid bash "$1" > {home}/$number.out 2>&1 &
        echo $! > {home}/$number.pid
        echo "Submitted batch job $number"
    """,
    "srun": """
        while [[ $1 == --* ]]; do
            case $1 in --output) out=$2; shift 2;; --error) err=$2; shift 2;; *) shift;; esac
        done
        out=${{out//%j/$SLURM_JOB_ID}}; err=${{err//%j/$SLURM_JOB_ID}}
        "$@" > ${{out//%t/0}} 2> ${{err//%t/0}}
    """,
    "sacct": """
        echo "JobID|State"
        for file in {home}/*.pid; do
            kill -0 $(cat $file) 2> /dev/null && state=RUNNING || state=COMPLETED
            echo "$(basename $file .pid)|$state"
        done
    """,
    "scancel": "kill -- -$(cat {home}/$1.pid)",
}


def install(folder: Path) -> Path:
    """Write the commands into `folder`/bin and return it; jobs leave their scripts in `folder`/jobs."""
    home, commands = folder / "jobs", folder / "bin"
    home.mkdir()
    commands.mkdir()
    for name, text in COMMANDS.items():
        path = commands / name
        path.write_text(f"#!/bin/bash\n{text.format(home=home)}")
        path.chmod(0o755)
    return commands
