"""The capture path strategies."""

import pytest

from evalharness.capture.paths import CAPTURE_PATHS, capture_path, observed_path
from evalharness.spec import CAPTURES


def test_stock_records_what_the_warm_up_ran_on() -> None:
    warmed = object()
    assert CAPTURE_PATHS["stock"].for_capture(warmed, object) is warmed


def test_patched_records_a_fresh_build() -> None:
    warmed = object()
    built: list[object] = []

    def build() -> object:
        built.append(object())
        return built[-1]

    assert CAPTURE_PATHS["patched"].for_capture(warmed, build) is built[0]
    assert len(built) == 1


@pytest.mark.parametrize(("engine_shares", "name"), [(True, "stock"), (False, "patched")])
def test_native_is_whatever_the_engine_does(engine_shares: bool, name: str) -> None:
    assert CAPTURE_PATHS["native"].resolved(engine_shares) is CAPTURE_PATHS[name]
    assert CAPTURE_PATHS["stock"].resolved(engine_shares) is CAPTURE_PATHS["stock"]


def test_native_decides_nothing_by_itself() -> None:
    with pytest.raises(ValueError, match="native"):
        CAPTURE_PATHS["native"].for_capture(object(), object)


def test_every_arm_of_the_spec_has_a_path_except_eager() -> None:
    assert {capture for capture in CAPTURES if capture_path(capture) is None} == {"eager"}


@pytest.mark.parametrize(
    ("shared", "name"),
    [([], "none"), ([True, True], "stock"), ([False, False], "patched"), ([True, False], "mixed"), ([None], "mixed")],
)
def test_the_observed_path_follows_from_the_descriptors(shared: list[bool | None], name: str) -> None:
    assert observed_path(shared) == name
