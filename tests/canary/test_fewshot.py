"""The few-shot task of canary-v4: rendered as in training, and long enough for compressed attention to count."""

from __future__ import annotations

from evalharness.canary.problems import render_prompt
from evalharness.scoring.tasks import prepare
from evalharness.spec import load_spec


def test_a_fewshot_prompt_is_a_training_context_of_over_512_tokens() -> None:
    spec = load_spec("canary-v4-gpu", ["tasks=[{name: gsm8k_canary_fewshot, limit: 5}]"])
    (task,) = prepare(spec)
    assert len(task.items) == 5
    for item in task.items:
        *worked, asked = (
            part.split("\nAnswer:") for part in item.prompt.removeprefix("Question: ").split("\n\nQuestion: ")
        )
        examples = [(question, solution.removeprefix(" ")) for question, solution in worked]
        assert len(examples) == 4
        assert item.prompt == render_prompt(asked[0], examples)
        assert 512 < len(item.prompt) < 1024  # a token is a character
