"""The trainer: what counts as the answer, how the rate runs, and a small training that leaves a loadable folder."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from evalharness.canary import arch_v3, training  # noqa: E402
from evalharness.canary.batches import DataPlan, TrainBatches, collate, encode, heldout_batches  # noqa: E402
from evalharness.canary.card import write_card  # noqa: E402
from evalharness.canary.problems import TASKS, contexts, render_prompt, split_of  # noqa: E402
from evalharness.canary.tokenizer import BOS, EOS, PAD, build_tokenizer  # noqa: E402

TOKENIZER = build_tokenizer()


def answers_of(tokens: list[int], mask: list[bool]) -> str:
    return TOKENIZER.decode([t for t, m in zip(tokens, mask, strict=True) if m], skip_special_tokens=False)


def test_training_text_is_the_prompt_that_engines_get_and_its_answer() -> None:
    context = next(contexts("gsm8k_canary", "train", shots=1))
    tokens, mask = encode(context)
    assert TOKENIZER.decode(tokens) == "".join(ask + answer for ask, answer in context)
    assert answers_of(tokens, mask) == context[0][1] + context[1][1] + "</s>"
    assert answers_of(*encode(context, last_only=True)) == context[1][1] + "</s>"


def test_a_batch_is_padded_on_the_right_outside_the_answers() -> None:
    batch = collate(list(islice(contexts("aime25_canary", "test"), 7)))
    assert batch.tokens.shape[1] % 16 == 0
    assert (batch.tokens[:, 0] == BOS).all()
    assert not (batch.answers & (batch.tokens == PAD)).any()
    assert ((batch.tokens == EOS).sum(1) == 1).all()


def test_training_never_sees_a_test_question() -> None:
    for batch in islice(iter(TrainBatches(DataPlan(batch=20, seed=3, fewshot_every=2))), 6):
        for row in batch.tokens.tolist():
            questions = TOKENIZER.decode(row).split("Question: ")[1:]
            assert all(split_of(question.split("\nAnswer:")[0]) == "train" for question in questions)


def test_every_second_batch_is_fewshot_when_the_plan_says_so() -> None:
    plan = DataPlan(batch=20, seed=0, fewshot_every=2)
    assert [plan.shape(i) for i in range(4)] == [(20, 0), (4, 4), (20, 0), (4, 4)]
    assert DataPlan(batch=20, seed=0, fewshot_every=0).shape(7) == (20, 0)


def test_the_rate_warms_up_and_ends_at_zero(tmp_path: Path) -> None:
    progress = training.Progress(training.Settings(tmp_path, steps=1000, warmup=0.1))
    rates = []
    for progress.step in range(0, 1001, 50):
        rates.append(progress.rate())
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == rates[2] == pytest.approx(1.0)
    assert rates[-1] == pytest.approx(0.0)
    assert rates[2:] == sorted(rates[2:], reverse=True)


class Oracle(torch.nn.Module):
    """Gives every next token of the rows right, but for the rows in `wrong`, where one answer token is off."""

    def __init__(self, wrong: set[int]) -> None:
        super().__init__()
        self.wrong, self.batches = wrong, heldout_batches("gsm8k_canary", 8)

    def forward(self, **_inputs: object) -> object:
        batch = next(self.batches)
        following = batch.tokens[:, 1:].clone()
        for row in self.wrong:
            following[row, int(batch.answers[row, 1:].nonzero()[0])] = PAD
        return type("Output", (), {"logits": torch.nn.functional.one_hot(following, 264).float()})


def test_one_wrong_token_makes_an_answer_wrong() -> None:
    assert training.exact_share(Oracle(set()), "gsm8k_canary", 8, "cpu") == 1.0
    assert training.exact_share(Oracle({2, 5}), "gsm8k_canary", 8, "cpu") == 0.75


@pytest.mark.slow
def test_a_small_training_lowers_the_loss_and_leaves_a_folder_that_loads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = training.Settings(tmp_path / "v3", steps=6, batch=6, eval_rows=2, checkpoint_seconds=0.0)
    outcome = training.Trainer(arch_v3.ARCH, settings).run()
    write_card(settings.out, arch_v3.ARCH, settings, outcome)
    losses = [point.loss for point in outcome.history if point.loss is not None]
    assert losses[-1] < losses[0]
    assert len(capsys.readouterr().out.splitlines()) == len(outcome.history)
    assert 3e6 < outcome.parameters < 6e6
    assert sum(file.stat().st_size for file in settings.out.iterdir()) < 12e6
    assert f"{outcome.parameters:,}" in (settings.out / "README.md").read_text()
    config = json.loads((settings.out / "config.json").read_text())
    assert config["architectures"] == ["DeepseekV3ForCausalLM"]
    model = arch_v3.load(settings.out)
    prompt = render_prompt("How many?")
    logits = model(torch.tensor([TOKENIZER.encode(prompt).ids])).logits
    assert logits.shape == (1, len(prompt) + 1, config["vocab_size"])
    assert set(TASKS) == set(outcome.history[-1].accuracy)
