"""`methods` as a process."""

import json
import os
import subprocess
import sys
from pathlib import Path

from kvcore.methods import METHODS
from tui.exits import DONE, USAGE

ROOT = Path(__file__).parents[2]


def test_methods_are_listed_with_what_they_cost(run) -> None:
    done = run("methods")
    assert (done.returncode, done.stderr) == (DONE, "")
    assert all(f"\n{name} " in done.stdout for name in METHODS)


def test_methods_as_json(run) -> None:
    found = json.loads(run("methods", "--json").stdout)
    assert [method["name"] for method in found] == list(METHODS)
    assert all(method["by_bits"] for method in found)


def test_a_reader_that_leaves_is_no_failure_to_speak_of() -> None:
    receiver, sender = os.pipe()
    os.close(receiver)
    command = [sys.executable, "-m", "kvcore.bench.methods"]
    done = subprocess.run(command, stdout=sender, stderr=subprocess.PIPE, cwd=ROOT, check=False)
    os.close(sender)
    assert (done.returncode, done.stderr) == (1, b"")


def test_an_unknown_flag_is_told_in_a_sentence(run) -> None:
    done = run("methods", "--mesure")
    assert done.returncode == USAGE
    assert "did you mean --measure?" in done.stderr
