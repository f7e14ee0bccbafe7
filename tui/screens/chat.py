"""The main screen: the chat, and the panels beside it where there is room."""

import time
from typing import TYPE_CHECKING, cast

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Container, Vertical
from textual.screen import Screen
from textual.widgets import Static

from tui import keys, notices, past_prompts
from tui.commands import COMMANDS
from tui.guard import over_ssh
from tui.live import Live
from tui.messages import Acted, AnyEvent, Began, Done, Error, Token, Turn, Welcome
from tui.sentences import ENDS, together
from tui.widgets.event_log import EventLog, EventPanel
from tui.widgets.find import Find
from tui.widgets.key_bar import KeyBar
from tui.widgets.layer_map import LayerMap
from tui.widgets.memory_panel import MemoryPanel
from tui.widgets.notice import Notice, Said
from tui.widgets.panel import Panel
from tui.widgets.progress import Progress
from tui.widgets.projection import ProjectionPanel
from tui.widgets.prompt import Completion, Prompt
from tui.widgets.status_line import StatusLine
from tui.widgets.throughput import ThroughputPanel
from tui.widgets.transcript import Transcript

if TYPE_CHECKING:
    from tui.app import VeloxquantApp

SMALLEST = (60, 16)
AT_ONCE = 0.3
"""Seconds within which acts of the watchdog are told of together."""
SIDE, TABLE = 100, 160
"""The least widths for the side column, and for the layer table next to it."""


