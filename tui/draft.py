"""What was typed and not sent, kept from one run to the next."""

import contextlib
from pathlib import Path

from tui import paths


def load() -> str:
    """Empty where nothing was kept."""
    try:
        return _file().read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""


def keep(text: str) -> None:
    """An empty text takes away what was kept. A disk that takes nothing keeps nobody from
    leaving."""
    with contextlib.suppress(OSError):
        if text.strip():
            _file().parent.mkdir(parents=True, exist_ok=True)
            _file().write_text(text, encoding="utf-8")
        else:
            _file().unlink(missing_ok=True)


def _file() -> Path:
    return paths.state() / "draft.txt"
