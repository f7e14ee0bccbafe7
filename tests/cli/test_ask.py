"""`ask` on an engine whose events are written down here; the process end to end is elsewhere."""

import asyncio
import io
import json
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tui import ask, cli, sessions
from tui.engine import client
from tui.exits import DONE, FAILED, INTERRUPTED, MEMORY, MODEL, USAGE
from tui.messages import (
    Acted,
    AnyEvent,
    AnyRequest,
    Ask,
    Done,
    Error,
    Loading,
    Setup,
    Token,
    Turn,
    decode_event,
)

DONE_EVENT = Done(
    reason="stop",
    prompt_tokens=1812,
    reused_tokens=0,
    tokens=2,
    prefill_rate=166.2,
    decode_rate=11.61,
    first_token=4.9,
    seconds=5.0,
    cache=2 << 20,
)
TOKENS = (Token(text="Hel", count=1, rate=None), Token(text="lo", count=2, rate=11.6))


class Engine:
    """A client whose engine says `events`, then waits for ever."""

    def __init__(self, events: Sequence[AnyEvent | BaseException]) -> None:
        self.scripted = events
        self.setup: Setup | None = None
        self.sent: list[AnyRequest] = []
        self.closed: bool | None = None

    async def start(self, setup: Setup, log: Path) -> "Engine":
        self.setup = setup
        return self

    async def send(self, request: AnyRequest) -> None:
        self.sent.append(request)

    async def events(self) -> AsyncIterator[AnyEvent]:
        for event in self.scripted:
            if isinstance(event, BaseException):
                raise event
            yield event
        await asyncio.Event().wait()

    async def close(self, shutdown: bool) -> None:
        self.closed = shutdown


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    engine = Engine((Loading(stage="weights", done=1, total=2), *TOKENS, DONE_EVENT))
    monkeypatch.setattr(client, "EngineClient", engine)
    give(monkeypatch, b"")
    return engine


def give(monkeypatch: pytest.MonkeyPatch, stdin: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))


def done(**changes: Any) -> Done:
    return replace(DONE_EVENT, **changes)


Captured = pytest.CaptureFixture[str]


def test_the_answer_is_on_stdout_and_its_figures_on_stderr(
    engine: Engine, capsys: Captured
) -> None:
    assert cli.main(["ask", "Say", "hello"]) == DONE
    printed = capsys.readouterr()
    assert printed.out == "Hello\n"
    assert "1,812 prompt tokens at 166 tok/s" in printed.err
    assert "first token after 4.90 s" in printed.err
    assert engine.sent == [Ask("Say hello")]
    assert engine.closed is True


def test_json_has_every_event_and_nothing_else(engine: Engine, capsys: Captured) -> None:
    assert cli.main(["ask", "--json", "hi"]) == DONE
    lines = capsys.readouterr().out.encode().splitlines(keepends=True)
    assert [decode_event(line) for line in lines] == list(engine.scripted)
    assert [json.loads(line)["event"] for line in lines] == ["loading", "token", "token", "done"]


def test_flags_reach_the_engine(engine: Engine) -> None:
    argv = ["ask", "--temp", "0", "--kv-limit", "11M", "--seed", "1", "hi", "--key-bits", "4"]
    assert cli.main(argv) == DONE
    assert engine.setup is not None
    assert engine.setup.sampling.temperature == 0
    assert engine.setup.sampling.seed == 1
    assert engine.setup.limits.kv == 11 << 20
    assert engine.setup.cache.key_bits == 4
    assert engine.setup.session is None


def test_a_session_goes_on(engine: Engine, capsys: Captured) -> None:
    path = sessions.path_of("work")
    turns = (Turn("user", "one"), Turn("assistant", "two"))
    sessions.append(path, turns)
    for flags in (["--session", "work"], ["--continue"]):
        assert cli.main(["ask", *flags, "three"]) == DONE
        assert engine.setup is not None
        assert (engine.setup.session, engine.setup.turns) == (str(path), turns)
    with sessions.hold(path):
        assert cli.main(["ask", "--session", "work", "three"]) == USAGE
    assert "--attach" in capsys.readouterr().err


