"""Scheduled nights: files for other schedulers, and what they call."""
