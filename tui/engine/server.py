"""The engine's process: its socket, its clients, its beginning and its end.

    python -m tui.engine.server --fd N --socket PATH

with a Setup as JSON on stdin. N is a listening Unix socket that the client has made at PATH, so
that there is never a moment at which nobody listens.
"""

import argparse
import asyncio
import faulthandler
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec
from msgspec.structs import replace

from tui.engine.engine import Engine
from tui.engine.outbox import Outbox
from tui.engine.peer import is_own
from tui.messages import (
    LINE_LIMIT,
    AnyRequest,
    Ask,
    Done,
    Error,
    Event,
    Layers,
    ModelInfo,
    Ready,
    Regenerate,
    Reset,
    Restore,
    SetSampling,
    Setup,
    Shutdown,
    System,
    Token,
    Turn,
    Watch,
    Welcome,
    decode_request,
    encode,
)

log = logging.getLogger(__name__)

USAGE = 2

FIRST_CLIENT = 60.0
"""Seconds until the client that started the process must have come."""

LAST_WORDS = 2.0
"""Seconds that clients are given, at the end, to read what waits for them."""


class Server:
    """Serves any number of clients, until the last has left and `setup.linger` is over.

    Everything here happens on one event loop. What a new client is told is put together from the
    events that the others were sent, so that for it none is missing and none comes twice.
    """

    def __init__(self, setup: Setup) -> None:
        loop = asyncio.get_running_loop()

        def emit(event: Event) -> None:
            loop.call_soon_threadsafe(self._broadcast, event)

        def show(turns: tuple[Turn, ...], sender: object) -> None:
            loop.call_soon_threadsafe(self._set_turns, turns, sender)

        self._engine = Engine(setup, emit, show)
        self._setup = replace(setup, turns=())  # a Welcome has the turns as they are now
        self._turns = self._engine.turns
        self._answer = ""
        self._model: ModelInfo | None = None
        self._layers: Layers | None = None
        self._busy = False
        self._clients: dict[Outbox, asyncio.StreamWriter] = {}
        self._senders: set[asyncio.Task[None]] = set()
        self._linger: asyncio.TimerHandle | None = None
        self._stop = asyncio.Event()
        self._exit_code = 0

    async def run(self, listener: socket.socket) -> int:
        """Serve until the end; returns the process's exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        server = await asyncio.start_unix_server(self._serve, sock=listener, limit=LINE_LIMIT)
        self._linger = loop.call_later(FIRST_CLIENT, self._stop.set)
        try:
            await self._stop.wait()
        finally:
            server.close()
            await asyncio.to_thread(self._engine.finish)
        for outbox in self._clients:
            outbox.close()
        if self._senders:
            await asyncio.wait(self._senders, timeout=LAST_WORDS)
        for writer in self._clients.values():
            writer.transport.abort()
        return self._exit_code

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not is_own(writer.get_extra_info("socket")):
            log.warning("another user's process connected; it was sent away")
            writer.transport.abort()
            return
        outbox = Outbox()
        outbox.put(self._welcome())
        if self._layers is not None:
            outbox.put(self._layers)
        self._clients[outbox] = writer
        self._linger_if_alone()
        self._engine.start()  # not before there is somebody who hears how it goes
        sender = asyncio.ensure_future(_send(outbox, writer))
        self._senders.add(sender)
        try:
            await self._receive(reader, outbox)
        finally:
            del self._clients[outbox]
            outbox.close()
            writer.transport.abort()
            self._senders.discard(sender)
            self._linger_if_alone()

    async def _receive(self, reader: asyncio.StreamReader, outbox: Outbox) -> None:
        while True:
            try:
                line = await reader.readline()
            except ConnectionError:
                return
            except ValueError:
                log.warning("a client's message is longer than %d bytes; it is let go", LINE_LIMIT)
                return
            if not line.endswith(b"\n"):
                return
            self._handle(line, outbox)

    def _handle(self, line: bytes, outbox: Outbox) -> None:
        try:
            request = decode_request(line)
        except (ValueError, RecursionError) as error:
            log.warning("a malformed message was dropped: %s", error)
            outbox.put(Error(sentence=f"The engine cannot read a message and dropped it: {error}."))
            return
        if isinstance(request, Shutdown):
            self._stop.set()
            return
        try:
            self._engine.handle(request, outbox)
        except ValueError as error:
            outbox.put(Error(sentence=str(error)))
            return
        self._take_over(request)

    def _take_over(self, request: AnyRequest) -> None:
        """What the request changes of that which new clients are told."""
        match request:
            case Ask() | Regenerate():
                self._busy = True
            case SetSampling(sampling=sampling):
                self._setup = replace(self._setup, sampling=sampling)
            case Watch(policy=policy, limits=limits):
                self._setup = replace(self._setup, policy=policy, limits=limits)
            case System(text=text):
                self._setup = replace(self._setup, system=text)
            case Reset(session=session) | Restore(session=session):
                self._setup = replace(self._setup, session=session)

    def _broadcast(self, event: Event) -> None:
        match event:
            case Ready(model=model):
                self._model = model
                self._setup = replace(self._setup, model=model.name)
            case Token(text=text):
                self._answer += text
            case Layers():
                self._layers = event
            case Done():
                self._busy = False
                self._linger_if_alone()
            case Error(fatal=True, exit_code=code):
                self._exit_code = code
                self._stop.set()
        for outbox in list(self._clients):
            self._put(outbox, event)

    def _put(self, outbox: Outbox, event: Event) -> None:
        if not outbox.put(event):
            log.warning("a client does not read its events; it is let go")
            self._clients[outbox].transport.abort()

    def _set_turns(self, turns: tuple[Turn, ...], sender: object) -> None:
        """Clients that have not made the change themselves are told; an answer they have read."""
        answered = turns[:-1] == self._turns and turns[-1:] and turns[-1].role == "assistant"
        self._turns, self._answer = turns, ""
        for outbox in list(self._clients):
            if not answered and outbox is not sender:
                self._put(outbox, self._welcome())

    def _welcome(self) -> Welcome:
        turns = self._turns
        if self._answer:
            turns += (Turn("assistant", self._answer, complete=False),)
        return Welcome(
            version=_version(),
            pid=os.getpid(),
            model=self._model,
            turns=turns,
            setup=self._setup,
            busy=self._busy,
        )

    def _linger_if_alone(self) -> None:
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        if not self._clients and not self._busy:
            loop = asyncio.get_running_loop()
            self._linger = loop.call_later(self._setup.linger, self._stop.set)


async def _send(outbox: Outbox, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while events := await outbox.take():
            writer.write(b"".join(encode(event) for event in events))
            await writer.drain()
    writer.close()


def _version() -> str:
    try:
        return version("veloxquant-tui")
    except PackageNotFoundError:
        return "unknown"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tui.engine.server")
    parser.add_argument("--fd", type=int, required=True, help="a listening Unix socket")
    parser.add_argument("--socket", type=Path, required=True, help="its path")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a lost terminal ends no answer
    faulthandler.enable()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    identity = _identity(options.socket)
    try:
        listener = socket.socket(fileno=options.fd)
        setup = msgspec.json.decode(sys.stdin.buffer.read() if sys.stdin else b"", type=Setup)
        code = asyncio.run(_serve(setup, listener))
    except (OSError, ValueError) as error:
        log.error("the engine cannot start: %s", error)
        code = USAGE
    # Another engine may listen at the same path by now.
    if identity == _identity(options.socket):
        options.socket.unlink(missing_ok=True)
    return code


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


async def _serve(setup: Setup, listener: socket.socket) -> int:
    return await Server(setup).run(listener)


if __name__ == "__main__":
    exit_code = main()
    logging.shutdown()
    # MLX frees what a thread held only after Python has seen the thread end; where that falls
    # into the interpreter's own end, the process aborts. All is saved: leave without that end.
    os._exit(exit_code)
