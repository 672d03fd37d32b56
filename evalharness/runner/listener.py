"""What a run tells while it goes on."""

from __future__ import annotations

from evalharness.records import ArmSummary, Sample


class Listener:
    """Hears of a run's progress; this base keeps silent."""

    def run_started(self, run_id: str, arms: int, samples_per_arm: int) -> None:
        """The run folder exists."""

    def note(self, text: str) -> None:
        """Something a user should know; a plain sentence."""

    def arm_started(self, arm: str, missing: int) -> None:
        """`arm` is coming up and owes `missing` answers."""

    def sample(self, sample: Sample) -> None:
        """An answer was scored."""

    def arm_ended(self, summary: ArmSummary) -> None:
        """`summary.state` says how."""
