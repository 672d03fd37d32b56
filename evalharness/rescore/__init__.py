"""Stored answers scored again, without a model: the old scores stay where they are, the new ones go beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from evalharness.errors import DataError, UnknownName
from evalharness.records import Cause, Sample
from evalharness.rescore.files import StoredAnswer, read_answers
from evalharness.scoring.answers import gold
from evalharness.scoring.definitions import Definition, load
from evalharness.scoring.degeneration import DISAGREEMENT
from evalharness.scoring.tasks import ROBUST, SCORING_VERSION, PreparedTask, prepare_task
from evalharness.spec import parse_spec
from evalharness.store import RunFolder, encode

ARM: Final = "stored"  # of answers whose file names no arm
SPLITS: Final = ("train", "validation", "test")

__all__ = ["Change", "Rescored", "rescore_file", "rescore_run", "rescored_changes"]


@dataclass(frozen=True, slots=True)
class Change:
    """One answer that scores differently now; `before` and `after` map metrics to the scores that differ."""

    doc_id: int
    repeat: int
    before: Mapping[str, float | None]
    after: Mapping[str, float | None]
    cause_before: str | None
    cause_after: str
    extracted: str | None


@dataclass(frozen=True, slots=True)
class Rescored:
    """One (task, arm). `before` and `after` are lm-eval's accuracies, `before` None where the file held no scores;
    `robust` is the robust extractor's, `disagreements` counts the answers the two score differently."""

    task: str
    arm: str
    n: int
    before: float | None
    after: float | None
    robust: float | None
    disagreements: int
    written: Path
    changes: tuple[Change, ...]
    notes: tuple[str, ...] = ()


def rescore_run(
    folder: RunFolder, only: str | None = None, data: Path | None = None
) -> tuple[RunFolder, list[Rescored]]:
    """Score a run's answers again into a run folder of its own beside it; `data` replaces the spec's data folder.

    Raises:
        UnknownName: the run has no task `only`.
        DataError: the task's documents are missing, or are not those that were answered.
    """
    scored = list(_scored(folder, only, data))
    run = folder.read_run()
    again = {
        "from": run.run_id,
        "scoring_version": SCORING_VERSION,
        "tasks": sorted({task.name for task, *_ in scored}),
    }
    target, copy = RunFolder.create(folder.path.parent, replace(run, provenance={**run.provenance, "rescored": again}))
    for proof in folder.read_evidence().values():
        target.write_evidence(proof)
    done = set()
    results = []
    for task, arm, old, new in scored:
        target.append(new)
        done.add((task.name, arm))
        results.append(_compared(task, arm, _as_stored(old), new, target.samples_path(task.name, arm)))
    for name, arm in _pairs(folder):
        if (name, arm) not in done:
            target.append(folder.read_samples(name, arm))
    target.write_run(copy)
    return target, results


def rescored_changes(folder: RunFolder, data: Path | None = None) -> list[tuple[str, str, Change]]:
    """(task, arm, change) of every answer whose stored score is not what its response scores; writes nothing.

    Raises as `rescore_run` does.
    """
    found = []
    for task, arm, old, new in _scored(folder, None, data):
        result = _compared(task, arm, _as_stored(old), new, folder.path)
        found += [(task.name, arm, change) for change in result.changes]
    return found


def _scored(
    folder: RunFolder, only: str | None, data: Path | None
) -> Iterator[tuple[PreparedTask, str, list[Sample], list[Sample]]]:
    """(task, arm, samples as stored, samples scored again)."""
    spec = parse_spec({**folder.read_run().spec, **({"data_dir": data} if data else {})})
    names = [task.name for task in spec.tasks]
    if only is not None and only not in names:
        raise UnknownName("task of this run", only, names)
    for wanted in spec.tasks:
        if only in {None, wanted.name}:
            prepared = prepare_task(wanted, spec)
            for arm in spec.arms:
                old = folder.read_samples(wanted.name, arm.name)
                yield prepared, arm.name, old, [_again(prepared, sample) for sample in old]


def _pairs(folder: RunFolder) -> list[tuple[str, str]]:
    run = folder.read_run()
    return [(task["name"], arm.name) for task in run.spec["tasks"] for arm in run.arms]


def _again(prepared: PreparedTask, sample: Sample) -> Sample:
    prompt = prepared.prompts.get(sample.doc_id)
    if prompt is None or prompt.doc_hash != sample.doc_hash:
        raise DataError(
            f"Document {sample.doc_id} of {prepared.name} is not the one that was answered.",
            "Name the folder with the data of the run: --data DIR.",
        )
    return prepared.rescore(sample)


