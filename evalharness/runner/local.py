"""Runs a plan into a folder of its own, or finishes one that was begun."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from evalharness.provenance import collect
from evalharness.records import ArmState, ArmSummary, Run
from evalharness.runner.executors import Executor, Placement, connected
from evalharness.runner.listener import Listener
from evalharness.runner.plan import Plan, make_plan, refuse_mixing
from evalharness.runner.session import Session
from evalharness.spec import RunSpec, parse_spec
from evalharness.store import RunFolder


def start(
    spec: RunSpec, results: Path, listener: Listener | None = None, executor: Executor | None = None
) -> RunFolder:
    """Run `spec` into a new folder under `results`, on this machine where no other executor is given.

    An arm that fails is marked in run.json and the others go on.

    Raises:
        DataError: before anything starts, when evaluation data is missing or wrong.
        StoreError: the folder cannot be written.
    """
    with _at_hand(executor, spec) as chosen:
        chosen.begin(spec)
        plan = make_plan(spec)
        folder, run = RunFolder.create(results, _new(plan))
        with folder.locked():
            _serve(plan, folder, run, listener or Listener(), chosen)
    return folder


def resume(folder: RunFolder, listener: Listener | None = None, executor: Executor | None = None) -> RunFolder:
    """Answer what `folder` still misses, lost requests included; by whichever executor, the answers are the same.

    Raises:
        RecordError: the run's data, model or settings are not what they were.
        StoreError: its answers are compacted.
    """
    folder.refuse_compacted()
    run = folder.read_run()
    spec = parse_spec(run.spec)
    with folder.locked(), _at_hand(executor, spec) as chosen:
        if any(arm.state is not ArmState.DONE for arm in run.arms):  # else perhaps nothing is missing
            chosen.begin(spec)
        plan = make_plan(spec)
        refuse_mixing(run.identity, plan.identity)
        _serve(plan, folder, run, listener or Listener(), chosen)
    return folder


@contextmanager
def _at_hand(executor: Executor | None, spec: RunSpec) -> Iterator[Executor]:
    """The caller's executor, or one of this machine's that ends with the run."""
    if executor is not None:
        yield executor
        return
    with connected(Placement(), spec) as own:
        yield own


def _new(plan: Plan) -> Run:
    return Run(
        run_id="",
        name=plan.spec.name,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        fingerprint=plan.fingerprint,
        identity=plan.identity,
        spec=plan.spec.model_dump(mode="json"),
        provenance=collect(),
        arms=tuple(ArmSummary(arm.name, arm.path, ArmState.PENDING) for arm in plan.spec.arms),
    )


def _serve(plan: Plan, folder: RunFolder, run: Run, listener: Listener, executor: Executor) -> None:
    listener.run_started(run.run_id, len(run.arms), plan.samples_per_arm)
    for warning in plan.warnings:
        listener.note(warning)
    run = replace(run, provenance=_with_executor(run.provenance, executor.about()))
    session = Session(plan, folder, run, listener, executor)
    try:
        session.serve()
    finally:
        session.close()
    session.finish()


def _with_executor(provenance: Mapping[str, Any], about: Mapping[str, str | int]) -> dict[str, Any]:
    """`provenance` with one more executor that worked on the run, if it is not like the last."""
    earlier = list(provenance.get("executors", []))
    return {**provenance, "executors": earlier if earlier[-1:] == [about] else [*earlier, about]}
