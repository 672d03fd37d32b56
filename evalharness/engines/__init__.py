"""Engines: what runs the model."""
