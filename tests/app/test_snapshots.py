"""What the app looks like. After a change that is meant: pytest tests/app --snapshot-update."""

import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from shown import Shown, app_on
from textual.pilot import Pilot

from tui import messages as m
from tui.bench.fake_engine import FakeEngine
from tui.settings import Settings

ANSWER = """The chapter makes three claims. First, that the cache grows with every token and that \
nothing is ever given back. Second, that keys tolerate four bits once they are rotated.

## Left open

- how the ratio moves past 64k tokens
- whether the first tokens should stay at full precision

```python
size = layers * heads * head_dim * tokens * bits // 8
```

The last point matters most in practice.
"""
Compare = Callable[..., bool]
Step = Callable[[Shown], Awaitable[None]]


@pytest.fixture(autouse=True)
def one_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clocks on the screen stand still."""
    monkeypatch.setattr(time, "strftime", lambda form, *_: "18:02:19 "[: 9 if " " in form else 8])
    monkeypatch.delenv("SSH_CONNECTION", raising=False)
    monkeypatch.delenv("SSH_TTY", raising=False)


async def asked(shown: Shown) -> None:
    """A question was answered, and memory ran low meanwhile."""
    await shown.write("Summarise chapter 3 and list what the author leaves open.")
    await shown.until_idle()
    shown.engine.sample("warn", used=14 << 30)
    shown.engine.lower(5, 4, tuple(range(8, 22)), reason="memory pressure is warn", level="warn")
    await shown.until_shown("L8-21 lowered to 5/4")
    await shown.until(lambda: not shown.app.chat.acts)


async def layers(shown: Shown) -> None:
    await asked(shown)
    await shown.pilot.press("ctrl+l", "space", "space", "[", "[")
    await shown.until_shown("applying frees")


async def memory_stop(shown: Shown) -> None:
    await asked(shown)
    shown.engine.emit(
        m.Done(
            reason="memory",
            prompt_tokens=1024,
            reused_tokens=0,
            tokens=31_870,
            prefill_rate=600.0,
            decode_rate=41.2,
            first_token=0.1,
            seconds=1.0,
            cache=None,
            sentence="The cache would pass --kv-limit 200M.",
        )
    )
    await shown.until_shown("start a new chat; this one is kept")


async def loading(shown: Shown) -> None:
    shown.engine.emit(m.Loading(stage="download", done=40 << 20, total=80 << 20))
    await shown.until_shown("downloading the model")


@pytest.mark.parametrize(
    ("name", "size", "theme", "steps"),
    [
        ("small", (80, 24), "night", asked),
        ("side", (120, 40), "night", asked),
        ("wide", (200, 50), "day", asked),
        ("layers", (120, 40), "night", layers),
        ("memory", (100, 30), "day", memory_stop),
        ("loading", (80, 24), "ansi", loading),
    ],
)
def test_looks(
    name: str, size: tuple[int, int], theme: str, steps: Step, snap_compare: Compare
) -> None:
    engine = FakeEngine(ANSWER, rate=None, model=None if steps is loading else FakeEngine().model)
    app, connected = app_on([engine], Settings(theme=theme))

    async def before(pilot: Pilot[Any]) -> None:
        shown = Shown(app, connected, pilot)
        app.chat.prompt.cursor_blink = False
        await shown.until_open()
        await steps(shown)
        # Acts are news for some seconds, and layers flash: the picture is of what stays.
        app.live.acted_at = None
        app.live.sampled_at = time.monotonic() if app.live.sampled else None
        for map in app.chat.query("LayerMap").results():
            map.flashing = {}
        app.chat.tick()
        await pilot.pause()

    assert snap_compare(app, terminal_size=size, run_before=before)
