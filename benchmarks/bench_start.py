"""From the shell to the end of every command on the smallest work there is for it: its start.

The floor is an interpreter that imports the same modules, the harness's own left out.
"""

from __future__ import annotations

import json
import runpy
import shutil
import sys
import tempfile
from collections.abc import Mapping
from contextlib import redirect_stdout, suppress
from importlib import import_module
from io import StringIO
from pathlib import Path

from benchmarks.measure import Figures, evalharness, main, part

COMMANDS: Mapping[str, tuple[str, ...]] = {  # {run}: a run of nine answers in {results}; {made}: lm_eval's output
    "--help": ("--help",),
    "list profiles": ("list", "profiles"),
    "doctor": ("doctor", "--out", "{results}"),
    "run --dry-run": ("run", "canary-v3", "--dry-run"),
    "compare": ("compare", "{run}"),
    "report --format html": ("report", "{run}", "--format", "html"),
    "verify": ("verify", "{run}"),
    "rescore": ("rescore", "{run}"),
    "compact": ("compact", "{run}"),
    "history": ("history", "--out", "{results}"),
    "import lm-eval": ("import", "lm-eval", "eager={made}/eager", "stock={made}/stock", "--out", "{made}/results"),
    "dashboard build": ("dashboard", "build", "--results", "{results}", "--out", "{made}/site"),
    "schedule render": ("schedule", "render", "canary-v3", "--target", "cron", "--out", "{made}"),
    "schedule check --dry-run": ("schedule", "check", "--dry-run", "--results", "{made}"),
    "run (one answer, one arm)": (
        *("run", "canary-v3", "--arms", "eager", "--tasks", "gsm8k_canary", "--limit", "1", "--out", "{made}/runs"),
    ),
    "audit canary-v3": ("audit", "canary-v3"),
}


def start_figures() -> list[Figures]:
    """Each command, and the imports that it needs."""
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        template, names = Path(scratch) / "template", Path(scratch) / "modules.json"
        run = part("bench_start", "make", template)[1]["run"]
        for number, (name, words) in enumerate(COMMANDS.items()):
            folders = [Path(scratch) / f"{number}{use}" for use in ("command", "modules")]
            used, noted = ([word.format(**_copied(template, folder, run)) for word in words] for folder in folders)
            spent_on = evalharness(*used)
            part("bench_start", "modules", names, *noted)
            rows.append(
                {"name": name, **spent_on.figures(), "floor": part("bench_start", "imports", names)[0].figures()}
            )
    return rows


def _copied(template: Path, folder: Path, run: str) -> Mapping[str, Path]:
    """A copy of its own for a command, which may change it; the places in it by name."""
    shutil.copytree(template, folder, dirs_exist_ok=True)
    return {"results": folder / "results", "run": folder / "results" / run, "made": folder / "made"}


# --- in processes of their own --------------------------------------------------------------------------------


def make(scratch: str) -> Figures:
    """What the commands work on."""
    from tests.importing.lm_eval_output import line, write
    from tests.stored_runs import stored_run

    folder, made = Path(scratch) / "results", Path(scratch) / "made"
    run = stored_run(folder, {"gsm8k_canary": (3, 1)})
    for arm in ("eager", "stock"):
        write(made / arm, {"gsm8k_canary": [line(number) for number in range(3)]})
    return {"run": run.path.name}


def modules(file: str, *command: str) -> Figures:
    """Run a command in this process, and write down the modules that were imported in the end, in order."""
    own = {*sys.modules, "__main__"}
    sys.argv = ["evalharness", *command]
    with suppress(SystemExit), redirect_stdout(StringIO()):
        runpy.run_module("evalharness", run_name="__main__")
    names = [name for name in sys.modules if name not in own and not name.startswith("evalharness")]
    Path(file).write_text(json.dumps(names), encoding="utf-8")
    return {"modules": len(names)}


def imports(file: str) -> Figures:
    """Import those modules."""
    names = json.loads(Path(file).read_text(encoding="utf-8"))
    for name in names:
        with suppress(Exception):  # some are made by others under a name that cannot be imported
            import_module(name)
    return {"modules": len(names)}


if __name__ == "__main__":
    main({"make": make, "modules": modules, "imports": imports})
