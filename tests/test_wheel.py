"""An installed wheel brings tasks, profiles, policies and the canary's weights with it."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the built wheel's files, away from the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(folder),
        str(ROOT),
    ]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def run(site: Path, *arguments: str) -> str:
    """What `evalharness ARGUMENTS` prints from the unpacked wheel."""
    command = [
        sys.executable,
        "-c",
        f"import sys; sys.path.insert(0, {str(site)!r}); from evalharness.cli import main; main()",
    ]
    return subprocess.run([*command, *arguments], cwd=site.parent, capture_output=True, text=True, check=True).stdout


def test_tasks_profiles_and_weights_are_in_the_wheel(installed: Path) -> None:
    assert "aime25_canary" in run(installed, "list", "tasks")
    assert "canary-v3" in run(installed, "list", "profiles")
    assert "weights in the package" in run(installed, "doctor")


def test_a_run_works_from_the_wheel(installed: Path) -> None:
    shown = run(installed, "run", "canary-v3", "--dry-run")
    assert "gsm8k_canary" in shown
