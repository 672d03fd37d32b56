"""Figures and names as text, alike in every report."""

from __future__ import annotations

from typing import Final

from evalharness.arms import at_a_time, base_name, concurrencies
from evalharness.records import Agreement, ArmScore, Comparison, Contrast, Interval, TaskComparison

MISSING: Final = "—"
MANY: Final = 1 << 20  # requests at a time: as many as the engine serves
TIMES: Final = "\u00d7"
ENGINES: Final = {"emulated": "emulated (CPU miniature)"}


def plain(text: object) -> str:
    """`text` in one line without control or direction characters: names and messages come from outside."""
    return "".join(c if c.isprintable() else " " for c in str(text))


def header(comparison: Comparison) -> str:
    """Engine, model and date; every table of figures stands under it."""
    engine = ENGINES.get(comparison.engine, comparison.engine)
    return f"engine: {plain(engine)}   model: {plain(comparison.model)}   {plain(comparison.created[:10])}"


def figure(value: float | None, decimals: int = 3) -> str:
    """A share or difference, or a dash where there is none."""
    return MISSING if value is None else f"{value:.{decimals}f}"


def limits(interval: Interval | None, decimals: int = 3) -> str:
    """`[0.931, 0.978]`, or nothing."""
    return f"[{interval.low:.{decimals}f}, {interval.high:.{decimals}f}]" if interval else ""


def p_value(p: float | None) -> str:
    """Three decimals, or the power of ten of a small one."""
    if p is None:
        return MISSING
    return f"{p:.3f}" if p >= 0.001 else f"{p:.1e}" if p > 0 else "< 1e-300"


def size(task: TaskComparison) -> str:
    """Documents, times repeats where a document was asked more than once."""
    return f"{task.documents}{TIMES}{task.repeats}" if task.repeats > 1 else str(task.documents)


def arms_of(comparison: Comparison) -> list[str]:
    """Arms in the run's order, with any that only has samples."""
    return list(dict.fromkeys([*comparison.arms, *(s.arm for task in comparison.tasks for s in task.scores)]))


def columns(comparison: Comparison) -> list[str]:
    """Every arm, but of one that ran with several numbers of requests at a time only the unlimited one."""
    arms = arms_of(comparison)
    return [arm for arm in arms if at_a_time(arm) is None or base_name(arm) not in arms]


def published_lines(comparison: Comparison) -> list[str]:
    """Published figures that this run did not test, one line per model and source."""
    grouped: dict[tuple[str, str], list[str]] = {}
    for task, quote in comparison.published.items():
        steps = " → ".join(figure(float(value)) for value in dict(quote.get("arms", {})).values())
        grouped.setdefault((plain(quote.get("model", "?")), plain(quote.get("source", "?"))), []).append(
            f"{plain(task)} {steps}"
        )
    return [
        f"published, {model} ({source}): {', '.join(tasks)} — not measured here"
        for (model, source), tasks in grouped.items()
    ]


def agreement_line(score: ArmScore) -> str | None:
    """How far the arm follows the reference arm."""
    found = score.agreement
    if found is None:
        return None
    if found.tokens is None:
        return f"{score.arm}: {figure(found.identical)} of answers alike with {found.reference} (no token ids)"
    first = "no answer differs"
    if found.first:
        first = f"first differing token {found.first[0]}, median {found.first[1]:g}, latest {found.first[2]}"
    return (
        f"{score.arm}: {figure(found.tokens)} of tokens agree with {found.reference}, "
        f"{figure(found.identical)} of answers throughout; {first}"
    )


def contrast_line(found: Contrast) -> str:
    """Difference, test, flips and what the n can find."""
    if found.difference is None:
        return f"{found.arm} - {found.baseline}: no question answered by both"
    words = (
        f"{found.arm} - {found.baseline}: {found.difference:+.3f} {limits(found.interval)}, {found.test} "
        f"p {p_value(found.p_two_sided)}, {found.gains} gained, {found.losses} lost of {found.n} "
        f"(unpaired z, for reference only: p {p_value(found.p_unpaired)})"
    )
    if found.detectable is not None:
        words += f"; finds a loss of {found.detectable:.3f} with 80 % power"
    if found.unpaired:
        alone = ", ".join(f"{count} only in {arm}" for arm, count in found.unpaired.items())
        named = ", ".join(f"{document}/{repeat}" for _, document, repeat in found.unpaired_examples)
        words += f"; unpaired: {alone} (document/repeat {named})"
    return words


