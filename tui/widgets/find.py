"""The row in which a text to find in the chat is typed."""

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.message import Message
from textual.widgets import Input, Static

from tui.widgets.transcript import Transcript


class Find(Horizontal):
    """Shows the last occurrence while typing; enter and the arrows go on to others."""

    class Closed(Message):
        """The search is over; what was found stays in sight."""

    def __init__(self, transcript: Transcript) -> None:
        super().__init__(id="find")
        self.transcript = transcript
        self.display = False

    def compose(self) -> ComposeResult:
        yield Static("find", id="find-label")
        yield Input(compact=True, select_on_focus=True)
        yield Static(id="find-count")

    def open(self) -> None:
        self.display = True
        self.query_one(Input).focus()

    def close(self) -> None:
        self.display = False
        self.post_message(self.Closed())

    def step(self, direction: int) -> None:
        self.count(self.transcript.find_next(direction))

    def count(self, matches: int) -> None:
        what = "nothing" if not matches else "1 place" if matches == 1 else f"{matches:,} places"
        self.query_one("#find-count", Static).update(f"{what}   ↑ ↓ others   esc closes")

    @on(Input.Changed)
    def typed(self, event: Input.Changed) -> None:
        event.stop()
        if event.value.strip():
            self.count(self.transcript.find(event.value))
        else:
            self.query_one("#find-count", Static).update("esc closes")

    @on(Input.Submitted)
    def another(self, event: Input.Submitted) -> None:
        event.stop()
        self.step(-1)

    def on_key(self, event: events.Key) -> None:
        if event.key in ("escape", "up", "down"):
            event.stop()
            event.prevent_default()
            if event.key == "escape":
                self.close()
            else:
                self.step(-1 if event.key == "up" else 1)
