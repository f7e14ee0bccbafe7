"""Copying says what was done, and always leaves a file."""

import base64
from pathlib import Path

import pytest

from tui import clipboard


@pytest.fixture(autouse=True)
def a_linux_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clipboard.sys, "platform", "linux")
    monkeypatch.delenv("TMUX", raising=False)


def test_sends_to_the_terminal_and_to_a_file(tmp_path: Path) -> None:
    sent: list[str] = []
    file = tmp_path / "state" / "copied.txt"
    said = clipboard.copy("grüße\nzwei", file, sent.append)
    assert file.read_text(encoding="utf-8") == "grüße\nzwei"
    assert base64.b64decode(sent[0].split(";")[2].rstrip("\x07")).decode() == "grüße\nzwei"
    assert "2 lines" in said
    assert str(file) in said


def test_tmux_gets_both_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMUX", "/tmp/tmux-0/default,1,0")
    sequence = clipboard.osc52("x")
    assert sequence is not None
    assert sequence.startswith("\x1b]52;c;eA==\x07\x1bPtmux;\x1b\x1b]52;c;eA==\x07")
    assert sequence.endswith("\x1b\\")


def test_what_is_too_long_goes_to_the_file_alone(tmp_path: Path) -> None:
    sent: list[str] = []
    said = clipboard.copy("x" * 100_000, tmp_path / "copied.txt", sent.append)
    assert sent == []
    assert "Too long" in said
    assert (tmp_path / "copied.txt").stat().st_size == 100_000


def test_a_mac_without_pbcopy_still_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clipboard.sys, "platform", "darwin")
    monkeypatch.setattr(clipboard, "over_ssh", lambda: False)
    monkeypatch.setenv("PATH", str(tmp_path))
    sent: list[str] = []
    clipboard.copy("x", tmp_path / "copied.txt", sent.append)
    assert len(sent) == 1
