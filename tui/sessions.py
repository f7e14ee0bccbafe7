"""Chats on disk: one file a session, one turn a line as JSON, in the order they were said."""

import fcntl
import os
import re
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import msgspec

from tui import paths
from tui.messages import Turn

_decoder = msgspec.json.Decoder(Turn)


class SessionError(Exception):
    """One sentence: what is wrong, with which session, what to do."""


@dataclass(frozen=True)
class Session:
    """`notice` tells the user what was left out when it was read."""

    path: Path
    turns: tuple[Turn, ...] = ()
    notice: str | None = None

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def title(self) -> str:
        """The first question's first line."""
        questions = (turn.text for turn in self.turns if turn.role == "user")
        return next((line for text in questions for line in text.splitlines()), "")


def path_of(name: str) -> Path:
    """Raises SessionError for a name that is no plain file name."""
    if not re.fullmatch(r"\w[\w .-]{0,99}", name):
        raise SessionError(
            f"{name!r} cannot be a session's name: use up to 100 letters, digits, dots, "
            "dashes and spaces, with a letter or digit first."
        )
    return paths.sessions() / f"{name}.jsonl"


def new_path() -> Path:
    """A session file that does not exist yet, named for the time."""
    stem = time.strftime("%Y-%m-%d-%H%M%S")
    path, number = path_of(stem), 1
    while path.exists():
        number += 1
        path = path_of(f"{stem}-{number}")
    return path


def names() -> list[str]:
    """All sessions, the latest changed first."""
    changed = []
    for path in paths.sessions().glob("*.jsonl"):
        with suppress(FileNotFoundError):
            changed.append((path.stat().st_mtime, path.stem))
    return [name for _, name in sorted(changed, reverse=True)]


def load(path: Path) -> Session:
    """The chat in `path`, empty where there is no file yet.

    A last line that was cut off while it was written is left out, with a notice. Raises
    SessionError for a file that cannot be read or is broken elsewhere; it stays as it is.
    """
    try:
        whole, rest = _lines(path.read_bytes())
    except FileNotFoundError:
        return Session(path)
    except OSError as error:
        raise SessionError(f"Cannot read the session {path}: {error.strerror}.") from None
    turns = []
    for number, line in enumerate(whole, 1):
        try:
            turns.append(_decoder.decode(line))
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise SessionError(
                f"The session {path} is broken in line {number}: {error}. "
                "Correct that line or take it out; the file was left as it is."
            ) from None
    notice = None
    if rest:
        notice = f"The last turn of the session {path.stem!r} was cut off in writing; left out."
    return Session(path, tuple(turns), notice)


def append(path: Path, turns: Iterable[Turn]) -> None:
    """Adds turns, on the disk when this returns. Raises OSError, with the file as it was."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b", buffering=0) as file:
        data = file.read()
        whole, rest = _lines(data)
        size = len(data) - len(rest)
        file.seek(size)
        missing_newline = bool(whole) and not data[:size].endswith(b"\n")
        try:
            _write(file, (b"\n" if missing_newline else b"") + _encode(turns))
            file.truncate()
        except OSError:
            file.truncate(size)
            raise


def replace(path: Path, turns: Iterable[Turn]) -> None:
    """Writes the whole chat anew in one step. Raises OSError, with the file as it was."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False, buffering=0) as file:
        temporary = Path(file.name)
        try:
            _write(file, _encode(turns))
            temporary.replace(path)
        except OSError:
            temporary.unlink()
            raise


def hold(path: Path) -> IO[bytes]:
    """Marks the session as this process's own until the result is closed.

    Raises SessionError where another process holds it, OSError where it cannot be marked.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = path.with_suffix(".lock").open("ab")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise SessionError(
            f"The session {path.stem!r} is open in another program: go back to it with "
            "--attach, or take another name."
        ) from None
    return lock


def _lines(data: bytes) -> tuple[list[bytes], bytes]:
    """The whole lines, and what follows them: a line that was cut off, or nothing."""
    *whole, rest = data.split(b"\n")
    if rest:
        # An editor may leave out the last newline.
        with suppress(msgspec.MsgspecError, UnicodeDecodeError):
            _decoder.decode(rest)
            return [*whole, rest], b""
    return whole, rest


def _encode(turns: Iterable[Turn]) -> bytes:
    return b"".join(msgspec.json.encode(turn) + b"\n" for turn in turns)


def _write(file: IO[bytes], data: bytes) -> None:
    """All of `data`, down to the disk."""
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]
    os.fsync(file.fileno())
