"""Progress on the terminal: arms x tasks, samples per second, time left."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from evalharness.records import ArmState, ArmSummary, Sample
from evalharness.runner.listener import Listener


class RichListener(Listener):
    """Draws one bar for the run; on a pipe, one line an arm."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self.job: TaskID | None = None
        self.run_id = ""

    def run_started(self, run_id: str, arms: int, samples_per_arm: int) -> None:
        """Show the run's name and an empty bar."""
        self.run_id = run_id
        self.console.print(f"run {escape(run_id)}: {arms} arms, {samples_per_arm} answers each")
        self.job = self.bar.add_task("starting", total=arms * samples_per_arm, rate="")
        self.bar.start()

    def note(self, text: str) -> None:
        """Print a line above the bar."""
        self.console.print(f"note: {escape(text)}")

    def arm_started(self, arm: str, missing: int) -> None:
        """Name the arm on the bar."""
        if self.job is not None:
            self.bar.update(self.job, description=f"{escape(arm)} starting, {missing} to answer")

    def sample(self, sample: Sample) -> None:
        """Move the bar on by one answer."""
        if self.job is None:
            return
        speed = self.bar.tasks[self.job].speed
        rate = f"{speed:.1f} samples/s" if speed else ""
        where = f"{escape(sample.arm)} {escape(sample.task)}"
        self.bar.update(self.job, advance=1, description=where, rate=rate)

    def arm_ended(self, summary: ArmSummary) -> None:
        """Leave a line for the arm."""
        line = f"{escape(summary.name):<12} {summary.state.value} in {summary.seconds:.1f} s"
        failed = summary.state in {ArmState.FAILED, ArmState.INVALID}
        self.console.print(f"{line}: {escape(summary.message)}" if failed else line)

    def close(self) -> None:
        """Give the terminal back."""
        self.bar.stop()
