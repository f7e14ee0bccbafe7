"""A real engine in a real process, over its real socket, with a tiny model."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tui import sessions
from tui.engine import client as client_module
from tui.engine import endpoint
from tui.engine.client import EngineClient, EngineError, running_engines
from tui.messages import (
    Acted,
    AnyEvent,
    Ask,
    Began,
    CacheOptions,
    Done,
    Error,
    Layers,
    Limits,
    Load,
    Loading,
    Lower,
    Prefill,
    Ready,
    Regenerate,
    Reset,
    Restore,
    Sampled,
    Sampling,
    SetSampling,
    Setup,
    Stop,
    System,
    Token,
    Turn,
    Watch,
    Welcome,
    decode_event,
    encode,
)

ENDLESS = Sampling(temperature=0.0, max_tokens=1_000_000)
SHORT = Sampling(temperature=0.0, max_tokens=8)
PATIENCE = 60


class Line:
    """A client, and the events that it has read so far."""

    def __init__(self, client: EngineClient) -> None:
        self.client = client
        self.heard: list[AnyEvent] = []
        self._events = client.events()

    async def until(self, kind: type, fits: Callable = lambda event: True):
        """Reads up to the next event of the kind."""
        async with asyncio.timeout(PATIENCE):
            async for event in self._events:
                self.heard.append(event)
                if isinstance(event, kind) and fits(event):
                    return event
        raise AssertionError(f"the events ended without a {kind.__name__}: {self.heard[-3:]}")

    async def ask(self, text: str) -> Done:
        await self.client.send(Ask(text))
        return await self.until(Done)

    def of(self, kind: type) -> list:
        return [event for event in self.heard if isinstance(event, kind)]

    @property
    def process(self) -> subprocess.Popen:
        assert self.client._process is not None
        return self.client._process


@pytest.fixture
def folder(tmp_path_factory, monkeypatch) -> Path:
    """A runtime folder of the test's own, with a short name."""
    folder = tmp_path_factory.mktemp("run")
    monkeypatch.setattr(endpoint.paths, "runtime", lambda: folder)
    return folder


@pytest.fixture
async def start(tiny_folder, tmp_path, folder) -> AsyncIterator[Callable]:
    """Starts engines, and sees to it that none is left."""
    lines = []

    async def start(sampling: Sampling = SHORT, **fields) -> Line:
        setup = Setup(model=str(tiny_folder), sampling=sampling, **fields)
        line = Line(await EngineClient.start(setup, log=tmp_path / "engine.log"))
        lines.append(line)
        return line

    yield start
    for line in lines:
        line.process.terminate()
        await line.client.close(shutdown=False)
        assert await asyncio.to_thread(line.process.wait, PATIENCE) is not None


async def test_start_ask_leave(start, folder):
    line = await start()
    welcome = await line.until(Welcome)
    assert (welcome.model, welcome.turns, welcome.busy) == (None, (), False)
    assert welcome.pid == line.process.pid
    done = await line.ask("Hello")
    kinds = list(dict.fromkeys(type(event) for event in line.heard if type(event) is not Sampled))
    assert kinds == [Welcome, Loading, Layers, Ready, Began, Prefill, Token, Done]
    assert done.reason == "length" and done.tokens == 8
    assert running_engines() == [line.client.path]
    assert (
        line.client.path.stat().st_mode & 0o777 & 0o077 == 0 or folder.stat().st_mode & 0o077 == 0
    )
    await line.client.close(shutdown=True)
    assert line.process.returncode == 0
    assert running_engines() == [] and list(folder.iterdir()) == []


async def test_samples_come_by_themselves(start):
    line = await start()
    sample = await line.until(Sampled, lambda event: event.projection.tokens_to_context is not None)
    assert sample.memory.mlx_active > 0 and sample.weights > 0 and sample.cache == 0


