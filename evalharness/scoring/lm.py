"""lm-eval's `LM` over any Engine, so that the `lm_eval` tools themselves can run one.

The harness does not need it: it scores with lm-eval's tasks directly and keeps what lm-eval drops. It is here to show
that both come to the same totals, and for people who work with `lm_eval.simple_evaluate`. Importing this module
registers the model name `evalharness`:

    import evalharness.scoring.lm
    lm_eval.simple_evaluate(model="evalharness", model_args="profile=canary-v3,arm=patched", tasks=[...])
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from lm_eval.api.model import LM
from lm_eval.api.registry import register_model

from evalharness.engines.base import Completion, Engine, Request, create_engine
from evalharness.errors import EngineError, SpecError
from evalharness.reasoning import cut_at_stop, opens_reasoning, split_reasoning
from evalharness.scoring.definitions import lm_eval_doc_hash, read_generation
from evalharness.scoring.tasks import derive_seed
from evalharness.spec import ArmSpec, load_spec


@register_model("evalharness")
class EngineLM(LM):  # type: ignore[misc]  # lm-eval ships no types
    """An open engine with its arm in use; without one, the engine of `profile` is opened and `arm` brought up.

    lm-eval always passes `batch_size`, `max_batch_size` and `device`; an engine makes its own batches where it is.
    """

    def __init__(
        self,
        engine: Engine | None = None,
        *,
        profile: str = "canary-v3",
        arm: str = "eager",
        seed: int | None = None,
        batch_size: object = None,
        max_batch_size: object = None,
        device: object = None,
    ) -> None:
        del batch_size, max_batch_size, device
        super().__init__()
        spec = load_spec(profile)
        self.seed = spec.seed if seed is None else int(seed)
        self.engine = engine or create_engine(spec.engine.kind)
        if engine is None:
            self.engine.open(spec)
            self.engine.use(ArmSpec.parse(arm))

    def generate_until(self, requests: list[Any], disable_tqdm: bool = True) -> list[str]:
        """The answers in the order of `requests`, without reasoning, up to their stop strings.

        Raises:
            EngineError: an answer was lost; lm-eval would score its absence as wrong.
            SpecError: a generation setting that no engine here takes.
        """
        del disable_tqdm
        asked = [self._request(number, *pair) for number, pair in enumerate(_with_repeats(requests))]
        answers = {done.request_id: _answer(done, asked[int(done.request_id)]) for done in self.engine.generate(asked)}
        if len(answers) < len(asked):
            raise EngineError(f"The engine answered {len(answers)} of {len(asked)} requests.", "See its log.")
        return [answers[request.id] for request in asked]

    def loglikelihood(self, requests: list[Any]) -> list[tuple[float, bool]]:
        """Refused: raises SpecError."""
        raise self._refusal(requests)

    def loglikelihood_rolling(self, requests: list[Any]) -> list[float]:
        """Refused: raises SpecError."""
        raise self._refusal(requests)

    def _refusal(self, requests: list[Any]) -> SpecError:
        tasks = ", ".join(sorted({str(request.task_name) for request in requests}))
        return SpecError(
            f"Task {tasks} needs log-likelihoods; engines here only generate text.",
            "Choose a task with output_type generate_until.",
        )

    def _request(self, number: int, instance: Any, repeat: int) -> Request:
        prompt, settings = instance.args
        how = read_generation(instance.task_name, settings)
        seed = derive_seed(self.seed, instance.task_name, lm_eval_doc_hash(instance.doc), repeat)
        return Request(str(number), prompt, how.max_tokens, how.temperature, how.top_p, seed, how.stop)


def _with_repeats(requests: list[Any]) -> list[tuple[Any, int]]:
    """Each request with the number of its repeat; lm-eval hands the same object in once a repeat."""
    seen: Counter[int] = Counter()
    numbered = []
    for request in requests:
        numbered.append((request, seen[id(request)]))
        seen[id(request)] += 1
    return numbered


def _answer(done: Completion, request: Request) -> str:
    if done.finish_reason == "error":
        raise EngineError(f"A request was lost: {done.error or 'no reason given'}.", "Mend the engine and run again.")
    if done.reasoning:
        return cut_at_stop(done.text, request.stop)
    reply = split_reasoning(done.text, opened=opens_reasoning(request.prompt))
    return cut_at_stop(reply.answer, request.stop)
