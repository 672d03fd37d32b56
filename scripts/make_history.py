"""Write a year of nights that never ran: synthetic records to look at, to test with and to take a screenshot of.

    python scripts/make_history.py --out /tmp/history --nights 400

The nights hold what an operator must be able to tell apart: a regression that a build brings and a later one
mends, one noisy night, a week in which the job did not run, a late night, one that did not finish, and one whose
stock arm did not show the fault. Figures are drawn at random around given accuracies; the model's name says so.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import numpy.typing as npt

from evalharness.provenance import fingerprint, sha256_text
from evalharness.records import (
    ArmScore,
    ArmState,
    ArmSummary,
    Cause,
    Comparison,
    Contrast,
    NoiseFloor,
    Outcome,
    Run,
    Sample,
    TaskComparison,
    Verdict,
)
from evalharness.stats.intervals import newcombe, wilson
from evalharness.stats.significance import mcnemar
from evalharness.store import encode, run_id

Marks = npt.NDArray[np.int64]
PROFILE = "nightly-demo"
MODEL = "synthetic history, no model ran"
ARMS = ("eager", "stock", "patched")
END = datetime(2026, 12, 1, 2, 0, tzinfo=UTC)
FLOOR = 0.012


@dataclass(frozen=True)
class Task:
    """A benchmark of `documents` x `repeats` answers, and what each arm scores on it in a good night."""

    name: str
    documents: int
    repeats: int
    accuracy: Mapping[str, float]


TASKS = (
    Task("gsm8k_canary", 250, 1, {"eager": 0.952, "stock": 0.168, "patched": 0.952}),
    Task("aime25_canary", 30, 4, {"eager": 0.925, "stock": 0.017, "patched": 0.925}),
)


@dataclass(frozen=True)
class Story:
    """What happens in which night, counted from the first."""

    nights: int = 400
    regression: range = range(0)
    noisy: int = -1
    missing: range = range(0)
    late: int = -1
    unfinished: int = -1
    invalid: int = -1

    @classmethod
    def of(cls, nights: int) -> Story:
        """The same story, stretched over `nights`."""
        at = {name: round(nights * share) for name, share in PLOT.items()}
        return cls(
            nights,
            range(at["regression"], at["regression"] + max(nights // 30, 3)),
            at["noisy"],
            range(at["missing"], at["missing"] + 7),
            at["late"],
            at["unfinished"],
            at["invalid"],
        )


PLOT = {"noisy": 0.30, "regression": 0.52, "invalid": 0.62, "missing": 0.75, "late": 0.86, "unfinished": 0.92}


@dataclass
class History:
    """Writes nights into `results`; the same seed writes the same bytes."""

    results: Path
    story: Story
    seed: int = 7
    keep_samples: int = 5
    end: datetime = END
    rng: np.random.Generator = field(init=False)
    skill: dict[tuple[str, str], npt.NDArray[np.float64]] = field(init=False)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.skill = {(task.name, arm): self._skill(task, arm) for task in TASKS for arm in ARMS}

    def write(self) -> list[str]:
        """Write every night; returns the run ids."""
        return [name for night in range(self.story.nights) for name in self.write_night(night)]

    def write_night(self, night: int) -> Iterator[str]:
        """Write one night, or nothing where the job did not run."""
        if night in self.story.missing:
            return
        at = self.end - timedelta(days=self.story.nights - 1 - night) + timedelta(seconds=int(self.rng.integers(2, 50)))
        if night == self.story.late:
            at += timedelta(hours=5)
        run = self._run(night, at)
        folder = self.results / run.run_id
        folder.mkdir(parents=True)
        if night == self.story.unfinished:
            run = replace(run, finished=None, arms=(*run.arms[:2], replace(run.arms[2], state=ArmState.RUNNING)))
        else:
            marks = {(task.name, arm): self._answers(task, arm, night) for task in TASKS for arm in ARMS}
            self._write_comparison(folder, run, marks, night)
            if night >= self.story.nights - self.keep_samples:
                self._write_samples(folder, marks)
        (folder / "run.json").write_text(encode(run), encoding="utf-8")
        yield run.run_id

    def _skill(self, task: Task, arm: str) -> npt.NDArray[np.float64]:
        """How likely each document is answered rightly: most of them always or never, as with greedy decoding."""
        right = self.rng.random(task.documents) < task.accuracy[arm]
        return np.where(right, 0.996, 0.01)

    def _answers(self, task: Task, arm: str, night: int) -> Marks:
        skill = self.skill[task.name, arm].copy()
        if night in self.story.regression and arm == "patched":
            skill[::6] *= 0.2
        if night == self.story.noisy:
            skill[self.rng.random(task.documents) < 0.02] *= 0.3
        if night == self.story.invalid and arm == "stock":
            skill = self.skill[task.name, "eager"].copy()
        return (self.rng.random((task.documents, task.repeats)) < skill[:, None]).astype(np.int64)

    def _run(self, night: int, at: datetime) -> Run:
        build = self._build(night)
        identity = {f"task {task.name}: questions": sha256_text(task.name) for task in TASKS} | {"engine": MODEL}
        print_ = fingerprint(identity)
        seconds = {arm: 55.0 + float(self.rng.normal(0, 2)) + 6 * (arm == "eager") for arm in ARMS}
        return Run(
            run_id=run_id(at, PROFILE, print_),
            name=PROFILE,
            created=at.isoformat(),
            fingerprint=print_,
            identity=identity,
            spec={
                "name": PROFILE,
                "engine": {"kind": "vllm", "model": MODEL},
                "arms": [{"name": arm, "capture": arm} for arm in ARMS],
                "tasks": [{"name": t.name, "limit": t.documents, "repeats": t.repeats} for t in TASKS],
                "policy": "default",
                "seed": self.seed,
            },
            provenance={
                "packages": {"vllm": build, "evalharness": "0.1.0", "lm-eval": "0.4.13"},
                "git": {"commit": sha256_text(build)[:40], "dirty": False},
                "gpu": [],
            },
            arms=tuple(ArmSummary(arm, arm, ArmState.DONE, 370, seconds[arm]) for arm in ARMS),
            timings={"total": sum(seconds.values())},
            finished=(at + timedelta(seconds=sum(seconds.values()))).isoformat(),
        )

    def _build(self, night: int) -> str:
        """A new development build every ten nights, one on the day of the regression, one on the day it is mended."""
        turns = {self.story.regression.start, self.story.regression.stop} - {0}
        number = night // 10 + sum(night >= turn for turn in turns)
        return f"0.{20 + number // 12}.{number % 12}.dev{40 + 3 * number}+g{sha256_text(str(number))[:9]}"

    def _write_comparison(self, folder: Path, run: Run, marks: Mapping[tuple[str, str], Marks], night: int) -> None:
        tasks = tuple(self._task(task, {arm: marks[task.name, arm] for arm in ARMS}, night) for task in TASKS)
        worst = min((task.verdict.outcome for task in tasks), key=SEVERITY.index)
        decisive = [task for task in tasks if task.verdict.outcome is worst]
        reasons = tuple(f"{task.task}: {reason}" for task in decisive for reason in task.verdict.reasons)
        comparison = Comparison(
            run_id=run.run_id,
            name=run.name,
            created=run.created,
            engine="vllm",
            model=MODEL,
            arms=ARMS,
            reference="eager",
            policy="default",
            alpha=0.05,
            level=0.95,
            seed=self.seed,
            tasks=tasks,
            verdict=Verdict(worst, reasons),
        )
        (folder / "comparison.json").write_text(encode(comparison), encoding="utf-8")

    def _task(self, task: Task, marks: Mapping[str, Marks], night: int) -> TaskComparison:
        contrasts = tuple(_contrast(marks, arm, base) for arm, base in PAIRS)
        return TaskComparison(
            task=task.name,
            metric=f"avg@{task.repeats}" if task.repeats > 1 else "exact_match",
            repeats=task.repeats,
            documents=task.documents,
            scores=tuple(self._score(task, arm, marks[arm], night) for arm in ARMS),
            contrasts=contrasts,
            verdict=_verdict(contrasts),
            noise=(NoiseFloor(("eager", "eager#2"), 0.0, 2, 0.98, FLOOR),),
        )

    def _score(self, task: Task, arm: str, marks: Marks, night: int) -> ArmScore:
        value = float(marks.mean())
        broken = 1 - value if value < 0.5 else max(0.0, (0.94 - value)) * 0.7
        length = 92.0 + 35 * broken + float(self.rng.normal(0, 0.8)) + 4 * (night == self.story.noisy)
        degenerate = min(marks.size, round(broken * marks.size * 0.9))
        wrong = int(marks.size - marks.sum())
        return ArmScore(
            arm=arm,
            capture=arm,
            n=marks.size,
            documents=task.documents,
            asked=marks.size,
            coverage=1.0,
            value=value,
            interval=wilson(value * task.documents, task.documents),
            causes={"correct": int(marks.sum()), "loop": degenerate, "wrong": max(0, wrong - degenerate)},
            degenerate=degenerate,
            truncated=degenerate // 2,
            output_tokens=length,
            length_ratio=length / 92.0 if arm != "eager" else None,
            seconds=1.4,
        )

    def _write_samples(self, folder: Path, marks: Mapping[tuple[str, str], Marks]) -> None:
        for (task, arm), answers in marks.items():
            path = folder / "samples" / task / f"{arm}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(f"{encode(sample)}\n" for sample in _samples(task, arm, answers)), encoding="utf-8")


PAIRS = (("stock", "eager"), ("patched", "eager"), ("patched", "stock"))
SEVERITY = (Outcome.FAIL, Outcome.ERROR, Outcome.INVALID, Outcome.INCONCLUSIVE, Outcome.PASS)


def _contrast(marks: Mapping[str, Marks], arm: str, baseline: str) -> Contrast:
    """Documents as independent 0/1 answers: near enough for pictures."""
    ours, theirs = marks[arm][:, 0], marks[baseline][:, 0]
    gains, losses = int((ours > theirs).sum()), int((ours < theirs).sum())
    both = int((ours & theirs).sum())
    test = mcnemar(gains, losses)
    return Contrast(
        arm=arm,
        baseline=baseline,
        n=len(ours),
        documents=len(ours),
        difference=float(ours.mean() - theirs.mean()),
        interval=newcombe(both, gains, losses, len(ours) - both - gains - losses),
        gains=gains,
        losses=losses,
        test=test.method,
        p_worse=test.p_worse,
        p_better=test.p_better,
        p_two_sided=test.p_two_sided,
        margin=0.05,
    )


def _verdict(contrasts: tuple[Contrast, ...]) -> Verdict:
    reproduced, recovered, _ = contrasts
    if (reproduced.p_worse or 0) > 0.05:
        return Verdict(Outcome.INVALID, ("reproduced: no. stock is not worse than eager; the fix was not tested.",))
    if (recovered.p_worse or 0) < 0.01 and (recovered.difference or 0) < -0.05:
        return Verdict(Outcome.FAIL, (f"recovered: no. patched {recovered.difference:+.3f} against eager: worse.",))
    return Verdict(Outcome.PASS, ("reproduced: yes. recovered: yes.",))


def _samples(task: str, arm: str, marks: Marks) -> Iterator[Sample]:
    for doc, repeat in np.ndindex(marks.shape):
        right = bool(marks[doc, repeat])
        yield Sample(
            task=task,
            arm=arm,
            doc_id=doc,
            doc_hash=sha256_text(task, str(doc)),
            repeat=repeat,
            seed=0,
            prompt_hash=sha256_text(task, str(doc)),
            response="#### 7" if right else "#### 6",
            token_ids=(),
            finish_reason="stop",
            prompt_tokens=100,
            output_tokens=3,
            seconds=0.1,
            target="7",
            scores={"exact_match": float(right)},
            cause=Cause.CORRECT if right else Cause.WRONG,
        )


def make_history(results: Path, nights: int = 400, *, end: datetime = END, keep_samples: int = 5) -> list[str]:
    """Write the story over `nights` nights that end at `end`; returns the run ids."""
    return History(results, Story.of(nights), end=end, keep_samples=keep_samples).write()


def main() -> None:
    """Write the nights, and the schedule they were due by."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="results folder")
    parser.add_argument("--nights", type=int, default=400)
    parser.add_argument("--now", action="store_true", help="end last night instead of on 2026-12-01")
    chosen = parser.parse_args()
    end = datetime.now(UTC).replace(hour=2, minute=0, second=0, microsecond=0) if chosen.now else END
    made = make_history(chosen.out, chosen.nights, end=end)
    schedule = f"jobs:\n- profile: {PROFILE}\n  at: '02:00'\n"
    (chosen.out / "schedule.yaml").write_text(schedule, encoding="utf-8")
    print(f"{len(made)} runs in {chosen.out}")


if __name__ == "__main__":
    main()