async def test_two_clients_share_a_chat(start):
    first = await start()
    await first.ask("Hello")
    second = Line(await EngineClient.attach(first.client.path))
    welcome = await second.until(Welcome)
    text = "".join(token.text for token in first.of(Token))
    assert welcome.turns == (Turn("user", "Hello"), Turn("assistant", text))
    assert welcome.model is not None
    await second.until(Layers)
    await second.client.send(Ask("And then?"))
    done = await second.until(Done)
    # Who asked knows the question already; the other is told, and reads the same answer.
    assert len(second.of(Welcome)) == 1
    assert await first.until(Done) == done
    assert first.of(Welcome)[-1].turns[-1] == Turn("user", "And then?")
    await second.client.close(shutdown=False)
    await first.client.send(Reset())
    await first.client.send(Ask("Afresh"))
    await first.until(Done)
    third = Line(await EngineClient.attach(first.client.path))
    assert [turn.text for turn in (await third.until(Welcome)).turns][:1] == ["Afresh"]


async def test_who_attaches_in_an_answer_misses_none_of_it(start):
    first = await start(Sampling(temperature=0.0, max_tokens=300))
    await first.client.send(Ask("Hello"))
    await first.until(Token, lambda token: token.count > 50)
    second = Line(await EngineClient.attach(first.client.path))
    welcome = await second.until(Welcome)
    assert welcome.busy and not welcome.turns[-1].complete
    await second.until(Done)
    await first.until(Done)
    rest = "".join(token.text for token in second.of(Token))
    assert welcome.turns[-1].text + rest == "".join(token.text for token in first.of(Token))


async def test_stop_keeps_the_text(start, tmp_path):
    line = await start(ENDLESS, session=str(tmp_path / "chat.jsonl"))
    await line.client.send(Ask("Hello"))
    await line.until(Token, lambda token: token.count > 5)
    await line.client.send(Ask("Too early"))
    error = await line.until(Error)
    assert "being written" in error.sentence
    await line.client.send(Stop())
    done = await line.until(Done)
    assert done.reason == "cancelled"
    text = "".join(token.text for token in line.of(Token))
    expected = (Turn("user", "Hello"), Turn("assistant", text, complete=False))
    assert sessions.load(tmp_path / "chat.jsonl").turns == expected


async def test_a_turn_is_on_the_disk_before_it_is_done(start, tmp_path):
    path = tmp_path / "chat.jsonl"
    line = await start(session=str(path), system="Be brief.")
    await line.ask("Hello")
    line.process.kill()
    turns = sessions.load(path).turns
    assert [turn.role for turn in turns] == ["system", "user", "assistant"]
    assert turns[-1].complete


