"""The scripted engine for every test of faults."""

from tests.faults.scripted import scripted

__all__ = ["scripted"]
