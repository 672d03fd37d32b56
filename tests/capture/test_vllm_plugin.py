"""The capture paths against the real capture loop of vLLM releases, read out of their wheels."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from evalharness.capture import vllm_plugin
from evalharness.capture.session import Setting
from evalharness.engines import vllm_preflight
from tests.capture import vllm_sources

NEEDED = ("vllm/v1/worker/gpu/cudagraph_utils.py", "vllm/config/compilation.py")
BEFORE_THE_FIX = {"0.20.2", "0.21.0"}
RELEASES = ("0.20.2", "0.21.0", "0.22.1", "0.26.0", "newest")
DUMMY = {"window": 111, "dense": 111}


@cache
def scenario(release: str) -> dict[str, Any]:
    try:
        version = vllm_sources.newest(vllm_preflight.RELEASES[-1]) if release == "newest" else release
        folder = vllm_sources.sources(version, NEEDED)
    except vllm_sources.Unavailable as error:
        pytest.skip(f"vLLM {release}: {error}")
    script = Path(__file__).with_name("vllm_scenario.py")
    done = subprocess.run([sys.executable, script, folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def lengths(first: int, **stale: int) -> list[dict[str, int]]:
    """What replaying each descriptor in turn must have planned with."""
    return [{"window": first + i, "dense": first + i, **stale} for i in range(2)]


@pytest.mark.parametrize("release", RELEASES)
def test_stock_shares_one_state_and_replays_the_dummy_plan(release: str) -> None:
    found = scenario(release)["stock"]
    assert found["shared_object"]
    assert found["builds"] == 2
    assert found["replays"] == [DUMMY, DUMMY]
    for row in found["rows"]:
        assert (row["shared"], row["plan_recorded"], row["factory_calls"]) == (True, False, 1)
        assert "SchedMeta.tile_scheduler_metadata at layer0.dense" in row["changed"]


@pytest.mark.parametrize("release", RELEASES)
def test_patched_plans_inside_the_graph(release: str) -> None:
    found = scenario(release)["patched"]
    assert not found["shared_object"]
    assert found["calls"] == [False, True, False, True]  # one warm-up and one captured call per descriptor
    assert found["replays"] == lengths(777)
    for row in found["rows"]:
        assert (row["shared"], row["plan_recorded"], row["factory_calls"]) == (False, True, 2)


@pytest.mark.parametrize("release", RELEASES)
def test_native_is_the_path_the_release_has(release: str) -> None:
    found = scenario(release)
    own = found["stock" if release in BEFORE_THE_FIX else "patched"]
    assert {k: v for k, v in found["native"].items() if k != "replay_count"} == {
        k: v for k, v in own.items() if k != "replay_count"
    }


@pytest.mark.parametrize("release", RELEASES)
def test_stock_confined_to_one_attribute_leaves_the_others_fresh(release: str) -> None:
    found = scenario(release)
    assert found["stock:dense"]["replays"] == lengths(777, dense=111)
    assert found["stock:window"]["replays"] == lengths(777, window=111)
    assert all(row["shared"] for row in found["stock:dense"]["rows"])


@pytest.mark.parametrize("release", RELEASES)
def test_the_returned_state_is_the_captured_one(release: str) -> None:
    for setting in ("native", "stock", "patched"):
        assert scenario(release)[setting]["returned_is_captured"] in {None, True}


@pytest.mark.parametrize("release", RELEASES)
def test_graph_sets_can_be_swapped(release: str) -> None:
    assert scenario(release)["recaptured"] == [False, True, False, True]


@pytest.mark.parametrize("release", RELEASES)
def test_piecewise_graphs_are_left_alone(release: str) -> None:
    native, *steered = scenario(release)["piecewise"]
    assert all(found == native for found in steered)
    assert native[2] == 0  # no descriptor was steered


@pytest.mark.parametrize("release", RELEASES)
def test_replays_are_counted(release: str) -> None:
    assert scenario(release)["native"]["replay_count"] == 2


def test_without_its_variable_the_plugin_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(vllm_plugin.VARIABLE, raising=False)
    finders = list(sys.meta_path)
    vllm_plugin.register()
    assert sys.meta_path == finders
    assert vllm_plugin.CONTROL.setting is None


@pytest.mark.parametrize("text", ["pached", "eager", "patched:dense", ""])
def test_a_mistaken_setting_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="use one of"):
        Setting.parse(text)
