"""The command line: one function a command, no logic. Heavy imports wait until a command needs them."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from evalharness.errors import EvalHarnessError

app = typer.Typer(
    name="evalharness",
    help="End-to-end accuracy evaluation of CUDA-graph capture paths in LLM inference.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
dashboard_app = typer.Typer(help="The accuracy dashboard.", no_args_is_help=True, rich_markup_mode=None)
schedule_app = typer.Typer(help="Scheduled nights.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(dashboard_app, name="dashboard")
app.add_typer(schedule_app, name="schedule")
Results = Annotated[Path, typer.Option("--out", help="Results folder.")]
RunsFolder = Annotated[Path, typer.Option("--out", "--results", help="Results folder.")]


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    """Options of every command."""
    _STATE["debug"] = debug


_STATE = {"debug": False}


@app.command()
def run(
    reference: Annotated[str | None, typer.Argument(metavar="[PROFILE|SPEC.yaml]")] = None,
    arms: Annotated[str, typer.Option(help="Arms, comma-separated: eager,stock,patched,eager#2.")] = "",
    arm: Annotated[list[str] | None, typer.Option("--arm", help="One arm, or NAME=URL of its server.")] = None,
    tasks: Annotated[str, typer.Option(help="Tasks, comma-separated.")] = "",
    limit: Annotated[int | None, typer.Option(help="Documents of every task, whatever the profile says.")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder with gsm8k/ and aime25/ (offline data).")] = None,
    setting: Annotated[list[str] | None, typer.Option("--set", help="Any spec value, KEY=VALUE.")] = None,
    concurrency: Annotated[str, typer.Option(help="Run every arm with so many requests at a time, too: 1,8.")] = "",
    stop_early: Annotated[
        bool, typer.Option("--stop-early", help="End an arm's task once it is decided (policy quick).")
    ] = False,
    executor: Annotated[str, typer.Option(help="Where replicas run: local, ray or slurm.")] = "local",
    address: Annotated[str, typer.Option(help="Ray cluster: auto, local or HOST:PORT.", show_default=False)] = "",
    replicas: Annotated[int | None, typer.Option(help="Copies of the model; ray: as many as fit.", min=1)] = None,
    slurm: Annotated[list[str] | None, typer.Option("--slurm", help="Option of sbatch, KEY=VALUE.")] = None,
    out: Results = Path("results"),
    resume: Annotated[str | None, typer.Option(help="Finish this run: id, prefix, path or 'latest'.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the spec as resolved and stop.")] = False,
) -> None:
    """Run the model under every arm, score the tasks, write and print the comparison."""
    from evalharness.commands import runs
    from evalharness.runner.choose import Choice
    from evalharness.runner.executors import Placement

    settings = tuple(setting or ())
    choice = Choice(reference, arms, tuple(arm or ()), tasks, limit, data, settings, stop_early, concurrency)
    placement = Placement(executor, address, replicas, tuple(slurm or ()))
    raise typer.Exit(runs.run(choice, out, resume, dry_run, placement))


@app.command()
def compare(
    first: Annotated[str, typer.Argument(metavar="RUN")],
    second: Annotated[str | None, typer.Argument(metavar="[RUN]", show_default=False)] = None,
    out: Results = Path("results"),
) -> None:
    """Compare the arms of a stored run; of two runs, every arm of the second with its namesake in the first."""
    from evalharness.commands import runs

    raise typer.Exit(runs.compare(first, out) if second is None else runs.compare_pair(first, second, out))


@app.command()
def report(
    first: Annotated[str, typer.Argument(metavar="RUN")] = "latest",
    formats: Annotated[str, typer.Option("--format", help="Comma-separated: html,pdf,md,json,junit.")] = "html",
    out: Annotated[Path | None, typer.Option("--out", help="Write here, not into the run's folder.")] = None,
    results: Annotated[Path, typer.Option("--results", help="Results folder.")] = Path("results"),
    sign: Annotated[Path | None, typer.Option("--sign", metavar="KEY", help="Ed25519 private key, PEM.")] = None,
    job_summary: Annotated[
        Path | None, typer.Option("--job-summary", metavar="FILE", help="Append the Markdown: $GITHUB_STEP_SUMMARY.")
    ] = None,
) -> None:
    """Write the sign-off report of a run; the exit code is its verdict's."""
    from evalharness.commands import report as reporting

    raise typer.Exit(reporting.report(first, results, formats, out, sign, job_summary))