def rescore_file(path: Path, task: str | None = None, data: Path | None = None) -> Rescored:
    """Score the answers of a JSON Lines file again; the samples go into a new file beside it.

    Documents come from the rows. Rows without document and target are matched by `doc_id` with the task's own
    data, from `data` or the hub.

    Raises:
        UnknownName: there is no such task.
        DataError, RecordError: the file or the task's documents cannot be read.
    """
    task, answers = read_answers(path, task)
    prepared = _prepared(task, answers, data)
    old = [_sample(prepared, answer) for answer in answers]
    new = [prepared.rescore(sample) for sample in old]
    written = _beside(path)
    written.write_text("".join(f"{encode(sample)}\n" for sample in new), encoding="utf-8")
    arms = sorted({sample.arm for sample in new})
    result = _compared(prepared, ", ".join(arms), answers, new, written)
    if any(answer.finish_reason is None for answer in answers):
        note = "the file has no finish reasons: an answer cut by the token limit cannot be told from a finished one"
        return replace(result, notes=(note,))
    return result


def _prepared(task: str, answers: Sequence[StoredAnswer], data: Path | None) -> PreparedTask:
    docs = {answer.doc_id: answer.doc for answer in answers if answer.doc is not None}
    if len(docs) == len({answer.doc_id for answer in answers}):
        ids = list(docs)
        rows = _alike([docs[i] for i in ids])
        definition = load(task, splits=dict.fromkeys(SPLITS, rows))
        prompts = dict(zip(ids, definition.prompts(num_fewshot=0), strict=True))
        return _task(task, definition, prompts)
    definition = load(task, data)
    prompts = {prompt.doc_id: prompt for prompt in definition.prompts(num_fewshot=0)}
    unknown = next((answer.doc_id for answer in answers if answer.doc_id not in prompts), None)
    if unknown is not None:
        raise DataError(f"Task {task} has no document {unknown}.", "Give each row its `doc` or `target`.")
    return _task(task, definition, prompts)


def _task(name: str, definition: Definition, prompts: Mapping[int, Any]) -> PreparedTask:
    return PreparedTask(name, definition.metric, definition.metric, "", (), definition, prompts)


def _alike(docs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows with the same keys, as a table wants them, and answers as text."""
    names = dict.fromkeys(name for doc in docs for name in doc)
    rows = [{name: doc.get(name, "") for name in names} for doc in docs]
    return [{**row, "answer": str(row["answer"])} if "answer" in row else row for row in rows]


def _sample(prepared: PreparedTask, answer: StoredAnswer) -> Sample:
    if answer.sample is not None:
        return answer.sample
    prompt = prepared.prompts[answer.doc_id]
    return Sample(
        task=prepared.name,
        arm=ARM,
        doc_id=answer.doc_id,
        doc_hash=prompt.doc_hash,
        repeat=answer.repeat,
        seed=0,
        prompt_hash="",
        response=answer.text,
        token_ids=(),
        finish_reason=answer.finish_reason or "stop",
        prompt_tokens=0,
        output_tokens=0,
        seconds=0.0,
        target=gold(prompt.target) or prompt.target,
        scores={},
        cause=Cause.ERROR,
    )


def _as_stored(samples: Sequence[Sample]) -> list[StoredAnswer]:
    return [StoredAnswer(s.doc_id, s.repeat, s.response, None, s.finish_reason, s.scores, s) for s in samples]


def _compared(
    prepared: PreparedTask, arm: str, old: Sequence[StoredAnswer], new: Sequence[Sample], written: Path
) -> Rescored:
    pairs = list(zip(old, new, strict=True))
    changes = tuple(change for one, two in pairs if (change := _change(one, two)))
    before = [a.before[prepared.score_key] for a in old if prepared.score_key in a.before]
    after = [s.scores[prepared.score_key] for s in new if prepared.score_key in s.scores]
    robust = [s.scores[ROBUST] for s in new if ROBUST in s.scores]
    return Rescored(
        task=prepared.name,
        arm=arm,
        n=len(after),
        before=fmean(before) if before else None,
        after=fmean(after) if after else None,
        robust=fmean(robust) if robust else None,
        disagreements=sum(DISAGREEMENT in sample.flags for sample in new),
        written=written,
        changes=changes,
    )


def _change(one: StoredAnswer, two: Sample) -> Change | None:
    names = [name for name in one.before if one.before[name] != two.scores.get(name)]
    cause = one.sample.cause.value if one.sample else None
    if not names and cause in {None, two.cause.value}:
        return None
    return Change(
        doc_id=two.doc_id,
        repeat=two.repeat,
        before={name: one.before[name] for name in names},
        after={name: two.scores.get(name) for name in names},
        cause_before=cause,
        cause_after=two.cause.value,
        extracted=next((value for value in two.extracted.values() if value is not None), None),
    )


def _beside(path: Path) -> Path:
    """A name beside `path` that no file has: the scores of every version are kept."""
    stem = path.name.removesuffix(".jsonl")
    number = 1
    while True:
        again = f".{number}" if number > 1 else ""
        target = path.with_name(f"{stem}.rescored-v{SCORING_VERSION}{again}.jsonl")
        if not target.exists():
            return target
        number += 1
