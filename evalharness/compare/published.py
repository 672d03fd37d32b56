"""Published figures beside measured ones."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from evalharness.policy import Policy
from evalharness.records import ArmScore, PublishedFigure
from evalharness.stats.repeats import fitting_counts


def published_figures(
    task: str, spec: Mapping[str, Any], policy: Policy, scores: Sequence[ArmScore], documents: int
) -> tuple[PublishedFigure, ...]:
    """The figures to hold this task against: the policy's, or the spec's where it asks for it."""
    figures = dict(policy.task(task).published)
    if spec.get("check_published"):
        figures = {**spec.get("published", {}).get(task, {}).get("arms", {}), **figures}
    by_arm = {score.arm: score for score in scores}
    return tuple(_figure(arm, float(value), by_arm.get(arm), documents) for arm, value in figures.items())


def _figure(arm: str, published: float, score: ArmScore | None, documents: int) -> PublishedFigure:
    """`inside` allows the published figure half a unit of its last decimal."""
    decimals = max(len(repr(published).partition(".")[2]), 3)
    counts = tuple(fitting_counts(published, documents, decimals)) if documents else ()
    if score is None or score.interval is None:
        return PublishedFigure(arm, published, None, None, counts)
    half = 0.5 * 10.0**-decimals
    inside = score.interval.low - half <= published <= score.interval.high + half
    return PublishedFigure(arm, published, score.value, inside, counts)


def published_notes(figures: Sequence[PublishedFigure]) -> list[str]:
    """Which published figures no single pass over the documents can score."""
    notes = []
    for figure in figures:
        fits = ", ".join(f"{right}/{asked}" for right, asked in figure.counts)
        words = f"published {figure.published:.3f} ({figure.arm})"
        notes.append(f"{words} fits {fits}" if fits else f"{words} fits no count of up to 8 repeats")
    return notes


def quoted(spec: Mapping[str, Any], measured: Collection[str]) -> dict[str, Mapping[str, Any]]:
    """Published figures that this run does not test: quoted as published."""
    tested = measured if spec.get("check_published") else ()
    return {task: figure for task, figure in spec.get("published", {}).items() if task not in tested}
