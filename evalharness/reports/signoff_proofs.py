"""Tables of the sign-off report about the run itself: evidence of its arms, its provenance."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from evalharness.assess import Stored
from evalharness.evidence import evidence_faults
from evalharness.records import ArmEvidence, ArmSummary, Run
from evalharness.reports.signoff_tables import Cell, Row, Table
from evalharness.reports.words import MISSING, plain

# --- evidence --------------------------------------------------------------------------------------------


def evidence(stored: Stored) -> Table:
    """What proves each arm's path: one column an arm."""
    arms = stored.run.arms
    proofs = [stored.evidence.get(arm.name) for arm in arms]
    settings = dict.fromkeys(key for proof in proofs if proof for key in proof.requested)
    rows = [Row(name, tuple(show(p) if p else Cell(MISSING) for p in proofs)) for name, show in EVIDENCE.items()]
    rows += [
        Row(key.replace("_", " "), tuple(_setting(p, key) if p else Cell(MISSING) for p in proofs)) for key in settings
    ]
    required = stored.policy.required_evidence
    pairs = zip(arms, proofs, strict=True)
    rows.append(Row("proof", tuple(_proof(arm, proof, required) for arm, proof in pairs)))
    about = "Whether each arm ran the path it names; a setting shows what was observed."
    return Table("Evidence", about, "evidence", tuple(plain(arm.name) for arm in arms), tuple(rows))


def _state(proof: ArmEvidence) -> Cell:
    known = [d.shared for d in proof.descriptors if d.shared is not None]
    if not known:
        return Cell("no graph" if not proof.descriptors else "not observable")
    words = "shared" if all(known) else "mixed" if any(known) else "fresh"
    return Cell(words, f"{len(known)} of {len(proof.descriptors)} graphs")


def _planned(proof: ArmEvidence) -> Cell:
    known = [d.plan_recorded for d in proof.descriptors if d.plan_recorded is not None]
    if not known:
        return Cell(MISSING if not proof.descriptors else "not observable")
    return Cell(f"{sum(known)} of {len(known)} graphs")


def _changed(proof: ArmEvidence) -> Cell:
    names = dict.fromkeys(name for d in proof.descriptors for name in d.changed)
    return Cell(str(len(names)) if proof.descriptors else MISSING, plain(", ".join(names))[:160])


EVIDENCE: Final[dict[str, Callable[[ArmEvidence], Cell]]] = {
    "state of warm-up and capture": _state,
    "planning kernel in the graph": _planned,
    "attributes the warm-up changed": _changed,
    "full-graph replays": lambda proof: Cell(f"{proof.full_replays:,}"),
    "eager steps": lambda proof: Cell(f"{proof.eager_steps:,}"),
    "engine": lambda proof: Cell(plain(f"{proof.engine} {proof.engine_version}")),
}


def _setting(proof: ArmEvidence, key: str) -> Cell:
    wanted, observed = proof.requested.get(key), proof.observed.get(key)
    if wanted == observed:
        return Cell(plain(observed))
    return Cell(plain(observed or "not observed"), f"requested {plain(wanted)}", "bad")


def _proof(arm: ArmSummary, proof: ArmEvidence | None, required: Sequence[str]) -> Cell:
    faults = [plain(fault) for fault in evidence_faults(arm, proof, required)]
    if faults:
        return Cell("missing", " ".join(faults), "bad")
    return Cell("complete", tone="good") if proof else Cell("none", "not required by the policy")


# --- provenance ------------------------------------------------------------------------------------------


def provenance(run: Run, policy: str) -> Table:
    """What ran where."""
    known = run.provenance
    facts: dict[str, Any] = {
        "run": run.run_id,
        "started": run.created,
        "finished": run.finished or "not finished",
        "fingerprint": run.fingerprint,
        "model": _engine(run).get("model"),
        "model revision": _engine(run).get("revision"),
        "model SHA-256": run.identity.get("model"),
        "policy": policy,
        "seed": run.spec.get("seed"),
        "git commit": _commit(known.get("git")),
        "packages": _pairs(known.get("packages")),
        "python": known.get("python"),
        "platform": known.get("platform"),
        "CPU": _pairs(known.get("cpu")),
        "GPU": "; ".join(_pairs(gpu) for gpu in known.get("gpu") or ()) or "none",
        "environment": _pairs(known.get("environment")),
    }
    facts |= {name: value for name, value in run.identity.items() if name.startswith("task ")}
    rows = tuple(Row(name, (Cell(plain(value)),)) for name, value in facts.items() if value not in (None, ""))
    return Table("Provenance", "What ran where.", "fact", ("value",), rows)


def _engine(run: Run) -> Mapping[str, Any]:
    engine: Mapping[str, Any] = run.spec.get("engine", {})
    return engine


def _commit(git: Any) -> str:
    if not isinstance(git, Mapping):
        return "unknown"
    return f"{git.get('commit')}{' (with uncommitted changes)' if git.get('dirty') else ''}"


def _pairs(values: Any) -> str:
    return ", ".join(f"{k} {v}" for k, v in values.items()) if isinstance(values, Mapping) else ""
