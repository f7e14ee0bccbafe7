"""What was typed in earlier runs, so that it comes back with the up arrow."""

import contextlib
from pathlib import Path

import msgspec

from tui import paths

KEPT = 500
LONGEST = 20_000
"""Characters; a longer prompt was pasted, and is not typed again."""


def load() -> list[str]:
    """The last prompts, oldest first; none where the file cannot be read."""
    try:
        lines = _file().read_bytes().splitlines()
    except OSError:
        return []
    prompts = []
    for line in lines[-KEPT:]:
        with contextlib.suppress(msgspec.MsgspecError):
            prompts.append(msgspec.json.decode(line, type=str))
    return prompts


def add(prompt: str) -> None:
    """Nothing is lost to the chat where this cannot be written."""
    if len(prompt) > LONGEST:
        return
    with contextlib.suppress(OSError):
        _file().parent.mkdir(parents=True, exist_ok=True)
        with _file().open("ab") as file:
            file.write(msgspec.json.encode(prompt) + b"\n")


def _file() -> Path:
    return paths.state() / "prompts.jsonl"