@app.command()
def verify(
    first: Annotated[str, typer.Argument(metavar="RUN")] = "latest",
    out: Results = Path("results"),
    trusted: Annotated[
        Path | None, typer.Option("--require-signature", metavar="PUB", help="Ed25519 public key, PEM.")
    ] = None,
    scores: Annotated[bool, typer.Option("--rescore", help="Score every answer again as well.")] = False,
    data: Annotated[Path | None, typer.Option(help="Folder with gsm8k/ and aime25/, for --rescore.")] = None,
) -> None:
    """Recompute every figure of a run from its answers and check every hash; 1 when anything was changed."""
    from evalharness.commands import report as reporting

    raise typer.Exit(reporting.verify_run(first, out, trusted, scores, data))


@app.command()
def rescore(
    first: Annotated[str, typer.Argument(metavar="RUN|SAMPLES.jsonl")],
    task: Annotated[str | None, typer.Option(help="Task of the answers; of a run, the only one to score.")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder with gsm8k/ and aime25/ (offline data).")] = None,
    out: Results = Path("results"),
) -> None:
    """Score stored answers again without a model; the old scores are kept."""
    from evalharness.commands import report as reporting

    raise typer.Exit(reporting.rescore(first, out, task, data))


@app.command()
def compact(
    references: Annotated[list[str] | None, typer.Argument(metavar="[RUN]...", show_default=False)] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every finished run, the published left out.")] = False,
    undo: Annotated[bool, typer.Option("--restore", help="Write the samples files again, byte for byte.")] = False,
    out: Results = Path("results"),
) -> None:
    """Pack the answers of finished runs into one Parquet file each; every other command reads it the same."""
    from evalharness.commands import compact as command

    raise typer.Exit(command.compact_runs(references or (), out, everything=everything, undo=undo))


@app.command("import")
def import_(
    kind: Annotated[str, typer.Argument(metavar="lm-eval")],
    sources: Annotated[list[str], typer.Argument(metavar="[ARM=]PATH...", help="Output folders or results files.")],
    out: Results = Path("results"),
) -> None:
    """Make a run of lm-eval's results and samples, one arm each, and compare its arms."""
    from evalharness.commands import importing

    raise typer.Exit(importing.import_runs(kind, sources, out))


@app.command("serve-arm", context_settings={"allow_extra_args": True})
def serve_arm(
    context: typer.Context,
    arm: Annotated[str, typer.Argument(metavar="eager|stock|patched|native")],
    reference: Annotated[str, typer.Argument(metavar="[PROFILE|SPEC.yaml]")] = "canary-v3-gpu",
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1; 0 takes a free one.", min=0, max=65535)] = 0,
    log: Annotated[Path | None, typer.Option(help="Where the server's output goes.")] = None,
    command: Annotated[str, typer.Option(help="Start this instead of `vllm serve`.")] = "",
    setting: Annotated[list[str] | None, typer.Option("--set", help="Any spec value, KEY=VALUE.")] = None,
) -> None:
    """Start `vllm serve` with the capture path of one arm and watch it; arguments after -- go to vLLM."""
    from evalharness.commands import serve

    wanted = serve.Serving(arm, reference, port, log, command, tuple(setting or ()), tuple(context.args))
    raise typer.Exit(serve.serve_arm(wanted))


@app.command("list")
def list_(
    what: Annotated[str, typer.Argument(metavar="profiles|tasks|arms|engines|executors|runs")],
    out: Results = Path("results"),
) -> None:
    """List what can be named in a spec or on the command line."""
    from evalharness.commands import looking

    looking.list_names(what, out)


@app.command()
def doctor(out: Results = Path("results")) -> None:
    """Say what this machine can run, and the command that mends each lack."""
    from evalharness.commands import looking

    raise typer.Exit(looking.doctor(out))


@app.command()
def audit(
    reference: Annotated[str | None, typer.Argument(metavar="[PROFILE|SPEC.yaml]")] = None,
    setting: Annotated[list[str] | None, typer.Option("--set", help="Any spec value, KEY=VALUE.")] = None,
) -> None:
    """Say within a minute whether this build's captures are isolated; no benchmark, any model."""
    from evalharness.commands import audit as command

    raise typer.Exit(command.audit(reference, tuple(setting or ())))


@app.command()
def history(
    task: Annotated[str, typer.Option(help="This task only.")] = "",
    arm: Annotated[str, typer.Option(help="This arm only.")] = "",
    model: Annotated[str, typer.Option(help="This model only.")] = "",
    failed: Annotated[
        bool, typer.Option("--failed", help="Only FAIL, INVALID, ERROR and runs without figures.")
    ] = False,
    nights: Annotated[
        int | None, typer.Option(help="RESULTS holds a results folder a night: the newest so many.", min=1)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    results: RunsFolder = Path("results"),
) -> None:
    """List every run's figures, oldest first."""
    from evalharness.commands import dashboard
    from evalharness.watch.archive import Wanted

    form = "json" if as_json else "csv" if as_csv else "table"
    raise typer.Exit(dashboard.history(results, Wanted(model, task, arm, failed), form, nights))


@dashboard_app.command("build")
def dashboard_build(
    out: Annotated[Path, typer.Option(help="Folder of the site; replaced in one step.")] = Path("site"),
    results: Annotated[Path, typer.Option(help="Results folder.")] = Path("results"),
    config: Annotated[Path | None, typer.Option(help="Schedule; else RESULTS/schedule.yaml.")] = None,
) -> None:
    """Build the static site."""
    from evalharness.commands import dashboard

    raise typer.Exit(dashboard.build_site(results, out, config))


@dashboard_app.command("serve")
def dashboard_serve(
    results: Annotated[Path, typer.Option(help="Results folder.")] = Path("results"),
    host: Annotated[str, typer.Option(help="Address; any but loopback needs the token it prints.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8642,
    site: Annotated[Path | None, typer.Option(help="Keep the site here; else in a temporary folder.")] = None,
    config: Annotated[Path | None, typer.Option(help="Schedule; else RESULTS/schedule.yaml.")] = None,
) -> None:
    """Serve the site while runs go on, with their progress and logs."""
    from evalharness.commands import dashboard

    raise typer.Exit(dashboard.serve(results, host, port, site, config))


@schedule_app.command("render")
def schedule_render(
    profile: Annotated[str, typer.Argument(metavar="PROFILE|SPEC.yaml")],
    target: Annotated[str, typer.Option(help="systemd, cron, slurm, kubernetes or github.")],
    at: Annotated[str | None, typer.Option(help="HH:MM, UTC.")] = None,
    days: Annotated[str | None, typer.Option(help="mon,tue,...; every day if left out.")] = None,
    grace: Annotated[float | None, typer.Option(help="Hours a night may start late.")] = None,
    timeout: Annotated[float | None, typer.Option(help="Hours a night may take.")] = None,
    write: Annotated[Path | None, typer.Option(help="Write the files here instead of printing them.")] = None,
    image: Annotated[str | None, typer.Option(help="Container image (kubernetes).")] = None,
    results: RunsFolder = Path("results"),
) -> None:
    """Enter PROFILE into the schedule and render what another scheduler reads."""
    from evalharness.commands import schedule

    when = schedule.When(at, days, grace, timeout)
    raise typer.Exit(schedule.render(target, profile, when, results, write, image))


@schedule_app.command("run")
def schedule_run(
    profile: Annotated[str, typer.Argument(metavar="PROFILE|SPEC.yaml")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done.")] = False,
    config: Annotated[Path | None, typer.Option(help="Schedule; else RESULTS/schedule.yaml.")] = None,
    results: RunsFolder = Path("results"),
) -> None:
    """Run one night: lock, timeout, log, retention, alerts, site."""
    from evalharness.commands import schedule

    raise typer.Exit(schedule.run(profile, results, config, dry_run=dry_run))


@schedule_app.command("check")
def schedule_check(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done.")] = False,
    config: Annotated[Path | None, typer.Option(help="Schedule; else RESULTS/schedule.yaml.")] = None,
    results: RunsFolder = Path("results"),
) -> None:
    """Look for nights that did not come; alert and rebuild the site."""
    from evalharness.commands import schedule

    raise typer.Exit(schedule.check(results, config, dry_run=dry_run))


def main() -> NoReturn:
    """Entry point; turns every failure into one line and an exit code no verdict has."""
    arguments = _debug_first(sys.argv[1:])
    try:
        app(arguments)
    except BrokenPipeError:
        sys.exit(0)
    except Exception as error:  # noqa: BLE001 -- the last border before the user
        if _STATE["debug"]:
            traceback.print_exc()
        print(f"error: {_in_words(error)}", file=sys.stderr)
        sys.exit(error.exit_code if isinstance(error, EvalHarnessError) else EvalHarnessError.exit_code)
    sys.exit(0)


def _debug_first(arguments: list[str]) -> list[str]:
    """`run --debug` means `--debug run`; what follows `--` belongs to another program."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    if "--debug" not in arguments[:end]:
        return arguments
    return ["--debug", *(word for word in arguments[:end] if word != "--debug"), *arguments[end:]]


def _in_words(error: Exception) -> str:
    if isinstance(error, EvalHarnessError):
        return str(error)
    if isinstance(error, OSError):  # a path too long, a disk that went away: the system's word is the cause
        return f"{error.strerror or error}: {str(error.filename)[:100]!r}. Check the path."
    said = " ".join(str(error).split())[:200]
    return f"{type(error).__name__}: {said}. This is a fault of evalharness; --debug shows where it happened."
