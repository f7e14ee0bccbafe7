import asyncio
import json
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest

from kvcore.memory.read import read_sample
from kvcore.report import LayerReport
from tui import cli, monitor
from tui.engine.endpoint import listen
from tui.exits import DONE
from tui.live import Live
from tui.messages import Layers, ModelInfo, Sampled, Setup, Welcome, encode
from tui.monitor import Watched, to_text

SAMPLE = replace(read_sample(), level="warn", level_source="a test", compressed=None)
LAYERS = tuple(
    LayerReport(
        index=index,
        kind="full" if index == 3 else "packed",
        tokens=100,
        nbytes=1 << 20,
        half_nbytes=4 << 20,
        key_bits=None if index == 3 else 6 if index else 5,
        value_bits=None if index == 3 else 4,
    )
    for index in range(4)
)
SAID = (
    Welcome(
        version="0",
        pid=4711,
        model=ModelInfo(name="tiny", context=None, weights=1, layers=4, backend="CPU, a test"),
        turns=(),
        setup=Setup(model="tiny"),
        busy=False,
    ),
    Layers(tokens=100, nbytes=4 << 20, half_nbytes=16 << 20, layers=LAYERS),
    Sampled(memory=SAMPLE, weights=1 << 30, cache=4 << 20),
)


def test_once_as_json_is_one_object_about_this_machine(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["monitor", "--once", "--json"]) == DONE
    (line,) = capsys.readouterr().out.splitlines()
    said = json.loads(line)
    assert said["level"] in ("normal", "warn", "critical", None)
    assert said["total"] > said["available"] > 0
    assert said["engines"] == []
    assert "process" not in said


def test_once_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["monitor", "--once"]) == DONE
    out = capsys.readouterr().out
    assert out.startswith("memory ") and "engines  none" in out


def test_text_groups_layers_that_are_alike() -> None:
    engine = Watched(Path("x"), Live(Setup(model="tiny")), pid=4711)
    for event in SAID:
        engine.live.take(event)
    lines = to_text(SAMPLE, [engine])
    assert lines[0] == "memory   warn (a test)"
    assert "compressed –" in lines[1]
    assert "engine   4711, idle, tiny on CPU, a test" in lines
    assert "cache    100 tokens in 4.00M; fp16: 16.0M, 4.0× smaller" in lines
    assert [line.split() for line in lines[-3:]] == [
        ["layer", "0", "packed", "keys", "5", "bits,", "values", "4", "bits,", "1.00M"],
        ["layers", "1-2", "packed", "keys", "6", "bits,", "values", "4", "bits,", "2.00M"],
        ["layer", "3", "full", "1.00M"],
    ]


async def test_a_running_engine_is_found_and_let_go() -> None:
    gone = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"".join(map(encode, SAID)))
        if await reader.read():
            pytest.fail("a monitor asks for nothing")
        gone.set()
        writer.close()

    listener, path = listen()
    server = await asyncio.start_unix_server(serve, sock=listener)
    async with server, aclosing(monitor._looks(once=True, interval=1)) as looks:
        (engines,) = [engines async for engines in looks]
        (engine,) = engines
        assert (engine.pid, engine.path, engine.live.layers) == (4711, path, SAID[1])
        said = monitor.to_json(SAMPLE, engines)["engines"]
        assert said[0]["layers"] == SAID[1]
    await gone.wait()


async def test_an_engine_that_says_nothing_is_not_waited_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(monitor, "PATIENCE", 0.05)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    listener, _ = listen()
    server = await asyncio.start_unix_server(serve, sock=listener)
    async with server, aclosing(monitor._looks(once=True, interval=1)) as looks:
        (engines,) = [engines async for engines in looks]
        assert to_text(SAMPLE, engines)[-1].startswith("engine   –, connecting")
