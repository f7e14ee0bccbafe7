"""The app on an engine that recites."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from textual.pilot import Pilot

from tui.app import VeloxquantApp
from tui.bench.fake_engine import FakeEngine
from tui.messages import Setup
from tui.settings import Settings

TURNS = 1000


class Shown:
    """A running app, its engine, and what a test does with them."""

    def __init__(self, app: VeloxquantApp, engines: list[FakeEngine], pilot: Pilot[None]) -> None:
        self.app = app
        self.engines = engines
        self.pilot = pilot

    @property
    def engine(self) -> FakeEngine:
        """The one that is connected."""
        return self.engines[0]

    async def until(self, condition: Callable[[], object]) -> None:
        """Gives the app its turns until `condition` holds."""
        for _ in range(TURNS):
            if condition():
                return
            await self.pilot.pause(0.005)
        raise AssertionError(f"never came true; the screen shows:\n{self.text}")

    async def until_shown(self, text: str) -> None:
        def shown() -> bool:
            self.app.chat.tick()
            return text in self.text

        await self.until(shown)

    async def until_said(self, sentence: str) -> None:
        """Until a notification says it."""
        await self.until(lambda: any(sentence in each.message for each in self.app._notifications))

    async def until_open(self) -> None:
        """Until an engine is there and the prompt has the keys."""
        await self.until(lambda: self.engines and self.app.live.phase != "connecting")
        await self.until(lambda: self.app.chat.prompt.has_focus)

    async def until_idle(self) -> None:
        await self.until(lambda: self.app.live.phase == "idle")

    async def write(self, text: str) -> None:
        self.app.chat.prompt.text = text
        await self.pilot.press("enter")
        await self.pilot.pause()

    @property
    def text(self) -> str:
        """The screen as a person sees it, without colours."""
        strips = self.app.screen._compositor.render_strips()
        return "\n".join("".join(segment.text for segment in strip) for strip in strips)

    @property
    def requests(self) -> list[object]:
        return list(self.engine.requests)


def app_on(engines: list[FakeEngine], settings: Settings) -> tuple[VeloxquantApp, list[FakeEngine]]:
    """An app that takes the next engine for each connection, and those it has taken so far,
    the last first."""
    connected: list[FakeEngine] = []

    async def connect(setup: Setup) -> FakeEngine:
        """As a real engine does, it starts with the setup that it is given."""
        engine = engines.pop(0)
        engine.setup, engine.turns = setup, list(setup.turns)
        connected.insert(0, engine)
        return engine

    return VeloxquantApp(engines[0].setup, settings, connect), connected


@asynccontextmanager
async def showing(
    *engines: FakeEngine, size: tuple[int, int] = (120, 40), settings: Settings | None = None
) -> AsyncIterator[Shown]:
    app, connected = app_on(list(engines or (FakeEngine(),)), settings or Settings(theme="night"))
    async with app.run_test(size=size) as pilot:
        shown = Shown(app, connected, pilot)
        await shown.until_open()
        yield shown