async def test_a_disk_that_takes_nothing_costs_no_chat(start, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    line = await start(session=str(tmp_path / "file" / "chat.jsonl"))
    done = await line.ask("Hello")
    assert done.reason == "length"
    (error,) = line.of(Error)
    assert "goes on in memory" in error.sentence and not error.fatal


async def test_a_session_belongs_to_one_engine(start, tmp_path):
    path = str(tmp_path / "chat.jsonl")
    first = await start(session=path)
    await first.until(Ready)
    second = await start(session=path)
    error = await second.until(Error)
    assert error.fatal and "open in another program" in error.sentence
    assert (await first.ask("Hello")).reason == "length"


async def test_a_chat_is_continued_and_replaced(start):
    turns = (Turn("user", "Hello"), Turn("assistant", "Yes?"))
    line = await start(turns=turns)
    assert (await line.until(Welcome)).turns == turns
    first = await line.ask("And?")
    await line.client.send(Regenerate("Or?"))
    await line.until(Done)
    await line.client.send(Restore(turns))
    await line.client.send(System("Be brief."))
    again = await line.ask("And?")
    assert again.prompt_tokens > first.prompt_tokens
    other = Line(await EngineClient.attach(line.client.path))
    texts = [turn.text for turn in (await other.until(Welcome)).turns]
    assert texts[:4] == ["Be brief.", "Hello", "Yes?", "And?"] and len(texts) == 5


async def test_what_cannot_be_had_is_refused_with_a_sentence(start):
    line = await start()
    await line.until(Ready)
    for request, words in (
        (Lower(0, 4), "from 1 to 8"),
        (Lower(4, 4, (9,)), "packed cache"),
    ):
        await line.client.send(request)
        assert words in (await line.until(Error)).sentence
    for request, words in ((Regenerate(), "ask something first"), (Ask(" \n"), "empty")):
        await line.client.send(request)
        done = await line.until(Done)
        assert done.reason == "error" and words in done.sentence


async def test_bits_are_lowered_by_hand_while_an_answer_is_written(start):
    line = await start(ENDLESS)
    await line.client.send(Ask("x" * 600))
    await line.until(Token, lambda token: token.count > 3)
    await line.client.send(Lower(4, 3))
    acted = await line.until(Acted)
    assert (acted.act, acted.layers, acted.reason) == ("lower", (0, 1, 2, 3), "asked for")
    assert acted.freed > 0 and acted.at_token > 600
    layers = await line.until(Layers)
    assert {(layer.key_bits, layer.value_bits) for layer in layers.layers} == {(4, 3)}
    await line.until(Token)
    await line.client.send(Watch("balanced", Limits(kv=layers.nbytes + 50_000)))
    done = await line.until(Done)
    assert done.reason in ("memory", "context") and done.cache <= layers.nbytes + 50_000
    # And at once where nothing is written.
    await line.client.send(Lower(2, 2))
    await line.until(Acted, lambda acted: acted.key_bits == 2)


async def test_sampling_and_model_can_be_changed(start, tiny_folder):
    line = await start()
    await line.ask("Hello")
    await line.client.send(SetSampling(Sampling(temperature=0.0, max_tokens=3)))
    assert (await line.ask("Hello")).tokens == 3
    await line.client.send(Load("/no/such/model"))
    error = await line.until(Error)
    assert error.exit_code == 3 and not error.fatal
    # The model that was there is there again, and the chat with it.
    assert (await line.until(Ready)).model.name == str(tiny_folder)
    done = await line.ask("Hello")
    assert done.reason == "length" and done.reused_tokens == 0 and done.prompt_tokens > 50


async def test_a_model_that_cannot_be_loaded_ends_the_engine(folder, tmp_path):
    client = await EngineClient.start(Setup(model="/no/such/model"), log=tmp_path / "log")
    events = [event async for event in client.events()]
    last = events[-1]
    assert isinstance(last, Error) and last.fatal and last.exit_code == 3
    assert "/no/such/model" in last.sentence
    await client.close(shutdown=True)
    assert client._process.returncode == 3
    assert list(folder.iterdir()) == []


async def test_an_artefact_that_is_none_ends_the_engine(folder, tiny_folder, tmp_path):
    cache = CacheOptions(method="spectral", artefact=str(tmp_path / "nowhere"))
    setup = Setup(model=str(tiny_folder), cache=cache)
    line = Line(await EngineClient.start(setup, log=tmp_path / "engine.log"))
    last = await line.until(Error)
    assert last.fatal and last.exit_code == 3
    assert f"there is no artefact in {tmp_path}/nowhere: make one" in last.sentence
    assert await asyncio.to_thread(line.process.wait, PATIENCE) == 3


@pytest.mark.parametrize(
    ("number", "words"),
    [(signal.SIGKILL, "killed by SIGKILL"), (signal.SIGABRT, "killed by SIGABRT")],
)
async def test_an_engine_that_dies_is_an_error_with_a_sentence(start, tmp_path, number, words):
    line = await start(ENDLESS)
    await line.client.send(Ask("Hello"))
    await line.until(Token)
    line.process.send_signal(number)
    error = await line.until(Error)
    assert error.fatal and words in error.sentence
    assert str(tmp_path / "engine.log") in error.sentence
    await line.client.send(Ask("Are you there?"))
    assert [event async for event in line._events] == []
    # Its socket is in nobody's way.
    assert running_engines() == []


async def test_sigterm_is_a_clean_end_and_sighup_none(start, tmp_path, folder):
    path = tmp_path / "chat.jsonl"
    line = await start(ENDLESS, session=str(path))
    await line.client.send(Ask("Hello"))
    await line.until(Token)
    line.process.send_signal(signal.SIGHUP)
    await line.until(Token)
    line.process.send_signal(signal.SIGTERM)
    done = await line.until(Done)
    assert done.reason == "cancelled"
    error = await line.until(Error)
    assert error.fatal and "exit code 0" in error.sentence
    text = "".join(token.text for token in line.of(Token))
    assert sessions.load(path).turns[-1] == Turn("assistant", text, complete=False)
    assert list(folder.iterdir()) == []


async def test_the_engine_outlives_its_client_and_ends_by_itself(start, tmp_path):
    path = tmp_path / "chat.jsonl"
    line = await start(Sampling(temperature=0.0, max_tokens=40), linger=0.0, session=str(path))
    await line.client.send(Ask("Hello"))
    await line.until(Began)
    await line.client.close(shutdown=False)
    async with asyncio.timeout(PATIENCE):
        assert await asyncio.to_thread(line.process.wait) == 0
    answer = sessions.load(path).turns[-1]
    assert answer.role == "assistant" and answer.complete


async def test_it_waits_for_a_client_to_come_back(start):
    line = await start(linger=600.0)
    await line.ask("Hello")
    await line.client.close(shutdown=False)
    back = Line(await EngineClient.attach(line.client.path))
    assert len((await back.until(Welcome)).turns) == 2
    assert (await back.ask("And?")).reused_tokens > 0


async def test_a_client_that_stalls_holds_nobody_up(start):
    line = await start(Sampling(temperature=0.0, max_tokens=900))
    await line.until(Ready)
    stalled = socket.socket(socket.AF_UNIX)
    stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    stalled.connect(str(line.client.path))
    with stalled:
        stalled.sendall(encode(Ask("Hello")))
        done = await line.until(Done)
        assert done.reason == "length" and done.tokens == 900
        # When it reads again, it gets the whole answer in fewer pieces, and then the end.
        text, events = "", []
        with stalled.makefile("rb") as lines:
            for sent in lines:
                events.append(decode_event(sent))
                if isinstance(events[-1], Done):
                    break
        text = "".join(event.text for event in events if isinstance(event, Token))
        assert text == "".join(token.text for token in line.of(Token))
        assert events[-1] == done


async def test_a_malformed_message_is_dropped_and_told(start):
    line = await start()
    await line.until(Ready)
    for message in (b"\n", b"{}\n", b'{"request":"ask"}\n', b"\xff\x00\n", b"[" * 100_000 + b"\n"):
        line.client._writer.write(message)
        assert "dropped" in (await line.until(Error)).sentence
    assert (await line.ask("Hello")).reason == "length"


async def test_a_message_without_end_is_cut_off(start, monkeypatch):
    line = await start()
    await line.until(Ready)
    with pytest.raises(EngineError, match="too long"):
        await line.client.send(Ask("x" * (16 * 1024 * 1024)))
    monkeypatch.setattr(client_module, "PATIENCE", 0.2)
    noisy = Line(await EngineClient.attach(line.client.path))
    for client in (noisy.client, line.client):
        with suppress(ConnectionError):
            client._writer.write(b"x" * (40 * 1024 * 1024))
            await client._writer.drain()
        last = [event async for event in client.events()][-1]
        assert isinstance(last, Error) and last.fatal and "was lost" in last.sentence
    # Only the connection ended, not the engine.
    again = Line(await EngineClient.attach(line.client.path))
    assert (await again.ask("Hello")).reason == "length"


async def test_a_second_engine_on_one_socket_is_refused(start, tiny_folder, tmp_path):
    line = await start()
    path = line.client.path
    setup = Setup(model=str(tiny_folder))
    with pytest.raises(EngineError, match=r"already runs at .*--attach"):
        await EngineClient.start(setup, log=tmp_path / "log", path=path)
    line.process.kill()
    line.process.wait()
    assert path.exists()
    # Nobody answers there any more: the path is free.
    second = Line(await EngineClient.start(setup, log=tmp_path / "log", path=path))
    assert (await second.until(Welcome)).pid == second.process.pid
    await second.client.close(shutdown=True)
    assert not path.exists()


async def test_there_is_nobody_to_go_back_to(folder):
    with pytest.raises(EngineError, match="No engine answers at"):
        await EngineClient.attach(folder / "engine-0.sock")


async def test_the_folder_is_private(folder, start):
    folder.chmod(0o777)
    await start()
    assert folder.stat().st_mode & 0o777 == 0o700
    with pytest.raises(EngineError, match="too long"):
        endpoint.listen(folder / ("x" * 200))
    monitor = folder / "link"
    monitor.symlink_to(folder, target_is_directory=True)
    with pytest.raises(EngineError, match="belongs to another"):
        endpoint.listen(monitor / "engine-1.sock")


@pytest.mark.parametrize("stdin", [subprocess.DEVNULL, None, b"{", b'{"model": 3}'])
def test_without_a_setup_it_does_not_start(folder, stdin):
    listener, path = endpoint.listen(folder / "engine-1.sock")
    closed = stdin is None
    with listener:
        command = [sys.executable, "-m", "tui.engine.server", "--fd", str(listener.fileno())]
        done = subprocess.run(
            [*command, "--socket", str(path)],
            stdin=stdin if stdin is subprocess.DEVNULL else None,
            input=stdin if isinstance(stdin, bytes) else None,
            pass_fds=(listener.fileno(),),
            preexec_fn=(lambda: os.close(0)) if closed else None,
            capture_output=True,
            timeout=PATIENCE,
        )
    assert done.returncode == 2
    assert b"cannot start" in done.stderr and b"Traceback" not in done.stderr
    assert not path.exists()


@pytest.fixture(scope="module")
def running(tiny_folder, tmp_path_factory) -> Iterator[Path]:
    """Where an engine listens that several examples share."""
    folder = tmp_path_factory.mktemp("run")
    setup = Setup(model=str(tiny_folder), sampling=SHORT)

    async def start() -> EngineClient:
        client = await EngineClient.start(setup, log=folder / "log", path=folder / "engine.sock")
        await Line(client).until(Ready)
        return client

    async def stop() -> None:
        await (await EngineClient.attach(client.path)).close(shutdown=True)

    client = asyncio.run(start())
    yield client.path
    asyncio.run(stop())
    assert client._process.wait(PATIENCE) == 0


JUNK = st.one_of(
    st.binary(max_size=200),
    st.text(max_size=80).map(str.encode),
    st.binary(max_size=9).map(lambda noise: encode(Ask("Hi"))[:20] + noise),
)


@settings(max_examples=60, deadline=None)
@given(junk=st.lists(JUNK.map(lambda line: line.replace(b"\n", b" ")), max_size=5))
def test_no_bytes_make_the_engine_fail(running, junk):
    async def answers() -> list[Error]:
        line = Line(await EngineClient.attach(running))
        line.client._writer.write(b"".join(part + b"\n" for part in junk))
        await line.client.send(Lower(0, 0))
        await line.until(Error, lambda error: "from 1 to 8" in error.sentence)
        await line.client.close(shutdown=False)
        return line.of(Error)

    errors = asyncio.run(answers())
    assert len(errors) == len(junk) + 1
    assert all("dropped" in error.sentence for error in errors[:-1])


@settings(max_examples=60, deadline=None)
@given(JUNK)
def test_no_bytes_make_a_client_fail(line):
    """An event that cannot be read is passed over."""
    event = encode(Began(prompt_tokens=1, reused_tokens=0))

    async def read() -> list[AnyEvent]:
        reader = asyncio.StreamReader()
        reader.feed_data(line.replace(b"\n", b" ") + b"\n" + event)
        reader.feed_eof()
        client = EngineClient(Path("nowhere"), reader, None)  # pyright: ignore[reportArgumentType]
        return [event async for event in client.events()]

    heard = asyncio.run(read())
    assert isinstance(heard[-1], Error) and heard[-2] == msgspec.json.decode(event, type=Began)


def test_a_log_that_cannot_be_written_is_done_without(tmp_path):
    (tmp_path / "file").write_text("")
    with client_module._open_log(tmp_path / "file" / "log") as log:
        assert log.name == os.devnull
