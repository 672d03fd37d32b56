"""Token arithmetic before anything starts: does a question fit the model, and is the answer given room enough?"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from evalharness.errors import SpecError
from evalharness.scoring.tasks import PreparedTask

# Below these, the token limit rather than the model decides part of the score.
ENOUGH_TOKENS = {"gsm8k": 256, "aime25": 16384}
CHARACTERS_PER_TOKEN = 4  # of English prose in usual vocabularies; for want of a tokenizer


def estimate_tokens(text: str) -> int:
    """Tokens of `text` where no tokenizer is at hand: one for every CHARACTERS_PER_TOKEN characters, rounded up."""
    return -(-len(text) // CHARACTERS_PER_TOKEN)


def check_budget(
    tasks: Iterable[PreparedTask], max_model_len: int, count: Callable[[str], int] = estimate_tokens
) -> None:
    """Refuse a task whose longest prompt and its new tokens exceed `max_model_len`; `count` gives a prompt's tokens.

    Raises:
        SpecError: with the sum and the settings that would fit.
    """
    for task in tasks:
        prompt = count(max((item.prompt for item in task.items), key=len, default=""))
        new = max((item.max_tokens for item in task.items), default=0)
        if prompt + new > max_model_len:
            raise SpecError(
                f"Task {task.name}: a prompt of {prompt} tokens and {new} new ones make {prompt + new}, over "
                f"max_model_len {max_model_len}.",
                _what_fits(task.name, prompt, new, max_model_len),
            )


def budget_warnings(tasks: Iterable[PreparedTask]) -> tuple[str, ...]:
    """Sentences on settings that are allowed but rarely meant."""
    return tuple(warning for task in tasks for warning in (*_too_short(task), *_all_alike(task)))


def _what_fits(task: str, prompt: int, new: int, max_model_len: int) -> str:
    longer = f"Set engine.max_model_len={prompt + new} or more"
    left = max_model_len - prompt
    if left > 0:
        return f"{longer}, or tasks.{task}.max_tokens={left} or less."
    return f"{longer}, or lower tasks.{task}.num_fewshot: the prompt alone fills the context."


def _too_short(task: PreparedTask) -> Iterable[str]:
    enough, given = ENOUGH_TOKENS.get(task.name, 0), max((item.max_tokens for item in task.items), default=0)
    if given < enough:
        yield (
            f"Task {task.name} allows {given} new tokens; below {enough} many answers of a reasoning model are cut "
            f"before they end, and count as truncated. Set tasks.{task.name}.max_tokens={enough}."
        )


def _all_alike(task: PreparedTask) -> Iterable[str]:
    if any(item.repeat for item in task.items) and all(item.temperature == 0 for item in task.items):
        yield (
            f"Task {task.name} repeats every document at temperature 0: the repeats will be the same answer. "
            f"Set tasks.{task.name}.temperature, or repeats=1."
        )
