"""Gate policies: those that ship load, mistakes are named."""

from pathlib import Path

import pytest

from evalharness.errors import SpecError, UnknownName
from evalharness.policy import load_policy, policies


@pytest.mark.parametrize("name", policies())
def test_every_shipped_policy_loads_under_its_own_name(name: str) -> None:
    assert load_policy(name).name == name


def test_an_unknown_policy_offers_the_nearest() -> None:
    with pytest.raises(UnknownName, match="Did you mean: default"):
        load_policy("defualt")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name: x\nmargn: 1\ndefault: {margin: 0.1, documents: 9}", "margn"),
        ("name: x\ndefault: {margin: 2, documents: 9}", "less than 1"),
        ("name: x\ndefault: {margin: 0.3, documents: 9}", "widest_margin is smaller"),
        ("name: x\nlength_band: [1.1, 1.2]\ndefault: {margin: 0.1, documents: 9}", "must hold 1"),
        ("name: x\nrequired_evidence: [luck]\ndefault: {margin: 0.1, documents: 9}", "required_evidence"),
        ("a: [", r"not valid YAML: .* line 1, column 5"),
        ("name: x\nname: y\ndefault: {margin: 0.1, documents: 9}", "key 'name' is given twice"),
        ("- 1", "valid dictionary"),
    ],
)
def test_a_mistake_in_a_policy_file_is_named(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(text)
    with pytest.raises(SpecError, match=words):
        load_policy(str(file))


def test_a_policy_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="Cannot read policy"):
        load_policy(str(tmp_path / "none.yaml"))
