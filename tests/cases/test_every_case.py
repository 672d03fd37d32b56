"""Every public report has a test that names it."""

import re
from pathlib import Path

CASES = {1, 2, 4, 5, 7, 8, 9, 10, 12, 13, 14, 15, 16, 17, 19, 20, 21, 23, 24, 25, 28, 29, 30, 32, 33}


def test_every_case_has_a_test_of_its_number() -> None:
    text = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    assert {int(number) for number in re.findall(r"^def test_case_(\d+)_", text, re.MULTILINE)} == CASES
