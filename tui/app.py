"""The app: it connects to an engine, takes its events, and sends what the person wants."""

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Protocol

from msgspec.structs import replace
from textual import work
from textual.app import App
from textual.binding import Binding
from textual.filter import LineFilter

from tui import clipboard, colours, draft, guard, paths, sessions
from tui.carry_out import carry_out
from tui.commands import Call, Said, Unknown, parse
from tui.engine.endpoint import EngineError
from tui.glyphs import AsciiFilter
from tui.live import Live
from tui.messages import (
    AnyEvent,
    AnyRequest,
    Ask,
    Done,
    Error,
    Limits,
    Lower,
    Policy,
    Ready,
    Regenerate,
    Reset,
    Restore,
    Setup,
    Stop,
    Turn,
    Watch,
    Welcome,
)
from tui.palette import SlashCommands
from tui.screens.chat import ChatScreen
from tui.screens.help import Help
from tui.screens.layers import Layers
from tui.screens.log import LogScreen
from tui.screens.sessions import Sessions
from tui.settings import Settings
from tui.themes import ThemeError
from tui.widgets.event_log import EventLog

AGAIN = 2.0
"""Seconds within which a second ^c quits."""
GOODBYE = 5.0
"""Seconds that an engine may take to end when the app does."""


class Engine(Protocol):
    """What the app needs of tui.engine.client.EngineClient."""

    async def send(self, request: AnyRequest) -> None: ...
    def events(self) -> AsyncIterator[AnyEvent]: ...
    async def close(self, shutdown: bool) -> None: ...


