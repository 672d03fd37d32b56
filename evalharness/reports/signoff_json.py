"""signoff.json: the sign-off record for machines."""

from __future__ import annotations

import json

from evalharness.reports.signoff import Signoff
from evalharness.store import as_mapping


def render(signoff: Signoff) -> str:
    """The record as indented, strict JSON."""
    return json.dumps(as_mapping(signoff), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
