"""The checkers of style, types and imports, so that one command runs all that must hold."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LINT_IMPORTS = str(Path(sys.executable).with_name("lint-imports"))


@pytest.mark.parametrize(
    "command",
    [
        [sys.executable, "-m", "ruff", "check", "."],
        [sys.executable, "-m", "ruff", "format", "--check", "."],
        [sys.executable, "-m", "pyright", "--pythonpath", sys.executable],
        [LINT_IMPORTS],
    ],
    ids=["ruff check", "ruff format", "pyright", "lint-imports"],
)
def test_the_checkers_have_nothing_to_say(command: list[str]) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
