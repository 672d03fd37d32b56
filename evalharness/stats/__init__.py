"""Estimators and tests on plain arrays; each names its source and its assumption."""
