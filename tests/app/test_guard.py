"""The guard, on a pseudo-terminal of its own."""

import contextlib
import json
import os
import pty
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from tui import guard


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """The two ends of a terminal: what the person's side reads, and what a program has."""
    outer, inner = pty.openpty()
    termios.tcsetwinsize(inner, (30, 90))
    yield outer, inner
    for descriptor in (outer, inner):
        with contextlib.suppress(OSError):
            os.close(descriptor)


def test_a_hangup_is_seen(terminal: tuple[int, int]) -> None:
    outer, inner = terminal
    assert not guard.hung_up(inner)
    os.close(outer)
    assert guard.hung_up(inner)


def note(folder: Path) -> Path:
    return next(folder.glob("terminal-*.json"))


def test_a_killed_run_is_cleaned_up_after(terminal: tuple[int, int], tmp_path: Path) -> None:
    outer, inner = terminal
    with guard.remembered_terminal(tmp_path, inner) as restored:
        assert not restored
        left = json.loads(note(tmp_path).read_text())
    assert not list(tmp_path.iterdir())
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    (tmp_path / f"terminal-{os.ttyname(inner).strip('/').replace('/', '-')}.json").write_text(
        json.dumps(left | {"pid": ended.pid})
    )
    raw = termios.tcgetattr(inner)
    raw[3] &= ~(termios.ECHO | termios.ICANON)
    termios.tcsetattr(inner, termios.TCSANOW, raw)
    with guard.remembered_terminal(tmp_path, inner) as restored:
        assert restored
        assert termios.tcgetattr(inner)[3] & termios.ECHO
        assert b"\x1b[?1049l" in os.read(outer, 4096)


def test_a_running_neighbour_is_left_alone(terminal: tuple[int, int], tmp_path: Path) -> None:
    _, inner = terminal
    with (
        guard.remembered_terminal(tmp_path, inner),
        guard.remembered_terminal(tmp_path, inner) as restored,
    ):
        assert not restored


def test_without_a_terminal_nothing_is_noted(tmp_path: Path) -> None:
    read, write = os.pipe()
    with guard.remembered_terminal(tmp_path, read) as restored:
        assert not restored
    assert not list(tmp_path.iterdir())
    os.close(read)
    os.close(write)


NOISE = """
import os, shutil, sys
from pathlib import Path
os.environ.pop("COLUMNS", None)
os.environ.pop("LINES", None)
from tui import guard
with guard.private_terminal(Path(sys.argv[1])):
    os.write(1, b"noise on 1\\n")
    os.write(2, b"noise on 2\\n")
    sys.__stderr__.write("drawn")
    sys.__stderr__.flush()
    size = shutil.get_terminal_size()
print("after", *size)
"""


def test_noise_goes_to_the_log_and_the_screen_to_the_terminal(
    terminal: tuple[int, int], tmp_path: Path
) -> None:
    outer, inner = terminal
    log = tmp_path / "log"
    subprocess.run(
        [sys.executable, "-c", NOISE, str(log)], stdin=inner, stdout=inner, stderr=inner, check=True
    )
    shown = os.read(outer, 4096)
    assert shown == b"drawnafter 90 30\r\n"
    assert log.read_bytes() == b"noise on 1\nnoise on 2\n"


def test_the_screen_is_drawn_though_errors_go_to_a_file(
    terminal: tuple[int, int], tmp_path: Path
) -> None:
    outer, inner = terminal
    with (tmp_path / "errors").open("w") as errors:
        subprocess.run(
            [sys.executable, "-c", NOISE, str(tmp_path / "log")],
            stdin=inner,
            stdout=inner,
            stderr=errors,
            check=True,
        )
    assert b"drawn" in os.read(outer, 4096)
    assert (tmp_path / "errors").read_text() == ""


@pytest.mark.parametrize(
    ("environment", "few"),
    [
        ({"TERM": "xterm-256color"}, False),
        ({"TERM": "xterm", "COLORTERM": "truecolor"}, False),
        ({"TERM": "xterm"}, True),
        ({"TERM": "xterm-256color", "NO_COLOR": "1"}, True),
    ],
)
def test_few_colours(
    environment: dict[str, str], few: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TERM", "COLORTERM", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert guard.few_colours() is few


@pytest.mark.parametrize(
    ("locale", "unicode"),
    [
        ("en_US.UTF-8", True),
        ("C.utf8", True),
        ("C", False),
        ("de_DE.ISO-8859-1", False),
        ("", True),
    ],
)
def test_the_locale_says_whether_unicode_shows(
    locale: str, unicode: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", locale)
    monkeypatch.delenv("LC_CTYPE", raising=False)
    monkeypatch.delenv("LANG", raising=False)
    assert guard.unicode_terminal() is unicode


def test_ssh_draws_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TEXTUAL_FPS", "TEXTUAL_ANIMATIONS", "TEXTUAL_THEME"):
        # Set first, so that what the guard sets is taken back after the test.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.1 1 10.0.0.2 22")
    guard.environment()
    assert os.environ["TEXTUAL_FPS"] == "10"
    assert os.environ["TEXTUAL_ANIMATIONS"] == "none"
