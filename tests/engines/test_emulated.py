"""The emulated engine, arm by arm: the fault appears where the stale plan cannot serve, and nowhere else."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from evalharness.engines.base import Completion, Engine, Request
from evalharness.engines.emulated.flashmla import BLOCK
from evalharness.errors import EngineError
from evalharness.spec import ArmSpec
from tests.engines.tiny_model import answers, opened, prompt_of, requests, write_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"), "BF16", eos_token_id=None)


@pytest.fixture(scope="module")
def engine(model: Path) -> Iterator[Engine]:
    with opened(model) as made:
        yield made


def tokens(completions: dict[str, Completion]) -> dict[str, tuple[int, ...]]:
    return {key: completion.token_ids for key, completion in completions.items()}


# --- the mechanism ----------------------------------------------------------------------------------------------------


def test_within_one_block_stock_agrees_with_eager(engine: Engine) -> None:
    short = requests([2, 10, 20, 30, 32], max_tokens=32)
    assert tokens(answers(engine, short, "stock")) == tokens(answers(engine, short, "eager"))


def test_beyond_one_block_stock_differs_from_eager_from_there_on(engine: Engine) -> None:
    lengths = [40, 50, 60, 64, 65, 80, 130, 200, 300]
    longer = requests(lengths, max_tokens=60)
    eager, stock = answers(engine, longer, "eager"), answers(engine, longer, "stock")
    for request, length in zip(longer, lengths, strict=True):
        one, other = eager[request.id].token_ids, stock[request.id].token_ids
        assert one != other
        # The token at place i is computed from a context of length + i tokens; the first comes from the prefill.
        right = max(1, BLOCK - length + 1)
        assert one[:right] == other[:right]


@pytest.mark.parametrize("arm", ["patched", "native", "eager#2"])
def test_the_other_arms_agree_with_eager_on_every_token(engine: Engine, arm: str) -> None:
    mixed = requests([2, 40, 63, 64, 65, 100, 128, 129, 300] * 5, max_tokens=40)
    assert tokens(answers(engine, mixed, arm)) == tokens(answers(engine, mixed, "eager"))


@pytest.mark.parametrize("changes", [{"q_lora_rank": 48}, {"num_hidden_layers": 1}])
def test_the_mechanism_holds_for_other_variants_of_the_architecture(tmp_path: Path, changes: dict[str, int]) -> None:
    asked = requests([20, 100, 200], max_tokens=40)
    with opened(write_model(tmp_path, "F16", **changes)) as made:
        eager, stock, patched = (tokens(answers(made, asked, arm)) for arm in ("eager", "stock", "patched"))
    assert patched == eager
    assert stock["r0"] == eager["r0"]
    assert stock != eager


# --- evidence ---------------------------------------------------------------------------------------------------------


def test_evidence_of_stock_shows_the_shared_plan(engine: Engine) -> None:
    evidence = engine.use(ArmSpec.parse("stock"))
    assert {d.num_tokens for d in evidence.descriptors} == {1, 2, 4, 8, 16, 32}
    for descriptor in evidence.descriptors:
        assert descriptor.shared is True
        assert descriptor.plan_recorded is False
        assert descriptor.factory_calls == 1
        assert "SchedMeta.tile_scheduler_metadata" in descriptor.changed
    assert evidence.observed["capture_path"] == "stock"


def test_evidence_of_patched_shows_a_recorded_plan(engine: Engine) -> None:
    evidence = engine.use(ArmSpec.parse("patched"))
    for descriptor in evidence.descriptors:
        assert (descriptor.shared, descriptor.plan_recorded, descriptor.factory_calls) == (False, True, 2)
    assert evidence.observed["cudagraph_mode"] == "FULL_DECODE_ONLY"
    assert evidence.costs["graph_nodes"] > 0
    assert evidence.costs["capture_seconds"] > 0


def test_native_says_which_path_it_is(engine: Engine) -> None:
    evidence = engine.use(ArmSpec.parse("native"))
    assert evidence.observed["capture_path"] == "patched"
    assert evidence.notes == ("native is patched in this engine",)


@pytest.mark.parametrize("arm", ["eager", "stock", "patched", "native", "stock#2"])
def test_no_arm_falls_back_silently(engine: Engine, arm: str) -> None:
    answers(engine, requests([20, 70], max_tokens=5), arm)
    evidence = engine.evidence()
    assert evidence.mismatches == ()
    assert evidence.requested.keys() == evidence.observed.keys()
    replays = (evidence.full_replays, evidence.eager_steps)
    assert replays == ((0, 4) if arm == "eager" else (4, 0))
    assert evidence.costs["decode_tokens_per_s"] > 0


# --- batching ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arm", ["eager", "stock", "patched"])
def test_an_answer_does_not_depend_on_the_other_requests(engine: Engine, arm: str) -> None:
    asked = requests([5, 33, 64, 65, 90, 150, 222] * 6, max_tokens=24, temperature=0.8, top_p=0.9, seed=3)
    together = tokens(answers(engine, asked, arm))
    reversed_order = tokens(answers(engine, asked[::-1]))
    alone = {}
    for request in asked[:9]:
        alone |= tokens(answers(engine, [request]))
    assert reversed_order == together
    assert alone == {key: together[key] for key in alone}


def test_the_batch_sizes_do_not_change_an_answer(model: Path) -> None:
    asked = requests([5, 70, 130] * 4, max_tokens=20)
    results = []
    for sizes in ([1], [3], [2, 5], [16], [40]):
        with opened(model, capture_sizes=sizes) as made:
            results.append(tokens(answers(made, asked, "patched")))
    assert all(result == results[0] for result in results)


def test_completions_come_as_they_finish_and_requests_are_drawn_as_places_get_free(model: Path) -> None:
    drawn: list[str] = []

    def source() -> Iterator[Request]:
        for i in range(50):
            drawn.append(f"r{i}")
            yield Request(f"r{i}", prompt_of(20, i), max_tokens=30 if i == 0 else 2)

    with opened(model, capture_sizes=[2]) as made:
        made.use(ArmSpec.parse("patched"))
        finished = []
        for completion in made.generate(source()):
            if not finished:
                assert len(drawn) < 10
            finished.append(completion.request_id)
    assert sorted(finished) == sorted(drawn)
    assert 20 < finished.index("r0") < 40  # long, so it ends among later requests


def test_an_abandoned_call_leaves_the_engine_usable(model: Path) -> None:
    asked = requests([30, 90, 60, 200], max_tokens=30)
    with opened(model, capture_sizes=[2], max_model_len=256) as made:
        whole = tokens(answers(made, asked, "patched"))
        for _ in range(10):  # lost cache blocks would run out
            stream = made.generate(asked)
            next(stream)
            stream.close()
        assert tokens(answers(made, asked)) == whole


def test_repeats_of_a_prompt_differ_by_seed_only(engine: Engine) -> None:
    asked = [Request(f"{i}", prompt_of(90), 30, temperature=1.0, seed=i % 3) for i in range(9)]
    given = tokens(answers(engine, asked, "eager"))
    assert given["0"] == given["3"] == given["6"]
    assert len(set(given.values())) == 3


# --- ends of an answer ------------------------------------------------------------------------------------------------


def test_max_tokens_ends_an_answer_as_length(engine: Engine) -> None:
    given = answers(engine, requests([70], max_tokens=7), "eager")["r0"]
    assert (given.finish_reason, given.output_tokens, len(given.token_ids), given.prompt_tokens) == ("length", 7, 7, 70)
    assert given.seconds > 0
    assert given.error is None


def test_end_of_sequence_ends_an_answer_as_stop(engine: Engine, tmp_path: Path) -> None:
    asked = requests([70], max_tokens=20)
    free = answers(engine, asked, "eager")["r0"].token_ids
    eos = free[5]
    with opened(write_model(tmp_path, "BF16", eos_token_id=[eos])) as made:
        given = answers(made, asked, "eager")["r0"]
    assert given.finish_reason == "stop"
    assert given.token_ids == free[: free.index(eos) + 1]


def test_a_stop_string_ends_an_answer_and_is_not_part_of_its_text(engine: Engine) -> None:
    asked = requests([70], max_tokens=40)[0]
    free = answers(engine, [asked], "eager")["r0"].text
    stop = next(free[i : i + 3] for i in range(8, 30) if free[i : i + 3].isascii() and "\ufffd" not in free[i : i + 3])
    with_stop = Request("s", asked.prompt, 40, stop=("never there", stop, ""))
    given = answers(engine, [with_stop])["s"]
    assert given.text == free[: free.index(stop)]
    assert given.finish_reason == "stop"
    assert given.output_tokens < 40


def test_a_request_over_the_context_gets_an_error_with_the_sum(engine: Engine) -> None:
    asked = [Request("long", prompt_of(500), 100), Request("fits", prompt_of(412), 100)]
    given = answers(engine, asked, "eager")
    assert given["long"].finish_reason == "error"
    assert "600" in (given["long"].error or "")
    assert "512" in (given["long"].error or "")
    assert "max_model_len" in (given["long"].error or "")
    assert given["fits"].output_tokens == 100


# --- order of calls ---------------------------------------------------------------------------------------------------


def test_calls_out_of_order_say_what_is_missing(model: Path) -> None:
    with opened(model) as made:
        with pytest.raises(EngineError, match="use"):
            list(made.generate([]))
        made.close()
        made.close()
        with pytest.raises(EngineError, match="open"):
            made.use(ArmSpec.parse("eager"))


def test_it_is_an_engine_and_serves_no_request_at_all(engine: Engine) -> None:
    assert isinstance(engine, Engine)
    assert answers(engine, [], "patched") == {}
