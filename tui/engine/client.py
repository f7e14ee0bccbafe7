"""The app's side of the engine: starts its process, or goes back to one, and talks with it."""

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import IO

import msgspec

from tui.engine.blas import engine_environment
from tui.engine.endpoint import EngineError, listen, running_engines
from tui.messages import (
    LINE_LIMIT,
    AnyEvent,
    AnyRequest,
    Error,
    Setup,
    Shutdown,
    decode_event,
    encode,
)

__all__ = ["EngineClient", "EngineError", "running_engines"]

log = logging.getLogger(__name__)

PATIENCE = 10.0
"""Seconds that an engine is given to end by itself, and then again after SIGTERM."""


class EngineClient:
    """One connection to an engine, made by `start` or `attach`."""

    def __init__(
        self,
        path: Path,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        process: subprocess.Popen[bytes] | None = None,
        log: Path | None = None,
    ) -> None:
        self.path = path
        self._reader = reader
        self._writer = writer
        self._process = process
        self._log = log
        self._reading = asyncio.Lock()
        self._closed = False

    @classmethod
    async def start(cls, setup: Setup, log: Path, path: Path | None = None) -> "EngineClient":
        """Start an engine and connect to it; it writes its log to `log`.

        `path`: where it is to listen; a name of its own where none is given. Raises EngineError.
        """
        listener, path = listen(path)
        with listener:
            process = await asyncio.to_thread(_spawn, setup, listener, path, log)
            # The socket listens already, so this does not wait for the child.
            reader, writer = await _connect(path)
        return cls(path, reader, writer, process, log)

    @classmethod
    async def attach(cls, path: Path, log: Path | None = None) -> "EngineClient":
        """Go back to an engine that runs. Raises EngineError where none does."""
        reader, writer = await _connect(path)
        return cls(path, reader, writer, log=log)

    async def send(self, request: AnyRequest) -> None:
        """Raises EngineError for a message that is too long. That the engine is gone is told by
        `events`, and only there."""
        line = encode(request)
        if len(line) > LINE_LIMIT:
            raise EngineError(
                f"The message is too long: {len(line):,} bytes, and an engine takes {LINE_LIMIT:,}."
            )
        with suppress(ConnectionError):
            self._writer.write(line)
            await self._writer.drain()

    async def events(self) -> AsyncIterator[AnyEvent]:
        """What the engine says, until `close`. One that dies has a fatal Error as its last."""
        while (event := await self._read()) is not None:
            yield event
            if isinstance(event, Error) and event.fatal:
                return
        if not self._closed:
            yield await self._epitaph()

    async def close(self, shutdown: bool) -> None:
        """Leave the engine; with `shutdown`, have it end, and wait until it has."""
        self._closed = True
        if shutdown:
            await self.send(Shutdown())
            with suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE):
                    while await self._read() is not None:
                        pass
            await self._end_process()
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()

    async def _read(self) -> AnyEvent | None:
        """The next event; None at the end of the connection."""
        async with self._reading:
            while True:
                try:
                    line = await self._reader.readline()
                except (ConnectionError, ValueError):
                    return None
                if not line.endswith(b"\n"):
                    return None
                try:
                    return decode_event(line)
                except msgspec.MsgspecError as error:
                    log.warning("an event cannot be read and was dropped: %s", error)

    async def _exit_code(self) -> int | None:
        """How the engine's process ended; None where it is not ours, or has not."""
        if self._process is None:
            return None
        with suppress(subprocess.TimeoutExpired):
            return await asyncio.to_thread(self._process.wait, PATIENCE)
        return None

    async def _end_process(self) -> None:
        """Wait until the engine's process has ended, and in the end enforce it."""
        for last_resort in ("terminate", "kill"):
            if self._process is None or await self._exit_code() is not None:
                return
            log.warning("the engine does not end: %s", last_resort)
            getattr(self._process, last_resort)()
        await self._exit_code()

    async def _epitaph(self) -> Error:
        code = await self._exit_code()
        if code is None:
            what = f"The connection to the engine at {self.path} was lost"
        elif code >= 0:
            what = f"The engine ended with exit code {code}"
        else:
            name = signal.Signals(-code).name
            why = ", as the system does when memory runs out" if name == "SIGKILL" else ""
            what = f"The engine was killed by {name}{why}"
        where = "" if self._log is None else f"; its log is {self._log}"
        sentence = f"{what}. The chat so far is kept{where}."
        return Error(sentence=sentence, exit_code=max(code or 1, 1), fatal=True)


async def _connect(path: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    try:
        return await asyncio.open_unix_connection(str(path), limit=LINE_LIMIT)
    except OSError as error:
        raise EngineError(f"No engine answers at {path}: {error.strerror or error}.") from error


def _spawn(setup: Setup, listener: socket.socket, path: Path, log: Path) -> subprocess.Popen[bytes]:
    # A file, not a pipe: a long chat would fill a pipe before the child has begun to read.
    with tempfile.TemporaryFile() as stdin, _open_log(log) as output:
        stdin.write(msgspec.json.encode(setup))
        stdin.seek(0)
        # Not asyncio's subprocess, which kills the child when the loop that started it ends.
        return subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "tui.engine.server"),
                *("--fd", str(listener.fileno()), "--socket", str(path)),
            ],
            stdin=stdin,
            stdout=output,
            stderr=output,
            pass_fds=(listener.fileno(),),
            start_new_session=True,
            env=_environment(),
        )


def _environment() -> dict[str, str]:
    """The engine finds the modules that this process finds, whatever folder it is started in."""
    return engine_environment() | {
        "PYTHONPATH": os.pathsep.join(folder or str(Path.cwd()) for folder in sys.path)
    }


def _open_log(log: Path) -> IO[bytes]:
    """A disk that cannot be written costs the log, not the chat."""
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        return log.open("ab")
    except OSError:
        return Path(os.devnull).open("ab")
