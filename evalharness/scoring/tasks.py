"""Prepared tasks: every question of a run, built once for all arms, and the scoring of each answer."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

from evalharness.engines.base import Completion, Request
from evalharness.reasoning import Reply, cut_at_stop, opens_reasoning, split_reasoning
from evalharness.records import Cause, Sample
from evalharness.scoring import degeneration
from evalharness.scoring.answers import extract, gold, same_number
from evalharness.scoring.data import digest
from evalharness.scoring.definitions import Definition, Generation, Prompt, load, task_names
from evalharness.spec import RunSpec, TaskSpec

__all__ = ["SCORING_VERSION", "Item", "PreparedTask", "derive_seed", "prepare", "prepare_task", "task_names"]

SCORING_VERSION = 1  # raised whenever the same response may score differently; `rescore` brings old samples up
ROBUST = "robust"
TURN_END = ("<|", "</s>")  # stop strings that are special tokens end a turn wherever they come


@dataclass(frozen=True, slots=True)
class Item:
    """One question to one model: a document and a repeat. `max_tokens` counts new tokens, temperature 0 is greedy.

    `target` is the number asked for, or the target's text where that is no number. `prompt_hash` is the SHA-256 of
    the prompt. `seed` has 31 bits and depends on what is asked, not on where in the run it stands.
    """

    task: str
    doc_id: int
    doc_hash: str
    repeat: int
    seed: int
    prompt: str
    prompt_hash: str
    target: str
    max_tokens: int
    temperature: float
    top_p: float
    stop: tuple[str, ...]

    def request(self, *, thinking: bool = False) -> Request:
        """The request to an engine. Of a `thinking` model no stop string is asked but special tokens: an engine would
        stop inside the reasoning, and the answer is cut when it is scored."""
        stop = tuple(text for text in self.stop if not thinking or text.startswith(TURN_END))
        name = f"{self.task}/{self.doc_id}/{self.repeat}"
        return Request(name, self.prompt, self.max_tokens, self.temperature, self.top_p, self.seed, stop)


@dataclass(frozen=True, slots=True)
class PreparedTask:
    """A task ready to be asked and scored. `metric` is lm-eval's name of it, or avg@k where documents repeat;
    `score_key` is its key in a sample's scores. `data_sha256` covers the documents as used, in order."""

    name: str
    metric: str
    score_key: str
    data_sha256: str
    items: tuple[Item, ...]
    definition: Definition
    prompts: Mapping[int, Prompt]

    def score(self, item: Item, completion: Completion, arm: str) -> Sample:
        """The complete record of one answer.

        lm-eval scores what follows the reasoning, up to the first stop string. A completion lost to infrastructure
        has no scores. `response` and `reasoning` keep the text as the engine gave it.
        """
        reply = _reply(item, completion)
        sample = Sample(
            task=self.name,
            arm=arm,
            doc_id=item.doc_id,
            doc_hash=item.doc_hash,
            repeat=item.repeat,
            seed=item.seed,
            prompt_hash=item.prompt_hash,
            response=reply.answer,
            token_ids=completion.token_ids,
            finish_reason=completion.finish_reason,
            prompt_tokens=completion.prompt_tokens,
            output_tokens=completion.output_tokens,
            seconds=completion.seconds,
            target=item.target,
            scores={},
            cause=Cause.ERROR,
            flags=(degeneration.OPEN_REASONING,) if reply.open else (),
            reasoning=reply.reasoning,
            error=completion.error,
        )
        return self._judged(sample, item.prompt, item.stop)

    def rescore(self, sample: Sample) -> Sample:
        """A stored sample scored anew from its response, by the rules of this version."""
        prompt = self.prompts[sample.doc_id].text
        return self._judged(sample, prompt, self.definition.generation.stop)

    def _judged(self, sample: Sample, prompt: str, stop: tuple[str, ...]) -> Sample:
        if sample.finish_reason == "error":
            return replace(sample, scores={}, extracted={}, cause=Cause.ERROR, flags=())
        answer = cut_at_stop(sample.response, stop)
        evaluation = self.definition.evaluate(self.prompts[sample.doc_id], answer)
        scores, extracted = dict(evaluation.scores), dict(evaluation.extracted)
        if self.score_key not in scores:
            said = f"lm-eval gave no finite {self.score_key}"
            return replace(sample, scores={}, extracted={}, cause=Cause.ERROR, flags=(), error=said)
        goal = gold(sample.target)
        if goal is not None:
            extracted[ROBUST] = extract(answer, complete=sample.finish_reason != "length")
            scores[ROBUST] = float(same_number(extracted[ROBUST], goal))
        flags = degeneration.find_flags(answer, sample.reasoning, prompt, sample.finish_reason)
        if degeneration.OPEN_REASONING in sample.flags:
            flags += (degeneration.OPEN_REASONING,)
        right = scores.get(self.score_key, 0.0) >= 1
        readable = scores.get(ROBUST, 0.0) >= 1 and degeneration.LOOP not in flags
        if goal is not None and right != (scores[ROBUST] >= 1):
            flags += (degeneration.DISAGREEMENT,)
        cause = degeneration.attribute(
            sample.finish_reason,
            correct=right or readable,
            extracted=any(value is not None for value in extracted.values()) or not extracted,
            flags=flags,
            reasoning=bool(sample.reasoning),
        )
        return replace(sample, scores=scores, extracted=extracted, flags=flags, cause=cause)


