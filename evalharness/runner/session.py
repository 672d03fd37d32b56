"""One sitting at a run: its arms one after another on one engine, every answer saved as it comes."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime

from evalharness.engines.base import Completion, Engine, LoadsApart
from evalharness.errors import EngineError, EvidenceError
from evalharness.records import ArmState, Cause, Run, Sample
from evalharness.runner.early import Stop, beginning, stopped_after, with_stop
from evalharness.runner.executors.base import Executor
from evalharness.runner.listener import Listener
from evalharness.runner.plan import Plan
from evalharness.runner.proof import begun, continued
from evalharness.runner.replica import closed
from evalharness.scoring.tasks import Item, PreparedTask
from evalharness.spec import ArmSpec
from evalharness.store import RunFolder

FLUSH_SECONDS = 1.0
# An arm whose requests fail this often in a row, each time with the same words, is stopped.
IDENTICAL_FAILURES = 8
# An engine that could not be opened this often, each time for the same reason, is not tried for further arms.
IDENTICAL_STARTS = 2
Question = tuple[PreparedTask, Item]


class Session:
    """One engine, opened when first needed and opened anew after it broke."""

    def __init__(self, plan: Plan, folder: RunFolder, run: Run, listener: Listener, executor: Executor) -> None:
        self.plan, self.folder, self.run, self.listener, self.executor = plan, folder, run, listener, executor
        self.began = time.monotonic()
        self.engine: Engine | None = None
        self.failed_starts: list[str] = []

    def serve(self) -> None:
        """Answer what the arms still owe; a failed engine fails the arm, not the run."""
        owed = [(arm, self._missing(arm)) for arm in self.plan.spec.arms]
        done = {summary.name for summary in self.run.arms if summary.state is ArmState.DONE}
        due = [(arm, questions) for arm, questions in owed if questions or arm.name not in done]
        for number, (arm, questions) in enumerate(due, start=1):
            following = due[number][0] if number < len(due) else None
            self._serve(arm, questions, following)

    def _serve(self, arm: ArmSpec, questions: list[Question], following: ArmSpec | None) -> None:
        began = time.monotonic()
        self.listener.arm_started(arm.name, len(questions))
        self._mark(arm, ArmState.RUNNING, 0.0)
        try:
            self._answer(arm, questions, following)
        except EvidenceError as error:
            self._mark(arm, ArmState.INVALID, time.monotonic() - began, str(error))
        except EngineError as error:
            self.close()
            self._mark(arm, ArmState.FAILED, time.monotonic() - began, str(error))
        else:
            self._mark(arm, ArmState.DONE, time.monotonic() - began)
        self.listener.arm_ended(next(s for s in self.run.arms if s.name == arm.name))

    def close(self) -> None:
        """Stop the engine, if one is open."""
        engine, self.engine = self.engine, None
        if engine is not None:
            engine.close()

    def finish(self) -> None:
        """Write the end into run.json."""
        timings = {**self.run.timings, "total": self.run.timings.get("total", 0.0) + time.monotonic() - self.began}
        self.run = replace(self.run, timings=timings, finished=datetime.now(UTC).isoformat(timespec="seconds"))
        self.folder.write_run(self.run)

    def _missing(self, arm: ArmSpec) -> list[Question]:
        return [
            (task, item)
            for task in self.plan.tasks
            for done in [self._answered(task.name, arm.name)]
            for item in beginning(task.items, stopped_after(self.run, task.name, arm.name))
            if (item.doc_hash, item.doc_id, item.repeat) not in done
        ]

    def _answered(self, task: str, arm: str) -> set[tuple[str, int, int]]:
        samples = self.folder.read_samples(task, arm)
        return {sample.key for sample in samples if sample.cause is not Cause.ERROR}

    def _answer(self, arm: ArmSpec, questions: list[Question], following: ArmSpec | None) -> None:
        engine = self._opened()
        engine.use(arm)
        earlier = self.folder.read_evidence().get(arm.name)
        self.folder.write_evidence(begun(continued(engine.evidence(), earlier)))
        pending: list[Sample] = []
        due = time.monotonic() + FLUSH_SECONDS
        try:
            for sample in self._samples(engine, arm, questions, following):
                pending.append(sample)
                if time.monotonic() >= due:
                    self.folder.append(pending[:-1])
                    pending, due = pending[-1:], time.monotonic() + FLUSH_SECONDS
            # The last answer is saved after the evidence: an arm with all its samples has all its proof.
            self.folder.write_evidence(continued(engine.evidence(), earlier))
        finally:
            self.folder.append(pending)

    def _samples(
        self, engine: Engine, arm: ArmSpec, questions: list[Question], following: ArmSpec | None
    ) -> Iterator[Sample]:
        """Every answer; where arms may end early, task after task, so that one can end without the others."""
        breaker = _Breaker(arm.name)
        rule = self.plan.rule
        if rule is None:
            yield from self._scored(engine, arm, questions, breaker, following)
            return
        for task in self.plan.tasks:
            due = [question for question in questions if question[0] is task]
            ended = stopped_after(self.run, task.name, arm.name) is not None
            watch = None if ended or not due else rule.watch(task, arm.name, self.run.arms, self.folder)
            last = following if task is self.plan.tasks[-1] else None
            with closing(self._scored(engine, arm, due, breaker, last)) as samples:
                for sample in samples:
                    yield sample
                    stop = watch.hear(sample) if watch else None
                    if stop is not None:
                        self._note_stop(task.name, arm.name, stop)
                        break

    def _scored(
        self,
        engine: Engine,
        arm: ArmSpec,
        questions: Sequence[Question],
        breaker: _Breaker,
        following: ArmSpec | None,
    ) -> Generator[Sample, None, None]:
        """Answers to `questions`, the arm's last if another is `following`; closing it gives up what is under way."""
        if not questions:
            return
        if following is not None and isinstance(engine, LoadsApart):
            engine.follow(following)
        thinking = self.plan.spec.engine.thinking
        asked = {request.id: (request, *q) for q in questions for request in [q[1].request(thinking=thinking)]}
        with closed(engine.generate([request for request, _, _ in asked.values()])) as completions:
            for completion in completions:
                _, task, item = asked[completion.request_id]
                sample = task.score(item, completion, arm.name)
                self.listener.sample(sample)
                yield sample
                breaker.check(completion)

    def _note_stop(self, task: str, arm: str, stop: Stop) -> None:
        self.listener.note(f"{arm}, {task}: {stop.reason}; {stop.saved} answers saved")
        self.run = replace(self.run, provenance=with_stop(self.run.provenance, task, arm, stop))
        self.folder.write_run(self.run)

    def _opened(self) -> Engine:
        if self.engine is None:
            last = self.failed_starts[-IDENTICAL_STARTS:]
            if len(last) == IDENTICAL_STARTS and len(set(last)) == 1:
                said = f"The engine was not started again after {len(last)} identical failures: {last[0]}"
                raise EngineError(said, "Mend the cause and resume the run.")
            self.engine = self._opening()
        return self.engine

    def _opening(self) -> Engine:
        engine = self.executor.engine(self.plan.spec, self.folder)
        try:
            engine.open(self.plan.spec)
        except EngineError as error:
            self.failed_starts.append(str(error))
            engine.close()
            raise
        except BaseException:
            engine.close()
            raise
        return engine

    def _mark(self, arm: ArmSpec, state: ArmState, seconds: float, message: str = "") -> None:
        arms = tuple(
            replace(s, state=state, seconds=s.seconds + seconds, message=message) if s.name == arm.name else s
            for s in self.run.arms
        )
        self.run = replace(self.run, arms=arms)
        self.folder.write_run(self.run)


class _Breaker:
    """Stops an arm that fails the same way again and again."""

    def __init__(self, arm: str) -> None:
        self.arm = arm
        self.words: str | None = None
        self.times = 0

    def check(self, completion: Completion) -> None:
        """Raise EngineError at the IDENTICAL_FAILURES-th failure in a row with the same words."""
        if completion.error is None:
            self.words, self.times = None, 0
            return
        self.times = self.times + 1 if completion.error == self.words else 1
        self.words = completion.error
        if self.times >= IDENTICAL_FAILURES:
            raise EngineError(
                f"Arm {self.arm} was stopped after {self.times} identical failures: {completion.error}",
                "Mend the cause and resume the run.",
            )
