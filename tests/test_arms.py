"""What arm names say, and which arms a verdict is about."""

from pathlib import Path

import pytest

from evalharness import arms
from evalharness.errors import SpecError
from evalharness.runner.choose import Choice, resolve
from evalharness.spec import ArmSpec, load_spec

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    ("name", "base", "pace", "further"),
    [
        ("patched", "patched", None, False),
        ("patched@8", "patched", 8, False),
        ("eager#2", "eager", None, True),
        ("patched@8#2", "patched", 8, True),
    ],
)
def test_a_name_tells_capture_path_pace_and_run(name: str, base: str, pace: int | None, further: bool) -> None:
    assert (arms.base_name(name), arms.at_a_time(name), arms.is_further_run(name)) == (base, pace, further)
    assert ArmSpec.parse(name).capture == base


@pytest.mark.parametrize("name", ["patched@", "patched@0", "patched@x", "patched@8@1", "patched#2@8", "@8"])
def test_a_name_that_says_nothing_sensible_is_refused(name: str) -> None:
    with pytest.raises(SpecError):
        load_spec("canary-v3", [f"arms=[{{name: '{name}', capture: patched}}]"])


def test_the_unlimited_arm_decides_where_it_ran() -> None:
    assert arms.deciding(["eager", "eager#2", "patched@1", "patched"]) == ["eager", "patched"]
    assert arms.deciding(["eager", "patched@1", "patched@32"]) == ["eager", "patched@1", "patched@32"]


def test_every_pace_is_held_against_the_slowest() -> None:
    names = ["eager", "patched@8", "patched", "patched@1", "patched@1#2"]
    assert arms.concurrencies(names) == [("patched@8", "patched@1"), ("patched", "patched@1")]


def test_concurrency_adds_every_pace_of_every_plain_arm() -> None:
    spec = resolve(Choice(arms="eager,patched@4,eager#2", concurrency="1, 8"), "canary-v3")
    assert [arm.name for arm in spec.arms] == ["eager", "eager@1", "eager@8", "patched@4", "eager#2"]


def test_an_arm_chosen_by_name_is_the_profile_s_own() -> None:
    kinds = str(ROOT / "scripts/gpu/canary-v4-kinds.yaml")
    spec = resolve(Choice(arms="eager,stock#c4a"), kinds)
    assert [arm.path for arm in spec.arms] == ["eager", "stock:tile_sched_c4a"]


@pytest.mark.parametrize("numbers", ["0", "x", "1;8", "-1", "1.5", "²"])
def test_a_concurrency_that_is_no_number_is_refused(numbers: str) -> None:
    with pytest.raises(SpecError, match="list of numbers"):
        resolve(Choice(concurrency=numbers), "canary-v3")


def test_more_at_a_time_than_the_engine_serves_is_refused() -> None:
    with pytest.raises(SpecError, match="patched@64 wants more at a time than the 32"):
        resolve(Choice(arms="eager,patched@64"), "canary-v3")
