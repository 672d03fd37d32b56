"""Scoring: lm-eval's tasks over any engine, answer extraction, degeneration."""
