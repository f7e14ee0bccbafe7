"""Copying out of a terminal, where no single way reaches the clipboard of the person's machine."""

import base64
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tui.guard import over_ssh

# Terminals and tmux drop longer sequences, most of them without a word.
LONGEST_SEQUENCE = 74_000


def copy(text: str, file: Path, write: Callable[[str], None]) -> str:
    """Copies `text` and says how: always to `file`, and to a clipboard where one is reached.

    `write` sends raw text to the terminal. Raises OSError when not even the file can be written.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    if sys.platform == "darwin" and not over_ssh() and pbcopy(text):
        return f"Copied {counted(text)}."
    sequence = osc52(text)
    if sequence is None:
        return f"Too long for the terminal's clipboard; written to {file}."
    write(sequence)
    return f"Sent {counted(text)} to your terminal; if pasting gives nothing, see {file}."


def pbcopy(text: str) -> bool:
    try:
        done = subprocess.run(["pbcopy"], input=text.encode(), timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def osc52(text: str) -> str | None:
    """The terminal's own copy sequence, passed through tmux as well; None when it is too long."""
    payload = base64.b64encode(text.encode()).decode()
    if len(payload) > LONGEST_SEQUENCE:
        return None
    sequence = f"\x1b]52;c;{payload}\x07"
    if "TMUX" in os.environ:
        # tmux takes the plain form for its own buffer; the wrapped one reaches the outer terminal.
        sequence += "\x1bPtmux;" + sequence.replace("\x1b", "\x1b\x1b") + "\x1b\\"
    return sequence


def counted(text: str) -> str:
    lines = text.count("\n") + (not text.endswith("\n"))
    return "1 line" if lines == 1 else f"{lines:,} lines"
