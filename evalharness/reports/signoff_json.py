"""signoff.json: the sign-off record for machines."""

from __future__ import annotations

from evalharness.reports.signoff import Signoff
from evalharness.store import pretty


def render(signoff: Signoff) -> str:
    """The record as indented, strict JSON."""
    return pretty(signoff)