def concurrency_lines(task: TaskComparison) -> list[str]:
    """Which arms answer differently with other numbers of requests at a time, and which do not."""
    pairs = concurrencies(score.arm for score in task.scores)
    found = [contrast for pair in pairs if (contrast := task.contrast(*pair)) and contrast.agreement]
    differing = [contrast for contrast in found if contrast.agreement and contrast.agreement.identical != 1]
    moved = {base_name(contrast.arm) for contrast in differing}
    steady = [contrast for contrast in found if base_name(contrast.arm) not in moved]
    lines = [_dependence(task, contrast) for contrast in differing]
    if steady:
        paces = sorted({at_a_time(name) or MANY for contrast in steady for name in (contrast.arm, contrast.baseline)})
        names = dict.fromkeys(base_name(contrast.arm) for contrast in steady)
        *first, last = map(_pace, paces)
        lines.append(f"the same answers with {', '.join(first)} and {last} requests at a time: {', '.join(names)}")
    return lines


def _dependence(task: TaskComparison, found: Contrast) -> str:
    few, many = (_pace(at_a_time(name) or MANY) for name in (found.baseline, found.arm))
    same = found.agreement
    shared = f"{figure(same.tokens)} of tokens, " if same and same.tokens is not None else ""
    alike = figure(same.identical if same else None)
    values = [figure(score.value if (score := task.score(name)) else None) for name in (found.baseline, found.arm)]
    return (
        f"{base_name(found.arm)} depends on concurrency: {shared}{alike} of answers agree between {few} and {many} "
        f"requests at a time; {values[0]} and {values[1]} right, {found.losses} lost, {found.gains} gained "
        f"(p {p_value(found.p_two_sided)})"
    )


def _pace(number: int) -> str:
    return "any number of" if number == MANY else str(number)


def rates_line(task: TaskComparison) -> str | None:
    """False-alarm and miss rate of the gate for this n."""
    rates = task.rates
    if rates is None:
        return None
    return (
        f"gate at n {size(task)}, margin {rates.margin:.3f}: false alarm {rates.false_alarm:.3f}, undecided "
        f"{rates.withheld:.3f} when nothing is wrong; passes a loss of {rates.loss:.3f} with {rates.miss:.3f} "
        f"({rates.method}, {rates.discordance:.3f} of answers flip by chance)"
    )


def detail_lines(task: TaskComparison) -> list[str]:
    """Everything a task's table row has no room for, one sentence a line."""
    lines = [line for score in task.scores if (line := agreement_line(score))]
    lines += [contrast_line(found) for found in task.contrasts]
    lines += concurrency_lines(task)
    lines += [f"{score.arm} causes: {_causes(score)}" for score in task.scores]
    lines += [
        f"noise floor {noise.arms[0]} / {noise.arms[1]}: {noise.floor:.3f} ({noise.flips} flips)"
        for noise in task.noise
    ]
    return [plain(line) for line in [*lines, rates_line(task), *task.notes] if line]


def _causes(score: ArmScore) -> str:
    return ", ".join(f"{cause} {count}" for cause, count in score.causes.items())


def agreement_lines(comparison: Comparison) -> list[str]:
    """One line a task: the share of tokens each arm of the table has in common with the reference arm."""
    lines, shown = [], columns(comparison)
    for task in comparison.tasks:
        scores = [score for score in task.scores if score.arm in shown]
        found = [(s, s.agreement) for s in scores if s.agreement is not None and s.agreement.tokens is not None]
        if found:
            arms = ", ".join(f"{plain(s.arm)} {figure(a.tokens)}{_first(a)}" for s, a in found)
            lines.append(f"tokens as in {plain(found[0][1].reference)}, {plain(task.task)}: {arms}")
    return lines


def _first(agreement: Agreement) -> str:
    if agreement.first is None:
        return ""
    return f" (first difference at token {agreement.first[0]}, median {agreement.first[1]:g})"