def test_a_torn_session_is_told_of(engine: Engine, capsys: Captured) -> None:
    path = sessions.path_of("work")
    sessions.append(path, (Turn("user", "one"),))
    with path.open("a") as file:
        file.write('{"role":"assis')
    assert cli.main(["ask", "--session", "work", "two"]) == DONE
    assert "cut off" in capsys.readouterr().err
    path.write_text("{}\n")
    assert cli.main(["ask", "--session", "work", "two"]) == USAGE
    assert "line 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("last", "code", "words"),
    [
        (done(reason="memory", sentence="No room is left."), MEMORY, "No room is left."),
        (done(reason="length"), DONE, "longest"),
        (done(reason="context"), DONE, "context"),
        (done(reason="context", tokens=0, sentence="Too long."), FAILED, "Too long."),
        (done(reason="error", sentence="It broke."), FAILED, "It broke."),
        (Error(sentence="No such model.", exit_code=3, fatal=True), MODEL, "No such model."),
        (Error(sentence="Killed by SIGKILL.", fatal=True), FAILED, "Killed by SIGKILL."),
    ],
)
def test_the_end_gives_the_exit_code(
    last: AnyEvent, code: int, words: str, engine: Engine, capsys: Captured
) -> None:
    engine.scripted = (*TOKENS, last)
    assert cli.main(["ask", "hi"]) == code
    printed = capsys.readouterr()
    assert printed.out == "Hello\n"
    assert words in printed.err
    assert engine.closed is True


def test_what_went_wrong_beside_the_answer_does_not_end_it(
    engine: Engine, capsys: Captured
) -> None:
    full = Error(sentence="The chat cannot be saved.")
    lowered = Acted(
        act="lower", reason="too much", level="warn", layers=(1, 2), key_bits=5, value_bits=4
    )
    engine.scripted = (full, TOKENS[0], lowered, TOKENS[1], DONE_EVENT)
    assert cli.main(["ask", "hi"]) == DONE
    printed = capsys.readouterr()
    assert printed.out == "Hel\nlo\n"
    assert "cannot be saved" in printed.err
    assert "L1-2 lowered to 5/4: too much" in printed.err


def test_interrupted_it_lets_the_engine_end(engine: Engine, capsys: Captured) -> None:
    engine.scripted = (TOKENS[0], KeyboardInterrupt())
    assert cli.main(["ask", "hi"]) == INTERRUPTED
    assert capsys.readouterr().out == "Hel\n"
    assert engine.closed is True


@pytest.mark.parametrize(
    ("words", "stdin", "prompt"),
    [
        (["a"], b"b\n", "a\n\nb\n"),
        ([], "ä 漢字\n".encode(), "ä 漢字\n"),
        (["a"], b" \n", "a"),
        (["--", "--json", "-x"], b"", "--json -x"),
    ],
)
def test_stdin_is_added_to_the_prompt(
    words: list[str],
    stdin: bytes,
    prompt: str,
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    give(monkeypatch, stdin)
    assert cli.main(["ask", *words]) == DONE
    assert engine.sent == [Ask(prompt)]


@pytest.mark.parametrize(
    ("words", "stdin", "sentence"),
    [
        ([], b"", "prompt is empty"),
        ([" "], b"\n", "prompt is empty"),
        (["a"], b"\xff\xd8\xff", "no UTF-8"),
        (["a"], b"ELF\0\0", "binary"),
        (["a"], b"x" * (17 << 20), "longer than 16.0M"),
        (["\udcff"], b"", "no UTF-8"),
    ],
)
def test_a_prompt_that_is_none(
    words: list[str],
    stdin: bytes,
    sentence: str,
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Captured,
) -> None:
    give(monkeypatch, stdin)
    assert cli.main(["ask", *words]) == USAGE
    assert sentence in capsys.readouterr().err
    assert engine.setup is None


def test_progress_is_drawn_on_a_terminal_and_taken_away(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", screen)
    assert ask.main(["hi"]) == DONE
    shown, _, rest = screen.getvalue().partition("#" * 10 + "." * 10)
    assert shown.endswith("reading the weights [")
    assert rest.startswith("]\r\x1b[K") and "answered" in rest