class VeloxquantApp(App[None]):
    """`connect` starts an engine and gives a client of it; once that has ended, a new one."""

    CSS_PATH = "app.tcss"
    TITLE = "veloxquant-tui"
    COMMANDS = {SlashCommands}  # noqa: RUF012
    COMMAND_PALETTE_BINDING = "ctrl+p"
    BINDINGS = [  # noqa: RUF012
        Binding("ctrl+q", "quit", "quit", id="quit", priority=True),
        Binding("ctrl+c", "interrupt", "copy, stop or quit", id="interrupt", priority=True),
    ]

    def __init__(
        self, setup: Setup, settings: Settings, connect: Callable[[Setup], Awaitable[Engine]]
    ) -> None:
        self.ascii_filter = AsciiFilter(enabled=settings.ascii or not guard.unicode_terminal())
        self.live = Live(setup)
        self.event_log = EventLog()
        super().__init__()
        self.settings = settings
        self.connect = connect
        self.client: Engine | None = None
        self.queue: list[str] = []
        self.interrupted = -AGAIN
        self.greeting: str | None = None
        self.chat = ChatScreen(self.live, self.event_log)
        try:
            self.use_theme(settings.theme)
        except ThemeError as error:
            self.greeting = str(error)

    def get_default_screen(self) -> ChatScreen:
        return self.chat

    def get_line_filters(self) -> Sequence[LineFilter]:
        return [*super().get_line_filters(), *([self.ascii_filter] * self.ascii_filter.enabled)]

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return colours.defaults(self.current_theme)

    def use_theme(self, name: str) -> None:
        """Raises ThemeError."""
        theme = colours.textual_theme(name)
        self.register_theme(theme)
        self.theme = theme.name

    # The engine

    def on_mount(self) -> None:
        guard.on_signals(self.leave_for)
        self.set_interval(1.0, self.check_terminal)
        self.chat.prompt.text = draft.load()
        if self.greeting is not None:
            self.event_log.add(self.greeting, "$error")
            self.notify(self.greeting, severity="error", markup=False)
        self.run_engine()

    @work(exclusive=True, group="engine")
    async def run_engine(self) -> None:
        """Connects, then takes events until the engine's end."""
        await self.hang_up(shutdown=True)
        setup = replace(self.live.setup, turns=tuple(turn for turn in self.live.turns if turn.text))
        try:
            self.client = client = await self.connect(setup)
        except (OSError, EngineError) as error:
            await self.take(Error(sentence=f"The engine cannot be reached: {error}", fatal=True))
            return
        async for event in client.events():
            await self.take(event)
            # A burst of events must not keep the screen and the keys waiting.
            await asyncio.sleep(0)
        if self.live.phase != "dead":
            await self.take(Error(sentence="The engine has ended.", fatal=True))

    async def take(self, event: AnyEvent) -> None:
        self.live.take(event)
        self.event_log.take(event)
        await self.chat.show(event)
        if isinstance(event, Done | Ready | Welcome):
            await self.send_queued()

    async def request(self, request: AnyRequest) -> bool:
        """Sends; False where that cannot be. The end of a connection is told by its events."""
        if self.client is None or self.live.phase == "dead":
            return False
        try:
            await self.client.send(request)
        except EngineError as error:
            self.notify(str(error), severity="error", markup=False)
            return False
        return True

    def new_engine(self) -> None:
        """Starts an engine in place of one that ended; the chat goes over to it."""
        if self.live.phase == "dead":
            self.live.phase = "connecting"
            self.chat.started_again()
            self.run_engine()

    async def hang_up(self, shutdown: bool) -> None:
        """Leaves the engine, which may take its time to end, but not for ever."""
        client, self.client = self.client, None
        if client is not None:
            with contextlib.suppress(OSError, EngineError, TimeoutError):
                await asyncio.wait_for(client.close(shutdown=shutdown), GOODBYE)

    # The chat

    async def submit(self, text: str) -> None:
        """What the prompt sent: a message, or a command."""
        match parse(text):
            case Call() as call:
                await self.run_command(call)
            case Unknown(name, near):
                self.notify(f"There is no /{name}; did you mean /{near}?", severity="warning")
                self.chat.give_back(text)
            case Said(text) if self.chat.editing and self.live.phase == "idle":
                self.chat.editing = False
                await self.again(text)
            case Said(text):
                await self.ask(text)

    async def run_command(self, call: Call) -> None:
        try:
            await carry_out(self, call)
        except ValueError as error:
            self.notify(str(error), severity="warning", markup=False)
            self.chat.give_back(f"/{call.name} {call.argument}".strip())

    async def ask(self, text: str) -> None:
        """Sends a message, or keeps it until the engine can take it."""
        if self.live.phase != "idle":
            self.queue.append(text)
            self.chat.show_queue(self.queue)
            return
        self.live.asked(text)
        await self.chat.asked(text)
        if not await self.request(Ask(text)):
            self.live.turns.pop()
            self.live.phase = "idle"
            await self.chat.reload()
            self.chat.give_back(text)

    async def send_queued(self) -> None:
        if self.queue and self.live.phase == "idle":
            text = self.queue.pop(0)
            self.chat.show_queue(self.queue)
            await self.ask(text)

    async def again(self, text: str | None = None) -> None:
        """The last answer once more; with `text`, to another question."""
        if self.live.phase == "dead":
            self.new_engine()
        elif self.live.phase == "idle" and any(turn.role == "user" for turn in self.live.turns):
            self.live.again(text)
            await self.chat.reload()
            await self.request(Regenerate(text))
        else:
            self.notify("There is no finished answer to write again.")

    async def stop(self) -> None:
        """Stops the answer. What waited behind it goes back into the prompt."""
        if self.queue:
            self.chat.give_back("\n".join(self.queue))
            self.queue.clear()
            self.chat.show_queue(self.queue)
        await self.request(Stop())

    async def new_chat(self) -> None:
        """An empty chat with a session file of its own, where sessions are kept."""
        path = str(sessions.new_path()) if self.live.setup.session else None
        await self.open_chat((), path, Reset(path))

    async def open_session(self, name: str) -> None:
        try:
            session = sessions.load(sessions.path_of(name))
        except sessions.SessionError as error:
            self.notify(str(error), severity="error", markup=False)
            return
        if session.notice:
            self.notify(session.notice, markup=False)
        path = str(session.path)
        await self.open_chat(session.turns, path, Restore(session.turns, path))

    async def open_chat(
        self, turns: tuple[Turn, ...], session: str | None, request: Reset | Restore
    ) -> None:
        """Another chat in place of this one, whose answer is stopped first."""
        if self.live.busy:
            await self.stop()
        self.live.turns = list(turns)
        self.live.layers = None
        self.change_setup(session=session)
        await self.request(request)
        await self.chat.reload()

    def change_setup(self, **changes: Any) -> None:
        self.live.setup = replace(self.live.setup, **changes)

    async def change_watch(self, policy: Policy, limits: Limits) -> None:
        self.change_setup(policy=policy, limits=limits)
        await self.request(Watch(policy, limits))

    async def watch_and_retry(self) -> None:
        await self.change_watch("balanced", self.live.setup.limits)
        await self.again()

    async def lift_and_retry(self) -> None:
        await self.change_watch(self.live.setup.policy, Limits())
        await self.again()

    # Screens

    def open_layers(self) -> None:
        if self.live.layers is None or not self.live.layers.layers:
            self.notify("The cache is empty: ask something first.")
        else:
            self.push_screen(Layers(self.live), self.lower)

    async def lower(self, requests: list[Lower] | None) -> None:
        for request in requests or ():
            await self.request(request)

    def open_sessions(self) -> None:
        self.push_screen(Sessions(), self.session_chosen)

    async def session_chosen(self, name: str | None) -> None:
        if name is not None:
            await self.open_session(name)

    def open_help(self) -> None:
        self.push_screen(Help())

    def open_log(self) -> None:
        self.push_screen(LogScreen(self.event_log, paths.log()))

    def copy(self, text: str) -> None:
        """Copies by whatever way reaches the person's clipboard, and says which."""
        driver = self._driver  # Textual has no public way to send a sequence of one's own.
        write = driver.write if driver is not None else lambda sequence: None
        try:
            self.notify(clipboard.copy(text, paths.state() / "copied.txt", write))
        except OSError as error:
            self.notify(f"Nothing copied: {error}", severity="error")

    # The end

    async def action_quit(self) -> None:
        await self.leave(shutdown=True)

    async def action_interrupt(self) -> None:
        """Copies a selection; else stops an answer; else quits at the second time."""
        if selected := self.chat.selected_text():
            self.copy(selected)
        elif self.live.busy:
            await self.stop()
        elif time.monotonic() - self.interrupted < AGAIN:
            await self.leave(shutdown=True)
        else:
            self.interrupted = time.monotonic()
            self.notify("Press ^c again to quit.", timeout=AGAIN)

    async def leave(self, shutdown: bool, return_code: int = 0) -> None:
        """Ends the app. Without `shutdown` the engine goes on, to be attached to again."""
        draft.keep("\n".join([*self.queue, self.chat.prompt.text]))
        await self.hang_up(shutdown)
        self.exit(return_code=return_code)

    def leave_for(self, number: signal.Signals) -> None:
        """A lost terminal ends the app alone: the engine goes on, to be attached to again."""
        leaving = self.leave(number != signal.SIGHUP, 128 + number)
        self.run_worker(leaving, group="leaving", exclusive=True)

    def check_terminal(self) -> None:
        if not self.is_headless and guard.hung_up():
            self.leave_for(signal.SIGHUP)
