"""`methods` as a process."""

import json

from kvcore.methods import METHODS
from tui.exits import DONE, USAGE


def test_methods_are_listed_with_what_they_cost(run) -> None:
    done = run("methods")
    assert (done.returncode, done.stderr) == (DONE, "")
    assert all(f"\n{name} " in done.stdout for name in METHODS)


def test_methods_as_json(run) -> None:
    found = json.loads(run("methods", "--json").stdout)
    assert [method["name"] for method in found] == list(METHODS)
    assert all(method["by_bits"] for method in found)


def test_an_unknown_flag_is_told_in_a_sentence(run) -> None:
    done = run("methods", "--mesure")
    assert done.returncode == USAGE
    assert "did you mean --measure?" in done.stderr
