"""Specs: profiles load, mistakes are answered with the nearest right word."""

from pathlib import Path

import pytest

from evalharness.errors import SpecError, UnknownName
from evalharness.spec import ArmSpec, load_spec, profiles


@pytest.mark.parametrize("name", sorted(profiles()))
def test_every_shipped_profile_loads_under_its_own_name(name: str) -> None:
    assert load_spec(name).name == name
    assert profiles()[name]


def test_settings_reach_nested_and_named_items() -> None:
    spec = load_spec("canary-v3", ["tasks.gsm8k_canary.limit=5", "seed=7", "arms.eager.name=eager#2"])
    assert (spec.tasks[0].limit, spec.seed, spec.arms[0].name) == (5, 7, "eager#2")


@pytest.mark.parametrize(
    ("setting", "hint"),
    [
        ("engne.model=x", "Did you mean: engine?"),
        ("engine.capture_size=[1]", "Did you mean: capture_sizes?"),
        ("tasks.gsm8k_canry.limit=3", "Did you mean: gsm8k_canary?"),
        ("engine.model", "key=value"),
        ("name.deep=1", "has no parts"),
        ("seed=-1", "greater than or equal"),
        ("arms=[eager, eager]", "eager#2"),
        ("name=../up", "pattern"),
        ("engine.kind=emulatd", "Did you mean: emulated?"),
        ("engine.kind=quantum", "Choose from: emulated, vllm, endpoint."),
        ("arms=eager", "a list"),
    ],
)
def test_a_mistaken_setting_names_the_remedy(setting: str, hint: str) -> None:
    with pytest.raises((SpecError, UnknownName)) as caught:
        load_spec("canary-v3", [setting])
    assert hint in str(caught.value)


def test_an_unknown_profile_or_arm_offers_the_nearest() -> None:
    with pytest.raises(UnknownName, match="canary-v3"):
        load_spec("canry-v3")
    with pytest.raises(UnknownName, match="Did you mean: patched"):
        ArmSpec.parse("pached")


def test_a_spec_file_is_read_safely(tmp_path: Path) -> None:
    bad = tmp_path / "spec.yaml"
    bad.write_text("name: !!python/object/apply:os.system ['true']\n")
    with pytest.raises(SpecError, match="not valid YAML"):
        load_spec(str(bad))
    with pytest.raises(SpecError, match="Cannot read spec"):
        load_spec(str(tmp_path / "absent.yaml"))


def test_a_misspelt_key_is_named_before_the_one_it_leaves_missing(tmp_path: Path) -> None:
    typo = tmp_path / "spec.yaml"
    typo.write_text("name: x\nengin: {kind: emulated, model: canary-v3}\narms: [eager]\ntasks: [gsm8k_canary]\n")
    with pytest.raises(SpecError, match=r"Unknown key 'engin' .* Did you mean: engine"):
        load_spec(str(typo))


def test_a_key_given_twice_is_refused_not_chosen_from(tmp_path: Path) -> None:
    twice = tmp_path / "spec.yaml"
    twice.write_text("name: x\nengine: {kind: emulated}\nname: y\narms: [eager]\ntasks: [gsm8k_canary]\n")
    with pytest.raises(SpecError, match=r"key 'name' is given twice .*line 3"):
        load_spec(str(twice))


def test_an_arm_may_carry_a_server_and_a_repeat_number() -> None:
    arm = ArmSpec.parse("stock#2=http://127.0.0.1:8000")
    assert (arm.name, arm.capture, arm.url) == ("stock#2", "stock", "http://127.0.0.1:8000")


def test_only_confines_the_stock_path_of_vllm() -> None:
    with pytest.raises(SpecError, match="belongs to the stock path of the vllm engine"):
        load_spec("canary-v3", ["arms=[{name: 'stock#plan', capture: stock, only: tile_scheduler_metadata}]"])
    arms = ["arms=[eager, {name: 'stock#plan', capture: stock, only: tile_scheduler_metadata}]"]
    assert load_spec("canary-v3-gpu", arms).arms[1].path == "stock:tile_scheduler_metadata"


def test_a_recorded_spec_does_not_name_the_home_folder() -> None:
    home = Path.home()
    spec = load_spec("canary-v3", [f"data_dir={home / 'data'}", f"engine.model={home / 'models/m'}"])
    assert (str(spec.data_dir), spec.engine.model) == ("~/data", "~/models/m")
    assert str(load_spec("canary-v3", ["data_dir=../data"]).data_dir) == "../data"
