"""Capture paths: how a FULL CUDA graph is captured, and the proof of it."""
