"""What a slow client is sent: all of the text, the newest of each state, in order."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tui.engine import outbox as module
from tui.engine.outbox import Outbox
from tui.messages import Acted, Began, Error, Event, Layers, Prefill, Token


def layers(tokens: int) -> Layers:
    return Layers(tokens=tokens, nbytes=0, half_nbytes=None, layers=())


def prefill(done: int) -> Prefill:
    return Prefill(done=done, total=9, rate=None)


EVENTS = st.one_of(
    st.builds(lambda text: Token(text=text, count=1, rate=None), st.text(max_size=3)),
    st.builds(layers, st.integers(0, 99)),
    st.builds(prefill, st.integers(0, 99)),
    st.builds(lambda text: Error(sentence=text), st.text(max_size=3)),
    st.just(Began(prompt_tokens=1, reused_tokens=0)),
    st.just(Acted(act="clear", reason="", level=None)),
)


def put_and_take(steps: list[Event | None]) -> list[Event]:
    """None is a moment at which the client reads."""

    async def taken() -> list[Event]:
        outbox, events = Outbox(), []
        for step in steps:
            if step is not None:
                assert outbox.put(step)
            elif outbox.waiting:
                events += await outbox.take()
        outbox.close()
        events += await outbox.take()
        assert await outbox.take() == []
        return events

    return asyncio.run(taken())


def happenings(events: list[Event]) -> list[Event | str]:
    """All but the states, with neighbouring tokens as one text."""
    told: list[Event | str] = []
    for event in events:
        if isinstance(event, Token):
            earlier = told.pop() if told and isinstance(told[-1], str) else ""
            told.append(earlier + event.text)
        elif not isinstance(event, Layers | Prefill):
            told.append(event)
    return told


@given(st.lists(st.none() | EVENTS))
def test_nothing_that_happened_is_lost(steps):
    put = [step for step in steps if step is not None]
    taken = put_and_take(steps)
    assert happenings(taken) == happenings(put)
    for kind in (Layers, Prefill):
        told = [event for event in put if isinstance(event, kind)]
        heard = [event for event in taken if isinstance(event, kind)]
        assert heard[-1:] == told[-1:]


def test_who_reads_nothing_is_owed_little():
    events = [
        event for n in range(500) for event in (Token(text="a", count=n, rate=None), layers(n))
    ]
    taken = put_and_take([*events, None])
    assert [type(event) for event in taken] == [Token, Layers]
    assert taken[0] == Token(text="a" * 500, count=499, rate=None)
    assert taken[1] == layers(499)


def test_there_is_a_bound(monkeypatch):
    monkeypatch.setattr(module, "LIMIT", 10)
    outbox = Outbox()
    assert all(outbox.put(Token(text="abc", count=n, rate=None)) for n in range(3))
    assert not outbox.put(Token(text="abc", count=3, rate=None))


@pytest.mark.parametrize("closed", [True, False])
async def test_take_waits_for_something(closed):
    outbox = Outbox()
    taking = asyncio.ensure_future(outbox.take())
    await asyncio.wait([taking], timeout=0)
    assert not taking.done()
    outbox.close() if closed else outbox.put(layers(1))
    assert await taking == ([] if closed else [layers(1)])
