"""A folder is there whole or not at all, whoever dies or comes second."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tui.engine.folder import build_folder, remove_leftovers

STARTED = """
import sys, time
from pathlib import Path
from tui.engine.folder import build_folder

def fill(folder):
    (folder / "half").write_text("half")
    with open(sys.argv[2], "a") as calls:
        calls.write("built ")
    print("begun", flush=True)
    sys.stdin.read()
    (folder / "done").write_text("done")

build_folder(Path(sys.argv[1]), fill, lambda: print("waiting", flush=True))
print("ended", flush=True)
"""


def start(target: Path, calls: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", STARTED, str(target), str(calls)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def fail_to_wait() -> None:
    pytest.fail("nobody else is building")


def test_it_appears_when_it_is_whole(tmp_path):
    target = tmp_path / "deep" / "model"

    def fill(folder: Path) -> None:
        assert not target.exists()
        (folder / "file").write_text("x")

    build_folder(target, fill, fail_to_wait)
    assert (target / "file").read_text() == "x"
    build_folder(target, lambda folder: pytest.fail("it is there"), fail_to_wait)


def test_a_failure_leaves_nothing(tmp_path):
    def fill(folder: Path) -> None:
        (folder / "file").write_text("x")
        raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="middle"):
        build_folder(tmp_path / "model", fill, fail_to_wait)
    assert [entry.name for entry in tmp_path.iterdir()] == [".lock"]


def test_what_a_killed_process_left_is_not_taken_for_done(tmp_path):
    target = tmp_path / "models" / "model"
    killed = start(target, tmp_path / "calls")
    assert killed.stdout is not None and killed.stdout.readline() == "begun\n"
    remove_leftovers(target.parent)
    assert list(target.parent.glob("*.part/half")), "the work of a living process is left alone"
    killed.kill()
    assert killed.wait() == -signal.SIGKILL
    assert not target.exists() and list(target.parent.glob("*.part/half"))

    remove_leftovers(target.parent)
    assert not list(target.parent.glob("*.part"))
    build_folder(target, lambda folder: (folder / "file").touch(), fail_to_wait)
    assert [path.name for path in target.iterdir()] == ["file"]


def test_of_two_at_once_one_builds_and_the_other_waits(tmp_path):
    target, calls = tmp_path / "models" / "model", tmp_path / "calls"
    first = start(target, calls)
    assert first.stdout is not None and first.stdout.readline() == "begun\n"
    second = start(target, calls)
    assert second.stdout is not None and second.stdout.readline() == "waiting\n"
    first.communicate()
    heard, _ = second.communicate()
    assert heard.endswith("ended\n") and first.returncode == second.returncode == 0
    assert calls.read_text() == "built "
    assert (target / "done").exists()


def test_the_second_may_give_up(tmp_path):
    first = start(tmp_path / "models" / "model", tmp_path / "calls")
    assert first.stdout is not None and first.stdout.readline() == "begun\n"

    def waiting() -> None:
        raise TimeoutError("enough")

    with pytest.raises(TimeoutError):
        build_folder(tmp_path / "models" / "model", lambda folder: None, waiting)
    first.communicate()
    assert first.returncode == 0
