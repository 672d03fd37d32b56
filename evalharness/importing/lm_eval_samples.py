"""lm-eval's sample lines as samples of this harness: its scores are kept, ours stand beside them."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from evalharness.errors import DataError
from evalharness.reasoning import Reply, opens_reasoning, split_reasoning
from evalharness.records import Cause, Sample
from evalharness.scoring import degeneration
from evalharness.scoring.answers import extract, gold, same_number

PRIMARY, ROBUST = "exact_match", "robust"
INVALID = "[invalid]"  # what lm-eval's regex filter returns when nothing matched
UNKNOWN = "unknown"  # lm-eval keeps no finish reason
NO_FILTER = "none"
Line = Mapping[str, Any]


@dataclass
class Findings:
    """What a reader must be told of an import; counts by sentence."""

    counts: Counter[str] = field(default_factory=Counter)

    def sentences(self, where: str) -> list[str]:
        """One sentence a finding."""
        return [f"{where}: {count} {words}." for words, count in sorted(self.counts.items())]


def read_samples(task: str, arm: str, lines: Iterable[tuple[int, Line | None]], told: Findings) -> Iterator[Sample]:
    """Samples of one task, in the order of documents. A document with several filters has several lines; one asked
    several times gives a sample a response.

    Raises:
        DataError: a line lacks what every line has, or a document has two lines of one filter.
    """
    documents: dict[int, dict[str, Line]] = {}
    for number, line in lines:
        if line is None:
            told.counts["last line that was cut, left out"] += 1
            continue
        by_filter = documents.setdefault(_doc_id(line, task, number), {})
        name = str(line.get("filter", NO_FILTER))
        if name in by_filter:
            raise DataError(
                f"Task {task}: document {line['doc_id']} has two answers (line {number}).",
                "Import one run at a time; this file holds more than one.",
            )
        by_filter[name] = line
    for doc_id, by_filter in sorted(documents.items()):
        yield from _document(task, arm, doc_id, by_filter, told)


def _document(task: str, arm: str, doc_id: int, by_filter: Mapping[str, Line], told: Findings) -> Iterator[Sample]:
    first = next(iter(by_filter.values()))
    prompt, responses, target = _prompt(first), _responses(first), str(first.get("target", ""))
    scores = _scores(by_filter, told)
    for repeat, response in enumerate(responses):
        sample = Sample(
            task=task,
            arm=arm,
            doc_id=doc_id,
            doc_hash=_hash(first.get("doc_hash"), json.dumps(first.get("doc"), sort_keys=True, default=str)),
            repeat=repeat,
            seed=0,
            prompt_hash=_hash(None if prompt else first.get("prompt_hash"), prompt),
            response=response,
            token_ids=(),
            finish_reason=UNKNOWN,
            prompt_tokens=0,
            output_tokens=0,
            seconds=0.0,
            target=gold(target) or target,
            scores=scores,
            cause=Cause.ERROR,
            extracted=_extracted(by_filter) if len(responses) == 1 else {},
        )
        yield _judged(sample, split_reasoning(response, opened=opens_reasoning(prompt)), prompt, len(responses), told)


def _judged(sample: Sample, reply: Reply, prompt: str, repeats: int, told: Findings) -> Sample:
    """The sample with our extractor's score, the findings about its text and the cause."""
    values = {name: getattr(sample, name) for name in Sample.__dataclass_fields__}
    scores, extracted = dict(sample.scores), dict(sample.extracted)
    goal = gold(sample.target)
    if goal is not None:
        extracted[ROBUST] = extract(reply.answer)
        scores[ROBUST] = float(same_number(extracted[ROBUST], goal))
    if repeats > 1:
        told.counts["answers of repeated documents scored by the robust extractor (lm-eval scores a document)"] += 1
        scores = {PRIMARY: scores[ROBUST], ROBUST: scores[ROBUST]} if ROBUST in scores else {}
    if PRIMARY not in scores:
        told.counts["answers without a score, counted as lost"] += 1
        return Sample(**{**values, "scores": {}, "extracted": {}, "error": "lm-eval recorded no score"})
    flags = degeneration.find_flags(reply.answer, reply.reasoning, prompt, UNKNOWN)
    if reply.open:
        told.counts["answers that end inside their reasoning; lm-eval scored the trace"] += 1
        flags += (degeneration.OPEN_REASONING,)
    if degeneration.EMPTY in flags:
        told.counts["empty answers; lm-eval records a request that failed as one"] += 1
    if ROBUST in scores and (scores[ROBUST] >= 1) != (scores[PRIMARY] >= 1):
        flags += (degeneration.DISAGREEMENT,)
    cause = degeneration.attribute(
        UNKNOWN,
        correct=scores[PRIMARY] >= 1,
        extracted=any(value is not None for value in extracted.values()) or not extracted,
        flags=flags,
        reasoning=bool(reply.reasoning),
    )
    judged = {"scores": scores, "extracted": extracted, "flags": flags, "cause": cause}
    return Sample(**{**values, **judged, "response": reply.answer, "reasoning": reply.reasoning})


