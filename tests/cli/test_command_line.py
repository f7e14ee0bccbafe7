"""The program as a process: what it answers to, and how it fails."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tui import cli, paths, sessions
from tui.cli import COMMANDS
from tui.exits import DONE, FAILED, MODEL, USAGE
from tui.messages import Turn


@pytest.mark.parametrize("argv", [["--help"], *([name, "--help"] for name in COMMANDS)])
def test_every_command_has_help(argv, run) -> None:
    done = run(*argv)
    assert (done.returncode, done.stderr) == (DONE, "")
    assert done.stdout.startswith("usage: veloxquant-tui")


def test_help_names_every_command_and_setting(run) -> None:
    out = run("--help").stdout
    assert all(f"\n  {name} " in out for name in COMMANDS)
    for flag in ("--temp", "--kv-limit", "--session", "--continue", "--attach", "--log"):
        assert flag in out


def test_version(run) -> None:
    assert run("--version").stdout == "veloxquant-tui 0.1.0\n"


@pytest.mark.parametrize("argv", [["--help"], ["--version"], ["ask", "--help"], ["paths"]])
def test_help_loads_neither_the_screen_nor_the_model(argv: list[str]) -> None:
    code = (
        "import atexit, sys\n"
        "heavy = {'textual', 'mlx', 'mlx.core', 'mlx_lm', 'numpy', 'numba', 'transformers'}\n"
        "atexit.register(lambda: print(heavy & set(sys.modules), file=sys.stderr))\n"
        "from tui.cli import main\n"
        "main(sys.argv[1:])\n"
    )
    done = subprocess.run([sys.executable, "-c", code, *argv], capture_output=True, text=True)
    assert done.stderr == "set()\n"


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--no-such-flag"], "--no-such-flag"),
        (["--them", "day"], "did you mean --theme?"),
        (["ask", "--kvlimit", "1G", "hi"], "did you mean --kv-limit?"),
        (["docter"], "did you mean 'doctor'?"),
        (["--ascii", "ask"], "command comes first"),
        (["one", "two"], "'two' is one argument too many"),
        (["one", "--model", "two"], "given twice"),
        (["paths", "x"], "'x' is one argument too many"),
        (["ask", "--temp"], "expected one argument"),
        (["ask", "--temp", "hot", "hi"], "--temperature must be a number from 0 to 5"),
        (["ask", "--method", "turbokwant", "hi"], "did you mean 'turboquant_"),
        (["ask", "--key-bits", "17", "hi"], "1 to 8"),
        (["ask", "--kv-limit", "11 parsecs", "hi"], "as 900M"),
        (["ask", "--policy", "soft", "hi"], "careful"),
        (["ask", "--theme", "nigth", "hi"], "did you mean 'night'?"),
        (["ask", "--session", "../up", "hi"], "cannot be a session's name"),
        (["ask", "--session", "a", "--continue", "hi"], "not allowed with"),
        (["ask", "--config", "/no/such.toml", "hi"], "/no/such.toml"),
        (["monitor", "-i", "1"], "at least 100"),
        (["monitor", "-i", "soon"], "invalid int value"),
        (["themes", "--check", "/no/such.toml"], "/no/such.toml"),
        ([], "prompt is empty"),
        (["--attach", "--continue"], "not allowed with"),
    ],
)
def test_wrong_use_is_told_in_one_sentence(argv, words, capsys, monkeypatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert cli.main(argv) == USAGE
    printed = capsys.readouterr()
    assert printed.out == ""
    *_, sentence = printed.err.splitlines()
    assert sentence.startswith("veloxquant-tui: ") and words in sentence
    assert "Traceback" not in printed.err


@pytest.mark.parametrize("text", ["theme = [broken", "them = 1", "fps = 90"])
def test_a_broken_settings_file(text: str, run, tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(text)
    done = run("ask", "--config", str(file), "hi")
    assert done.returncode == USAGE
    assert str(file) in done.stderr and len(done.stderr.splitlines()) == 1


def test_a_model_that_is_not_there(run) -> None:
    done = run("ask", "--model", "./no/such/model", "hi")
    assert done.returncode == MODEL
    assert "./no/such/model" in done.stderr and "Traceback" not in done.stderr


def test_without_a_terminal_the_app_answers_as_ask(run) -> None:
    done = run("./no/such/model", stdin="hi")
    assert done.returncode == MODEL
    assert "No terminal" in done.stderr


def test_closed_streams(run) -> None:
    program = f"{sys.executable} -m tui.cli"
    for redirected, code in (
        ("ask <&-", USAGE),
        ("ask hi >&-", USAGE),
        ("paths 2>&-", DONE),
        ("ask <&- 2>&-", USAGE),
    ):
        done = subprocess.run(["sh", "-c", f"{program} {redirected}"], capture_output=True)
        assert done.returncode == code, redirected
        assert b"Traceback" not in done.stderr


def test_a_reader_that_leaves() -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as stdout:
        done = subprocess.run(
            [sys.executable, "-m", "tui.cli", "paths"], stdout=stdout, stderr=subprocess.PIPE
        )
    assert done.stderr == b""
    assert done.returncode == FAILED


def test_what_should_not_happen(capsys, monkeypatch, tmp_path: Path) -> None:
    def broken() -> None:
        raise KeyError("x")

    monkeypatch.setattr(paths, "settings", broken)
    assert cli.main(["paths"]) == FAILED
    sentence = capsys.readouterr().err
    assert "KeyError" in sentence and "--log" in sentence and "Traceback" not in sentence
    monkeypatch.setenv("VELOXQUANT_DEBUG", "1")
    assert cli.main(["paths"]) == FAILED
    assert "Traceback" in capsys.readouterr().err


def test_a_log_has_the_traceback(run, tmp_path: Path) -> None:
    log = tmp_path / "log"
    done = run("ask", "--log", str(log), "--key-bits", "17", "hi")
    assert done.returncode == USAGE and "Traceback" not in done.stderr
    assert "Traceback" in log.read_text()
    done = run("ask", "--log", str(tmp_path / "no" / "log"), "hi")
    assert done.returncode == FAILED and "no/log: No such file" in done.stderr


def test_paths_follow_the_environment(run, tmp_path: Path) -> None:
    lines = dict(line.split(maxsplit=1) for line in run("paths").stdout.splitlines())
    assert lines["sessions"] == str(paths.sessions())
    if sys.platform == "linux":
        assert lines["settings"].startswith(str(tmp_path / "config"))


def test_sessions_are_listed(run) -> None:
    assert "no chats" in run("sessions").stdout
    sessions.append(sessions.path_of("work"), (Turn("user", "Why?\nNow."),))
    sessions.path_of("broken").write_text("{}\n")
    out = run("sessions").stdout
    assert "work" in out and "1 turns  Why?\n" in out
    assert "broken in line 1" in out


def test_themes_are_listed_and_checked(run, tmp_path: Path) -> None:
    out = run("themes", TERM="xterm-256color", COLORTERM="").stdout
    assert "day " in out and "night       dark              fits this terminal\n" in out
    assert run("themes", "--check", "night").returncode == DONE
    pale = tmp_path / "pale.toml"
    text = (Path(cli.__file__).parents[1] / "themes" / "day.toml").read_text()
    pale.write_text(text.replace('foreground = "#24283b"', 'foreground = "#eeeeee"'))
    done = run("themes", "--check", str(pale))
    assert done.returncode == FAILED
    assert [line.split()[0] for line in done.stdout.splitlines() if line.endswith("low")] == [
        "foreground"
    ]


def test_a_dumb_terminal_is_read_and_answered() -> None:
    """On TERM=dumb the prompt is typed, and ends with ^d."""
    ours, theirs = pty.openpty()
    program = subprocess.Popen(
        [sys.executable, "-m", "tui.cli", "./no/such/model"],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"TERM": "dumb"},
    )
    os.close(theirs)
    os.write(ours, b"hi\n\x04")
    _, err = program.communicate(timeout=120)
    os.close(ours)
    assert program.returncode == MODEL
    assert b"^d" in err and b"./no/such/model" in err
