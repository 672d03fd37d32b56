"""The sign-off report's table of costs: what each arm takes, and what the repair takes more than the fault."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from evalharness.assess import Stored
from evalharness.records import ArmEvidence
from evalharness.reports.signoff_tables import Cell, Row, Table
from evalharness.reports.words import MISSING, plain

MINIATURE: Final = "emulated"
ABOUT: Final = "Measured once, on the machine named under provenance; not tested, not part of the verdict."
Values = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Cost:
    """One row: how a value is shown, and how that of the repair (first) differs from that of the fault, where that can
    be told. `timed`: a time or a speed. `note` explains what vLLM measured."""

    label: str
    show: Callable[[float], str]
    differs: Callable[[float, float], str] | None = None
    timed: bool = True
    note: str = ""


def costs(stored: Stored) -> Table:
    """What each arm costs: one column an arm, none of it tested; one more for the repair's difference."""
    arms = stored.run.arms
    found = [proof.costs if (proof := stored.evidence.get(arm.name)) else {} for arm in arms]
    pairs = list(_pairs(stored))
    pair = pairs[0] if len(pairs) == 1 else None
    shown = {key: cost for key, cost in COSTS.items() if any(key in values for values in found)}
    rows = [_row(key, cost, found, pair) for key, cost in shown.items()]
    wall = (*(Cell(f"{arm.seconds:.1f} s") for arm in arms), *((Cell(MISSING),) if pair else ()))
    columns = [plain(arm.name) for arm in arms]
    if pair:
        columns.append(f"{plain(pair[0].arm)} over {plain(pair[1].arm)}")
    about = " ".join((ABOUT, *_notes(stored, shown)))
    return Table("Costs", about, "cost", tuple(columns), (*rows, Row("wall time of the arm", wall)))


def cost_lines(stored: Stored) -> Iterator[str]:
    """What every patched arm costs more than every stock one."""
    for patched, stock in _pairs(stored):
        parts = list(_differences(patched, stock))
        if parts:
            yield f"Cost of {plain(patched.arm)} over {plain(stock.arm)}, measured once: {', '.join(parts)}"


def _row(key: str, cost: Cost, found: list[Values], pair: tuple[ArmEvidence, ArmEvidence] | None) -> Row:
    cells = [Cell(cost.show(values[key])) if key in values else Cell(MISSING) for values in found]
    if pair:
        cells.append(Cell(_difference(key, cost, *pair) or MISSING))
    return Row(cost.label, tuple(cells))


def _pairs(stored: Stored) -> Iterator[tuple[ArmEvidence, ArmEvidence]]:
    """Every patched arm with every stock one, second runs of an arm left out."""
    known = [arm for arm in stored.run.arms if "#" not in arm.name and arm.name in stored.evidence]
    for patched in known:
        for stock in known:
            if (patched.capture, stock.capture) == ("patched", "stock"):
                yield stored.evidence[patched.name], stored.evidence[stock.name]


def _differences(patched: ArmEvidence, stock: ArmEvidence) -> Iterator[str]:
    for key, cost in COSTS.items():
        difference = _difference(key, cost, patched, stock)
        if difference:
            yield f"{cost.label} {difference}"
    if FIXED not in patched.costs and patched.engine != MINIATURE:
        yield f"{COSTS[FIXED].label} not measured"


def _difference(key: str, cost: Cost, patched: ArmEvidence, stock: ArmEvidence) -> str | None:
    """What `patched` has more; None where it is not to be told. A plan made for short contexts saves the miniature's
    CPU work: none of its times are compared."""
    if cost.differs is None or key not in patched.costs or key not in stock.costs:
        return None
    if cost.timed and patched.engine == MINIATURE:
        return None
    return cost.differs(patched.costs[key], stock.costs[key])


def _notes(stored: Stored, shown: Mapping[str, Cost]) -> Iterator[str]:
    if any(proof.engine == "vllm" for proof in stored.evidence.values()):
        yield from (cost.note for cost in shown.values() if cost.note)


def _bytes(count: float) -> str:
    for unit, step in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if abs(count) >= step:
            return f"{count / step:.1f} {unit}"
    return f"{count:.0f} B"


def _more_bytes(ours: float, theirs: float) -> str:
    return f"{'-' if ours < theirs else '+'}{_bytes(abs(ours - theirs))}"


def _speed(value: float) -> str:
    return f"{value:,.0f} tokens/s"


def _faster(ours: float, theirs: float) -> str:
    return f"{ours / theirs - 1:+.1%}" if theirs else "not comparable"


FIXED: Final = "fixed_decode_tokens_per_s"
COSTS: Final[dict[str, Cost]] = {
    "graph_bytes": Cost("graph memory", _bytes, _more_bytes, timed=False),
    "graph_nodes": Cost("graph nodes", lambda value: f"{value:,.0f}"),
    "capture_seconds": Cost(
        "capture time",
        lambda value: f"{value:.2f} s",
        lambda ours, theirs: f"{ours - theirs:+.2f} s",
        note="The first capture of a process, native's, also compiles kernels and pays for the graphs' memory pool.",
    ),
    FIXED: Cost(
        "decode speed at fixed length",
        _speed,
        _faster,
        note="At fixed length every arm decodes the largest captured batch for the same number of tokens, prefill left"
        " out, best of two rounds after a warm-up; a stale plan does other work than it should, and may be faster or"
        " slower for it.",
    ),
    "decode_tokens_per_s": Cost(
        "speed while answering",
        _speed,
        note="While answering, an arm that writes more runs fuller batches: that speed depends on what the arm writes.",
    ),
    "output_tokens": Cost("tokens written", lambda value: f"{value:,.0f}"),
    "load_seconds": Cost("load time", lambda value: f"{value:.1f} s"),
}
