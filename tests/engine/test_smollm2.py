"""The built-in model in a real engine: it answers, and goes on doing so under a limit."""

from collections.abc import AsyncIterator

import pytest

from tui.engine import endpoint
from tui.engine.client import EngineClient
from tui.messages import (
    Acted,
    AnyEvent,
    Ask,
    Began,
    Done,
    Layers,
    Limits,
    Sampling,
    Setup,
    Token,
    Watch,
)

pytestmark = pytest.mark.model

FILLER = "The quick brown fox jumps over the lazy dog. " * 95
SAMPLING = Sampling(temperature=0.0, max_tokens=24)


@pytest.fixture
async def client(tmp_path, tmp_path_factory, monkeypatch) -> AsyncIterator[EngineClient]:
    folder = tmp_path_factory.mktemp("run")
    monkeypatch.setattr(endpoint.paths, "runtime", lambda: folder)
    setup = Setup(model="smollm2", sampling=SAMPLING)
    client = await EngineClient.start(setup, log=tmp_path / "log")
    yield client
    await client.close(shutdown=True)


async def answered(client: EngineClient, question: str) -> list[AnyEvent]:
    await client.send(Ask(question))
    heard = []
    async for event in client.events():
        heard.append(event)
        if isinstance(event, Done):
            break
    return heard


def text(events: list[AnyEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, Token))


async def test_a_chat_under_a_limit(client):
    first = await answered(client, "What is the capital of France?")
    assert text(first) == "The capital of France is Paris." and first[-1].reason == "stop"
    limit = 10_500_000
    await client.send(Watch("balanced", Limits(kv=limit)))
    second = await answered(client, FILLER + "How many animals are in this text?")
    assert second[-1].reason in ("stop", "length")
    (began,) = (event for event in second if isinstance(event, Began))
    assert began.reused_tokens > 40 and began.forecast_bytes > limit
    acts = [event for event in second if isinstance(event, Acted) and event.act == "lower"]
    assert acts and sum(act.freed for act in acts) > 0
    layers = [event for event in second if isinstance(event, Layers)]
    assert all(event.nbytes <= limit for event in layers)
    assert layers[-1].half_nbytes > limit
    third = await answered(client, "What is the capital of Italy?")
    assert "Rome" in text(third), (text(second), text(third))
    assert third[-1].reused_tokens > 400
