"""`bench` as a process, on a text that a model of random weights reads."""

import sys
from pathlib import Path

import pytest

from tui.exits import DONE, MODEL, USAGE


@pytest.fixture
def text(tmp_path: Path) -> str:
    path = tmp_path / "text.txt"
    path.write_text("nothing is given back until memory runs low. " * 20, encoding="utf-8")
    return str(path)


def test_quality_is_measured_by_the_command(run, text, tmp_path) -> None:
    sys.path.append(str(Path(__file__).parents[1] / "engine"))
    from tiny_model import write_tiny_model

    model = str(write_tiny_model(tmp_path / "tiny"))
    small = ["--windows", "1", "--tokens", "64", "--continuation", "2", "--needles", "0"]
    done = run("bench", "quality", "--model", model, "--text", text, "--caches", "fp16", *small)
    assert (done.returncode, done.stderr) == (DONE, "")
    assert done.stdout.splitlines()[-1].startswith("| fp16 | 1.000 |")
    assert "| 2.0 of 2 | – | – |" in done.stdout


def test_a_model_that_cannot_be_had_is_told_once(run, text) -> None:
    done = run("bench", "quality", "--model", "/no/such/model", "--text", text)
    assert (done.returncode, done.stdout) == (MODEL, "")
    assert done.stderr.count("bench:") == 1 and "Traceback" not in done.stderr


def test_a_cache_that_there_is_not_is_told_before_anything_is_measured(run, text) -> None:
    done = run("bench", "quality", "--text", text, "--caches", "6/4,kiwi:4/4")
    assert (done.returncode, done.stdout) == (USAGE, "")
    assert "did you mean 'kivi'" in done.stderr