def _scores(by_filter: Mapping[str, Line], told: Findings) -> dict[str, float]:
    """The first filter's metrics by their own names, the first metric of each further filter by the filter's. Where
    the first metric is not exact_match, it stands for it."""
    found: dict[str, float] = {}
    for position, (name, line) in enumerate(by_filter.items()):
        metrics = [metric for metric in _list(line.get("metrics")) if isinstance(metric, str)]
        values = {metric: share for metric in metrics if (share := _share(line.get(metric))) is not None}
        if position == 0:
            found |= values
            main = metrics[0] if metrics else PRIMARY
            if PRIMARY not in metrics and main in values:
                told.counts[f"answers whose metric is {main}, which stands for exact_match"] += 1
                found[PRIMARY] = values[main]
        if len(by_filter) > 1 and metrics and metrics[0] in values:
            found[name] = values[metrics[0]]
    return found


def _share(value: object) -> float | None:
    """A metric's value when it is a share of 1; None for "N/A", NaN and whatever else was written."""
    if not isinstance(value, bool | int | float):
        return None
    return float(value) if math.isfinite(value) and 0 <= value <= 1 else None


def _extracted(by_filter: Mapping[str, Line]) -> dict[str, str | None]:
    read = {}
    for name, line in by_filter.items():
        filtered = _list(line.get("filtered_resps"))
        if filtered and name != NO_FILTER:
            read[name] = None if filtered[0] == INVALID else str(filtered[0])
    return read


def _responses(line: Line) -> Sequence[str]:
    """The responses of a document; a line nests them once for its requests and once for their repeats."""
    nested = [item for item in _list(line.get("resps")) if isinstance(item, list)]
    return [_written(text) for text in nested[0]] if nested and nested[0] else [""]


def _prompt(line: Line) -> str:
    """The prompt as text, of lm-eval's newer form of `arguments` or of the older one."""
    arguments = line.get("arguments")
    if isinstance(arguments, dict):
        first = arguments.get("gen_args_0")
        text = first.get("arg_0") if isinstance(first, dict) else None
    else:
        pairs = _list(arguments)
        text = pairs[0][0] if pairs and isinstance(pairs[0], list) and pairs[0] else None
    return _written(text) if isinstance(text, str) else json.dumps(text) if text else ""


def _written(text: object) -> str:
    """Text that a file can hold: a lone surrogate cannot be written as UTF-8."""
    return str(text).encode("utf-8", "replace").decode()


def _hash(recorded: object, text: str) -> str:
    if isinstance(recorded, str) and len(recorded) == 64 and recorded.isascii() and recorded.isalnum():
        return recorded
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def _doc_id(line: Line, task: str, number: int) -> int:
    doc_id = line.get("doc_id")
    if type(doc_id) is not int or not 0 <= doc_id < 2**53:
        raise DataError(f"Task {task}: line {number} has no doc_id.", "Give a samples file that lm-eval wrote.")
    return doc_id


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
