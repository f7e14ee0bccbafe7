"""The engine that recites behaves as the real client does."""

from hypothesis import given
from hypothesis import strategies as st

from tui import messages as m
from tui.bench.fake_engine import FakeEngine, pieces


async def until_done(engine: FakeEngine) -> list[m.AnyEvent]:
    seen = []
    async for event in engine.events():
        seen.append(event)
        if isinstance(event, m.Done | m.Error):
            return seen
    return seen


@given(st.text())
def test_pieces_lose_nothing(text: str) -> None:
    assert "".join(pieces(text)) == text


async def test_recites_the_answer() -> None:
    engine = FakeEngine("one two three\n\n  four\n")
    await engine.send(m.Ask("hello"))
    events = await until_done(engine)
    assert isinstance(events[0], m.Welcome)
    text = "".join(event.text for event in events if isinstance(event, m.Token))
    assert text == "one two three\n\n  four\n"
    assert events[-1].reason == "stop"
    assert [event.done for event in events if isinstance(event, m.Prefill)] == [512, 1024]
    assert engine.turns[-1] == m.Turn("assistant", text)


async def test_events_survive_the_wire() -> None:
    engine = FakeEngine()
    await engine.send(m.Ask("hello"))
    engine.sample("warn")
    for event in await until_done(engine):
        assert m.decode_event(m.encode(event)) == event


async def test_stop_keeps_the_text() -> None:
    engine = FakeEngine("one two three", stall_at=2)
    await engine.send(m.Ask("hello"))
    async for event in engine.events():
        if isinstance(event, m.Token) and event.count == 2:
            await engine.send(m.Stop())
        if isinstance(event, m.Done):
            assert event.reason == "cancelled"
            break
    assert engine.turns[-1] == m.Turn("assistant", "one two", complete=False)


async def test_a_second_question_is_refused_while_busy() -> None:
    engine = FakeEngine(stall_at=1)
    await engine.send(m.Ask("hello"))
    await engine.send(m.Ask("again"))
    events = await until_done(engine)
    assert isinstance(events[-1], m.Error)
    await engine.close(shutdown=True)


async def test_lowering_frees_what_it_says() -> None:
    engine = FakeEngine("one")
    await engine.send(m.Ask("hello"))
    await until_done(engine)
    before = engine.layers().nbytes
    await engine.send(m.Lower(key_bits=4, value_bits=3))
    await engine.close(shutdown=True)
    acted = [event async for event in engine.events() if isinstance(event, m.Acted)]
    assert acted[0].freed == before - engine.layers().nbytes > 0


async def test_death_ends_the_stream() -> None:
    engine = FakeEngine(stall_at=1)
    await engine.send(m.Ask("hello"))
    engine.die("gone")
    events = [event async for event in engine.events()]
    assert m.Error(sentence="gone", fatal=True) in events