class ChatScreen(Screen[None]):
    HORIZONTAL_BREAKPOINTS = [(0, "-tiny"), (60, "-narrow"), (SIDE, "-side"), (TABLE, "-table")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-flat"), (16, "-short"), (30, "-middle"), (38, "-tall")]  # noqa: RUF012
    AUTO_FOCUS = "Prompt"
    BINDINGS = keys.CHAT

    def __init__(self, live: Live, log: EventLog) -> None:
        super().__init__(id="chat")
        self.live = live
        self.events = log
        # A slow line is not to be kept busy by one answer's text, nor by a blinking cursor.
        slow = over_ssh()
        self.transcript = Transcript(flushes_per_second=4 if slow else 10)
        self.prompt = Prompt(
            history=past_prompts.load(),
            completions=[Completion(command.name, command.help) for command in COMMANDS],
        )
        self.prompt.cursor_blink = not slow
        self.notice = Notice()
        self.progress = Progress(live, id="progress")
        self.queued = Static(id="queued", markup=False)
        self.finder = Find(self.transcript)
        self.grabs = 0
        self.ticked = 0.0
        self.editing = False
        self.answering = False
        self.acts: list[Acted] = []

    def compose(self) -> ComposeResult:
        yield StatusLine(self.live, id="status")
        with Container(id="body"):
            with Vertical(id="pane"):
                yield self.transcript
                yield self.notice
                yield self.progress
                yield self.queued
                yield self.finder
                yield self.prompt
            yield LayerMap(self.live, id="table", table=True)
            with Container(id="side"):
                with Vertical(id="gauges"):
                    yield MemoryPanel(self.live)
                    yield ProjectionPanel(self.live)
                    yield ThroughputPanel(self.live)
                with Vertical(id="lists"):
                    yield LayerMap(self.live, id="map")
                    yield EventPanel(self.live, self.events)
        yield KeyBar(self.live, id="keys")
        yield Static(id="small")

    @property
    def velox(self) -> "VeloxquantApp":
        return cast("VeloxquantApp", self.app)

    def on_mount(self) -> None:
        self.queued.display = False
        self.set_interval(1.0, self.tick)

    def tick(self) -> None:
        """Draws every panel that is shown, at most once a second and all at once."""
        now = time.monotonic()
        self.ticked = now
        self.progress.display = self.progress.wanted
        with self.app.batch_update():
            for panel in self.query(Panel):
                panel.tick(now)

    def refresh_status(self) -> None:
        """What goes on has changed: that is said at once, the figures wait for their turn."""
        now = time.monotonic()
        self.progress.display = self.progress.wanted
        with self.app.batch_update():
            self.query_one(StatusLine).tick(now)
            self.query_one(KeyBar).tick(now)
            self.progress.tick(now)

    def on_resize(self, event: events.Resize) -> None:
        width, height = event.size
        least = f"{SMALLEST[0]}×{SMALLEST[1]}"
        self.query_one("#small", Static).update(
            f"Too small: {least} needed, this is {width}×{height}.\nThe chat goes on."
        )

    # What the engine says

    async def show(self, event: AnyEvent) -> None:
        """Brings the chat up to date; the panels follow with their own tick."""
        match event:
            case Token():
                if not self.answering:
                    self.begin_answer()
                self.transcript.feed(event.text)
                return
            case Welcome():
                await self.reload()
            case Began():
                self.begin_answer()
            case Acted():
                self.note_act(event)
                for map in self.query(LayerMap):
                    map.flash(event.layers)
            case Done():
                self.end_answer(event)
            case Error():
                self.failed(event)
            case _:
                return
        self.refresh_status()

    def begin_answer(self) -> None:
        if not self.answering:
            self.transcript.begin_answer()
            self.answering = True
            self.grabs = 0

    def note_act(self, event: Acted) -> None:
        """A line in the chat where the cache became less precise: one for acts that follow at
        once."""
        if event.act == "stop":
            return  # the answer's end says it
        if not self.acts:
            self.set_timer(AT_ONCE, self.rule_off)
        self.acts.append(event)

    def rule_off(self) -> None:
        self.transcript.add_rule(f"{time.strftime('%H:%M:%S')} {together(self.acts)}")
        self.acts.clear()

    def end_answer(self, done: Done) -> None:
        if done.reason == "stop":
            note = None
        elif done.reason == "memory":
            note = ENDS[done.reason]  # the box has the sentence
        else:
            note = done.sentence or ENDS[done.reason]
        if self.answering:
            self.transcript.end_answer(note)
        elif note:
            self.transcript.add_rule(note)
        self.answering = False
        if self.velox.live.refused is not None:
            self.give_back(self.velox.live.refused)
        if done.reason == "memory":
            self.show_notice(notices.memory_stop(self.velox, done))

    def failed(self, error: Error) -> None:
        if not error.fatal:
            self.transcript.add_rule(error.sentence)
            return
        if self.answering:
            self.transcript.end_answer("the engine ended here")
            self.answering = False
        self.show_notice(notices.engine_ended(self.velox, error))

    def show_notice(self, what: Said) -> None:
        self.notice.show(what)
        # Who is in the midst of a message keeps the keys.
        if what.choices and not self.prompt.text.strip():
            self.notice.focus()

    @on(Notice.Closed)
    def notice_closed(self) -> None:
        if self.focused is None or self.focused is self.notice:
            self.prompt.focus()

    @on(Notice.Typed)
    def typed_at_notice(self, message: Notice.Typed) -> None:
        self.prompt.focus()
        self.prompt.insert(message.character)

    @on(Find.Closed)
    def find_closed(self) -> None:
        self.transcript.focus()

    def started_again(self) -> None:
        self.notice.close()
        self.refresh_status()

    # What the person writes

    @on(Prompt.Submitted)
    async def submitted(self, message: Prompt.Submitted) -> None:
        past_prompts.add(message.text)
        await self.velox.submit(message.text)

    @on(Prompt.EndOfInput)
    async def end_of_input(self) -> None:
        await self.velox.action_quit()

    async def asked(self, text: str) -> None:
        self.transcript.add_user(text)
        self.refresh_status()

    async def reload(self) -> None:
        """The whole chat anew, from its turns; a last answer that is being written goes on."""
        turns = list(self.live.turns)
        last = turns[-1] if turns else None
        self.answering = False
        if last is not None and self.live.busy and last.role == "assistant":
            self.transcript.load(turns[:-1])
            self.begin_answer()
            self.transcript.feed(last.text)
        else:
            self.transcript.load(turns)

    def show_queue(self, queue: list[str]) -> None:
        self.queued.display = bool(queue)
        if queue:
            first = queue[0].strip().splitlines()[0]
            more = f" and {len(queue) - 1} more" if len(queue) > 1 else ""
            self.queued.update(f" queued{more}: {first}")

    def give_back(self, text: str) -> None:
        """Puts text before what is being written."""
        draft = self.prompt.text
        self.prompt.text = f"{text}\n{draft}" if draft.strip() else text
        self.prompt.move_cursor(self.prompt.document.end)

    def focus_prompt(self) -> None:
        self.prompt.focus()
        self.prompt.move_cursor(self.prompt.document.end)

    def selected_text(self) -> str | None:
        if self.prompt.has_focus and self.prompt.selected_text:
            return self.prompt.selected_text
        return self.get_selected_text()

    def last_question(self) -> Turn | None:
        return next((turn for turn in reversed(self.live.turns) if turn.role == "user"), None)

    # Keys

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        bar = self.query_one(KeyBar)
        bar.in_transcript = self.focused is self.transcript
        bar.tick(time.monotonic())

    async def action_stop(self) -> None:
        if self.live.busy or self.live.phase == "loading":
            await self.velox.stop()
        elif self.editing:
            self.editing = False
            self.notify("The message is new again, it replaces nothing.")
        elif self.prompt.has_focus:
            self.transcript.focus()
        else:
            self.prompt.focus()

    def action_panels(self) -> None:
        """Beside, full, folded; where there is no room beside, folded and full."""
        beside = self.size.width >= SIDE
        if self.has_class("-full"):
            self.remove_class("-full")
            self.set_class(beside, "-folded")
        elif self.has_class("-folded"):
            self.remove_class("-folded")
            self.set_class(not beside, "-full")
        else:
            self.add_class("-full")
        if self.has_class("-full"):
            self.set_focus(None)
        else:
            self.prompt.focus()
        self.call_after_refresh(self.tick)

    def action_layers(self) -> None:
        self.velox.open_layers()

    def action_sessions(self) -> None:
        self.velox.open_sessions()

    def action_help(self) -> None:
        self.velox.open_help()

    async def action_new(self) -> None:
        await self.velox.new_chat()

    async def action_again(self) -> None:
        await self.velox.again()

    def action_grab(self) -> None:
        """The last code block; at once again, the whole answer."""
        blocks = self.transcript.code_blocks()
        answer = self.transcript.last_answer()
        self.grabs += 1
        if blocks and self.grabs % 2:
            self.velox.copy(blocks[-1])
        elif answer:
            self.velox.copy(answer)
        else:
            self.notify("There is no answer to copy yet.")

    def action_copy_answer(self) -> None:
        if answer := self.transcript.last_answer():
            self.velox.copy(answer)
        else:
            self.notify("There is no answer to copy yet.")

    def action_edit(self) -> None:
        """Takes the last message into the prompt; sent from there, it replaces the old one."""
        question = self.last_question()
        if question is None:
            self.notify("There is no message to edit yet.")
        elif self.live.busy:
            self.notify("The answer is still being written: esc stops it.")
        else:
            if self.prompt.text != question.text:
                self.give_back(question.text)
            self.editing = True
            self.focus_prompt()
            self.notify("Sending replaces the last message; esc sends it as a new one.")

    def action_scroll(self, where: str) -> None:
        if where == "end":
            self.transcript.follow()
        else:
            getattr(self.transcript, f"scroll_{where}")(animate=False)

    def action_focus_prompt(self) -> None:
        self.focus_prompt()

    def action_find(self) -> None:
        self.finder.open()

    def action_find_next(self, step: int) -> None:
        self.finder.step(step)
