"""Shards join exactly: whatever is lost on the way, the union of the replicas' answers is the unbroken run's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalharness.assess import assess
from evalharness.engines import base
from evalharness.engines.base import Completion, Request
from evalharness.errors import EngineError, EvidenceError
from evalharness.records import ArmEvidence, Outcome
from evalharness.runner import local
from evalharness.runner import replica as replicas
from evalharness.runner.executors.fleet import ATTEMPTS, Fleet
from evalharness.runner.executors.shards import split
from evalharness.runner.executors.worker import Report
from evalharness.spec import ArmSpec, RunSpec, load_spec
from evalharness.store import RunFolder
from tests.runner import memory_cluster
from tests.runner.memory_cluster import Echo, MemoryCluster, answer
from tests.runner.scripted import Scripted
from tests.synthetic import proof

SPEC = load_spec("canary-v3")
PATCHED = ArmSpec.parse("patched")


@pytest.fixture(autouse=True)
def engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(base.ENGINES, "emulated", ("tests.runner.memory_cluster", "says what it is asked"))


def requests(number: int) -> list[Request]:
    return [Request(f"task/{n}/0", f"question {n}", 8, seed=n * 7) for n in range(number)]


def fleet(size: int, deaths: Mapping[str, int] | None = None) -> tuple[Fleet, MemoryCluster]:
    cluster = MemoryCluster(SPEC, deaths)
    made = Fleet(cluster, size)
    made.open(SPEC)
    return made, cluster


def answers_of(made: Fleet, asked: list[Request], heard: list[str] | None = None) -> list[Completion]:
    """What `made` answers; `heard` gets the ids as they come, whatever becomes of the rest."""
    made.use(PATCHED)
    found = []
    for completion in made.generate(asked):
        found.append(completion)
        if heard is not None:
            heard.append(completion.request_id)
    return found


@given(number=st.integers(0, 200), parts=st.integers(1, 40))
def test_a_split_deals_out_every_question_once_and_evenly(number: int, parts: int) -> None:
    asked = requests(number)
    shards = [list(shard.missing.values()) for shard in split(asked, parts)]
    assert sorted(r.id for shard in shards for r in shard) == sorted(r.id for r in asked)
    assert all(shards)
    assert len(shards) == min(number, parts)
    assert not shards or max(map(len, shards)) - min(map(len, shards)) <= 1


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_the_union_of_the_shards_is_the_unbroken_run(data: st.DataObject) -> None:
    asked, size = requests(data.draw(st.integers(0, 60))), data.draw(st.integers(1, 8))
    names = st.sampled_from([f"replica {n}" for n in range(1, size + 1)])
    # The first line is Started, the second Ended: a replica that dies later than that has loaded its model.
    deaths = data.draw(st.dictionaries(names, st.integers(2, 30), max_size=min(size, ATTEMPTS - 1)))
    made, _ = fleet(size, deaths)
    found = sorted(answers_of(made, asked), key=lambda c: c.request_id)
    assert found == sorted(map(answer, asked), key=lambda c: c.request_id)


def test_a_lost_replica_s_missing_questions_alone_are_asked_again() -> None:
    made, cluster = fleet(2, {"replica 2": 9})
    assert len(answers_of(made, requests(40))) == 40
    given_out = [len(order.requests) for orders in cluster.orders.values() for order in orders if order.requests]
    assert sorted(given_out) == [16, 20, 20]  # replica 2 told four answers of its twenty
    assert made.evidence().full_replays == 36
    assert "replica 2" in made.evidence().notes[-1]
    assert made.evidence().notes[-1].endswith("was lost; the steps behind its last answers are not counted")


def test_the_evidence_is_the_sum_and_says_who_did_what() -> None:
    made, _ = fleet(3)
    answers_of(made, requests(10))
    evidence = made.evidence()
    assert evidence.full_replays == 10
    assert [note.partition(" on ")[0] for note in evidence.notes[-3:]] == ["replica 1", "replica 2", "replica 3"]
    assert [note.rpartition(": ")[2] for note in evidence.notes[-3:]] == [
        f"{steps} full replays, 0 eager steps" for steps in (4, 3, 3)
    ]
    assert {"evalharness", "model", "environment"} <= evidence.observed.keys()
    assert evidence.mismatches == ()


def test_a_replica_without_the_driver_s_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    monkeypatch.setenv("VLLM_API_KEY", "never-in-a-record")
    cluster = MemoryCluster(SPEC)
    monkeypatch.delenv("VLLM_BATCH_INVARIANT")
    made = Fleet(cluster, 1)
    made.open(SPEC)
    with pytest.raises(EvidenceError, match="VLLM_BATCH_INVARIANT=1") as caught:
        made.use(PATCHED)
    assert "never-in-a-record" not in str(caught.value)


def test_replicas_that_do_not_run_alike_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    made = iter(["FLASHMLA", "TRITON_MLA"])

    class Odd(Echo):
        def __init__(self) -> None:
            super().__init__()
            self.backend = next(made)

        def evidence(self) -> ArmEvidence:
            told = super().evidence()
            return replace(told, observed={**told.observed, "attention_backend": self.backend})

    monkeypatch.setattr(memory_cluster, "create", Odd)
    odd, _ = fleet(2)
    with pytest.raises(
        EvidenceError, match=r"attention_backend is FLASHMLA on replica 1 .* and TRITON_MLA on replica 2"
    ):
        answers_of(odd, requests(4))


def test_a_question_that_breaks_every_replica_is_given_up_and_the_others_are_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Fragile(Echo):
        def generate(self, requests: Iterable[Request]) -> Iterator[Completion]:
            for completion in super().generate(requests):
                if completion.request_id == "task/5/0":
                    raise EngineError("The GPU fell off the bus.", "")
                yield completion

    monkeypatch.setattr(memory_cluster, "create", Fragile)
    made, cluster = fleet(4)
    answered: list[str] = []
    with pytest.raises(EngineError, match=r"broke 3 replicas .*fell off the bus.* resume the run"):
        answers_of(made, requests(40), answered)
    assert len(answered) == len(set(answered)) == 40 - 9
    assert len(cluster.orders) == 4 + ATTEMPTS


def test_a_replica_that_cannot_load_is_done_without_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = iter([True, False, True])

    class Sometimes(Echo):
        def open(self, spec: object) -> None:  # noqa: ARG002
            if not next(sound):
                raise EngineError("There is no model folder 'x'.", "Copy it there.")

    monkeypatch.setattr(memory_cluster, "create", Sometimes)
    made, _ = fleet(3)
    assert len(answers_of(made, requests(9))) == 9
    (note,) = (note for note in made.evidence().notes if "was lost" in note)
    assert note.startswith("replica 2 on ")
    assert note.endswith("was lost; There is no model folder 'x'. Copy it there.")


def test_a_fleet_that_loses_every_replica_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Echo):
        def open(self, spec: object) -> None:  # noqa: ARG002
            raise EngineError("There is no model folder 'x'.", "Copy it there.")

    monkeypatch.setattr(memory_cluster, "create", Broken)
    with pytest.raises(EngineError, match=r"No replica is left\. replica 2 .*no model folder 'x'\. Copy it there"):
        fleet(2)


def test_a_closed_generator_recalls_the_replicas_and_the_next_arm_runs() -> None:
    made, _ = fleet(2)
    made.use(PATCHED)
    answers = made.generate(requests(1000))
    for _ in range(5):
        next(answers)
    answers.close()
    assert made.evidence().full_replays < 50
    assert made.use(ArmSpec.parse("eager")).arm == "eager"
    assert len(list(made.generate(requests(7)))) == 7


def test_no_room_for_a_replica_is_said_within_the_cluster_s_patience() -> None:
    class Full(MemoryCluster):
        def reports(self, _: float) -> Iterator[tuple[str, Report]]:
            return iter(())

    with pytest.raises(EngineError, match="room for no replica"):
        Fleet(Full(SPEC, patience_s=0.05), 2).open(SPEC)


class InBatches(MemoryCluster):
    """Hands over all that its replicas told at once, as files do that are read now and then."""

    def reports(self, timeout_s: float) -> Iterator[tuple[str, Report]]:
        batch = list(super().reports(timeout_s))
        while more := list(super().reports(timeout_s)):
            batch += more
        return iter(batch)


def test_a_refused_arm_leaves_the_replicas_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refuses(Echo):
        def use(self, arm: ArmSpec) -> ArmEvidence:
            if arm.name == "stock":
                raise EvidenceError("Arm stock fell back.", "")
            return super().use(arm)

    monkeypatch.setattr(memory_cluster, "create", Refuses)
    cluster = InBatches(SPEC)
    made = Fleet(cluster, 2)
    made.open(SPEC)
    with pytest.raises(EvidenceError, match="fell back"):
        made.use(ArmSpec.parse("stock"))
    assert len(answers_of(made, requests(9))) == 9
    assert len(cluster.orders) == 2


@pytest.mark.parametrize("size", [1, 2])
def test_a_lost_replica_that_nothing_replaces_costs_only_what_it_had_not_told(size: int) -> None:
    class Closed(InBatches):
        def hire(self, name: str) -> None:
            if len(self.orders) == size:
                raise EngineError("The queue is closed.", "")
            super().hire(name)

    made = Fleet(Closed(SPEC, {"replica 1": 9}), size)
    made.open(SPEC)
    heard: list[str] = []
    with pytest.raises(EngineError, match="No replica is left") if size == 1 else nullcontext():
        answers_of(made, requests(20), heard)
    assert len(heard) == (4 if size == 1 else 20)
    if size > 1:
        assert "nothing took its place; The queue is closed." in made.evidence().notes


class InMemory:
    """An executor of `size` replicas in this process."""

    def __init__(self, size: int) -> None:
        self.size = size

    def begin(self, spec: RunSpec) -> None:
        pass

    def engine(self, spec: RunSpec, _: RunFolder) -> Fleet:
        return Fleet(MemoryCluster(spec), self.size)

    def about(self) -> dict[str, str | int]:
        return {"executor": "memory", "replicas": self.size}

    def close(self) -> None:
        pass


def test_decided_arms_end_early_on_every_replica(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made: list[Scripted] = []

    def create(_: str) -> Scripted:
        made.append(Scripted())
        return made[-1]

    monkeypatch.setattr(replicas, "create_engine", create)
    tasks = "tasks=[{name: gsm8k_canary, limit: 200}]"
    spec = load_spec("canary-v3", [tasks, "stop_early=true", "policy=quick"])
    folder = local.start(spec, tmp_path, None, InMemory(3))
    given = {arm: len(folder.read_samples("gsm8k_canary", arm)) for arm in ("eager", "stock", "patched")}
    assert given["stock"] < 30 < given["patched"] < given["eager"] == 200
    assert {"stock", "patched"} <= {arm for engine in made for arm in engine.given_up}
    assert assess(folder).verdict.outcome is Outcome.PASS


def test_what_an_earlier_sitting_left_is_taken_over_and_not_asked_again() -> None:
    made, cluster = fleet(2)
    left = requests(10)[:4]
    told = proof("patched", full_replays=4)
    told = replace(told, observed={**told.observed, **cluster.brief.observed()})
    cluster.left = {"replica 1 of sitting 1": (told, [answer(request) for request in left])}
    assert len(answers_of(made, requests(10))) == 10
    asked = {request.id for orders in cluster.orders.values() for order in orders for request in order.requests}
    assert asked == {request.id for request in requests(10)[4:]}
    assert any(note.startswith("replica 1 of sitting 1: 4 full replays") for note in made.evidence().notes)
