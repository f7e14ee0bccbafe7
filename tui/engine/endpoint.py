"""Where engines listen: Unix sockets in a folder that only this user can enter."""

import os
import secrets
import socket
import stat
from contextlib import suppress
from pathlib import Path

from tui import paths

PATH_LIMIT = 103
"""Bytes of a socket's path: macOS has room for 104 with the closing zero, Linux for 108."""

NAME = "engine-{}.sock"


class EngineError(Exception):
    """Its text is one sentence for the user: what is wrong, where, what to do."""


def listen(path: Path | None = None) -> tuple[socket.socket, Path]:
    """A listening socket, at a new path where none is given.

    Raises EngineError where the folder is not private, or an engine answers at `path` already.
    """
    path = path or _folder() / NAME.format(secrets.token_hex(4))
    _make_private(path.parent)
    if len(os.fsencode(path)) > PATH_LIMIT:
        raise EngineError(
            f"The socket's path {path} is too long for this system (over {PATH_LIMIT} bytes): "
            "use a shorter folder."
        )
    if answers(path):
        raise EngineError(
            f"An engine already runs at {path}: come back to it with --attach, or end it first."
        )
    # Bound under another name and moved when it listens: at `path` somebody always answers.
    unnamed = path.with_suffix(f".{secrets.token_hex(1)}")
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(str(unnamed))
        listener.listen()
        unnamed.replace(path)
    except OSError as error:
        listener.close()
        unnamed.unlink(missing_ok=True)
        raise EngineError(f"No socket can be made at {path}: {error.strerror or error}.") from error
    return listener, path


def running_engines() -> list[Path]:
    """Sockets of this user's engines that answer, the newest first. Removes those left behind."""
    running = []
    for path in _folder().glob(NAME.format("*")):
        with suppress(OSError):
            if answers(path):
                running.append((path.stat().st_mtime, path))
            else:
                path.unlink()
    return [path for _, path in sorted(running, reverse=True)]


def answers(path: Path) -> bool:
    """Whether anybody listens at `path`."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except BlockingIOError:
            return True  # so many are waiting that this one has to as well
        except OSError:
            return False
        return True


def _folder() -> Path:
    """The runtime folder, or one with a shorter name where sockets in it would be too long."""
    folder = paths.runtime()
    if len(os.fsencode(folder / NAME.format("0" * 8))) > PATH_LIMIT:
        return Path(f"/tmp/veloxquant-tui-{os.getuid()}")
    return folder


def _make_private(folder: Path) -> None:
    """Raises EngineError where others could reach into the folder."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
            raise EngineError(f"The socket folder {folder} belongs to another user: remove it.")
        folder.chmod(0o700)
    except OSError as error:
        raise EngineError(
            f"The socket folder {folder} cannot be made: {error.strerror or error}."
        ) from error
