"""A box in the chat that says what happened and what can be done, a key for each choice."""

from collections.abc import Callable
from dataclasses import dataclass

from textual import events
from textual.content import Content
from textual.message import Message
from textual.widgets import Static

from tui.widgets.panel import MUTED


@dataclass(frozen=True)
class Choice:
    key: str
    label: str
    act: Callable[[], object]


@dataclass(frozen=True)
class Said:
    title: str
    sentence: str
    choices: tuple[Choice, ...] = ()
    error: bool = False


class Notice(Static):
    """Takes the keys of its choices while it has the focus; esc closes it."""

    can_focus = True

    class Closed(Message):
        """The box was answered or closed."""

    class Typed(Message):
        """A key that is no choice: it was meant for the prompt."""

        def __init__(self, character: str) -> None:
            super().__init__()
            self.character = character

    def __init__(self) -> None:
        super().__init__(id="notice")
        self.choices: dict[str, Choice] = {}
        self.display = False

    def show(self, what: Said) -> None:
        self.choices = {choice.key: choice for choice in what.choices}
        keys = [(choice.key, choice.label, "") for choice in what.choices]
        rows = [
            Content.assemble((f" {key} ", "bold $accent"), (label, style))
            for key, label, style in (*keys, ("esc", "close", MUTED))
        ]
        self.border_title = what.title
        self.set_class(what.error, "-error")
        self.update(Content("\n").join([Content(what.sentence), Content(""), *rows]))
        self.display = True

    def close(self) -> None:
        self.display = False
        self.choices = {}
        self.post_message(self.Closed())

    def on_key(self, event: events.Key) -> None:
        if event.key == "escape":
            event.stop()
            self.close()
        elif choice := self.choices.get((event.character or "").lower()):
            event.stop()
            self.close()
            self.call_later(choice.act)
        elif event.is_printable and event.character:
            event.stop()
            self.post_message(self.Typed(event.character))
