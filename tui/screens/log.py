"""All that happened since the start."""

from pathlib import Path

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from tui.widgets.event_log import EventLog, wrapped

WIDTH = 100


class LogScreen(ModalScreen[None]):
    BINDINGS = [Binding("escape,q,Q,enter", "dismiss", "close")]  # noqa: RUF012

    def __init__(self, log: EventLog, file: Path) -> None:
        super().__init__()
        self.events = log
        self.file = file

    def compose(self) -> ComposeResult:
        width = min(WIDTH, self.app.size.width - 8)
        rows = [row for entry in self.events.entries for row in wrapped(entry, width)]
        with VerticalScroll(classes="box") as box:
            box.border_title = "events"
            box.border_subtitle = f"the engine's own log: {self.file}"
            yield Static(Content("\n").join(rows or [Content("Nothing has happened yet.")]))

    def on_mount(self) -> None:
        box = self.query_one(VerticalScroll)
        box.focus()
        box.scroll_end(animate=False)
