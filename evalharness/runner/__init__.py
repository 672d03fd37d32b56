"""The runner: plans arms x tasks, drives the engine, resumes."""
