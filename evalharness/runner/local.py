"""Runs a plan into a folder of its own, or finishes one that was begun."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from evalharness.provenance import collect
from evalharness.records import ArmState, ArmSummary, Run
from evalharness.runner.executors.base import Executor
from evalharness.runner.executors.local import Local
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
    plan = make_plan(spec)
    run = Run(
        run_id="",
        name=spec.name,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        fingerprint=plan.fingerprint,
        identity=plan.identity,
        spec=spec.model_dump(mode="json"),
        provenance=collect(),
        arms=tuple(ArmSummary(arm.name, arm.path, ArmState.PENDING) for arm in spec.arms),
    )
    folder, run = RunFolder.create(results, run)
    return _serve(plan, folder, run, listener or Listener(), executor or Local())


def resume(folder: RunFolder, listener: Listener | None = None, executor: Executor | None = None) -> RunFolder:
    """Answer what `folder` still misses, lost requests included; by whichever executor, the answers are the same.

    Raises:
        RecordError: the run's data, model or settings are not what they were.
        StoreError: its answers are compacted.
    """
    folder.refuse_compacted()
    run = folder.read_run()
    plan = make_plan(parse_spec(run.spec))
    refuse_mixing(run.identity, plan.identity)
    return _serve(plan, folder, run, listener or Listener(), executor or Local())


def _serve(plan: Plan, folder: RunFolder, run: Run, listener: Listener, executor: Executor) -> RunFolder:
    with folder.locked():
        listener.run_started(run.run_id, len(run.arms), plan.samples_per_arm)
        for warning in plan.warnings:
            listener.note(warning)
        run = replace(run, provenance=_with_executor(run.provenance, executor.about()))
        session = Session(plan, folder, run, listener, executor)
        try:
            for arm in plan.spec.arms:
                session.serve(arm)
        finally:
            session.close()
        session.finish()
    return folder


def _with_executor(provenance: Mapping[str, Any], about: Mapping[str, str | int]) -> dict[str, Any]:
    """`provenance` with one more executor that worked on the run, if it is not like the last."""
    earlier = list(provenance.get("executors", []))
    return {**provenance, "executors": earlier if earlier[-1:] == [about] else [*earlier, about]}