def prepare(spec: RunSpec) -> tuple[PreparedTask, ...]:
    """Every task of `spec` with its questions built, before any engine starts.

    Raises:
        UnknownName: there is no such task.
        DataError: evaluation data is missing, or is not what its hash names.
        SpecError: a task cannot be asked as the spec wants.
    """
    return tuple(prepare_task(task, spec) for task in spec.tasks)


def prepare_task(wanted: TaskSpec, spec: RunSpec) -> PreparedTask:
    """One task of `spec`; raises as `prepare` does. A limit beyond the last document asks for all."""
    data = spec.data_dir.expanduser() if spec.data_dir else None
    definition = load(wanted.name, data)
    prompts = tuple(definition.prompts(wanted.limit, wanted.num_fewshot))
    settings = _overridden(definition.generation, wanted)
    items = tuple(
        _item(wanted.name, prompt, repeat, settings, spec.seed)
        for prompt in prompts
        for repeat in range(wanted.repeats)
    )
    return PreparedTask(
        name=wanted.name,
        metric=definition.metric if wanted.repeats == 1 else f"avg@{wanted.repeats}",
        score_key=definition.metric,
        data_sha256=digest([prompt.doc for prompt in prompts]),
        items=items,
        definition=definition,
        prompts={prompt.doc_id: prompt for prompt in prompts},
    )


def derive_seed(seed: int, task: str, doc_hash: str, repeat: int) -> int:
    """31 bits of SHA-256 over what is asked: the same in every arm, in any order, after any resume."""
    text = "\0".join((str(seed), task, doc_hash, str(repeat)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1


def _item(task: str, prompt: Prompt, repeat: int, settings: Generation, seed: int) -> Item:
    return Item(
        task=task,
        doc_id=prompt.doc_id,
        doc_hash=prompt.doc_hash,
        repeat=repeat,
        seed=derive_seed(seed, task, prompt.doc_hash, repeat),
        prompt=prompt.text,
        prompt_hash=hashlib.sha256(prompt.text.encode()).hexdigest(),
        target=gold(prompt.target) or prompt.target,
        max_tokens=settings.max_tokens,
        temperature=settings.temperature,
        top_p=settings.top_p,
        stop=settings.stop,
    )


def _overridden(own: Generation, wanted: TaskSpec) -> Generation:
    """The task's own settings with those the spec names in their place."""
    named = {key: getattr(wanted, key) for key in ("max_tokens", "temperature", "top_p")}
    return replace(own, **{key: value for key, value in named.items() if value is not None})


def _reply(item: Item, completion: Completion) -> Reply:
    """The answer and the reasoning, whether the engine parted them or left the tags in the text."""
    if completion.reasoning:
        cut_inside = not completion.text.strip() and completion.finish_reason == "length"
        return Reply(completion.text, completion.reasoning, open=cut_inside)
    return split_reasoning(completion.text, opened=opens_reasoning(item.prompt))
