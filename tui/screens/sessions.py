"""Earlier chats, the latest first."""

import time

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from tui import sessions


def when(name: str) -> str:
    """The day and hour of the session's last turn."""
    try:
        changed = sessions.path_of(name).stat().st_mtime
    except (OSError, sessions.SessionError):
        return ""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(changed))


def line(name: str) -> Content:
    """A session as a row: when, how long, its first question. One that is broken says so."""
    try:
        session = sessions.load(sessions.path_of(name))
    except sessions.SessionError:
        return Content.assemble((f"{when(name):<17} ", "$muted"), (f"{name}: broken", "$error"))
    questions = sum(turn.role == "user" for turn in session.turns)
    return Content.assemble(
        (f"{when(name):<17}", "$muted"), f"{questions:>4}  ", session.title or name
    )


class Sessions(ModalScreen[str | None]):
    """Gives the name of the session to go on with."""

    BINDINGS = [Binding("escape,q,Q", "dismiss", "close")]  # noqa: RUF012

    def compose(self) -> ComposeResult:
        with Vertical(classes="box") as box:
            box.border_title = "earlier chats"
            box.border_subtitle = "enter goes on with one, esc closes"
            yield OptionList()

    def on_mount(self) -> None:
        self.fill()

    @work(thread=True)
    def fill(self) -> None:
        """Reads the files off the event loop: there may be hundreds."""
        options = [Option(line(name), id=name) for name in sessions.names()]
        self.app.call_from_thread(self.show, options)

    def show(self, options: list[Option]) -> None:
        choices = self.query_one(OptionList)
        choices.add_options(options or [Option("No chat has been kept yet.", disabled=True)])
        choices.highlighted = 0
        choices.focus()

    @on(OptionList.OptionSelected)
    def chosen(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option.id)
