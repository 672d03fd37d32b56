"""Other people's runs as runs of this harness, so that they are compared, gated and reported like its own."""

from __future__ import annotations

from evalharness.importing.lm_eval_run import import_lm_eval

__all__ = ["import_lm_eval"]
