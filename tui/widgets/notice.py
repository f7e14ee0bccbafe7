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

    def show(self, title: str, sentence: str, *choices: Choice, error: bool = False) -> None:
        self.choices = {choice.key: choice for choice in choices}
        rows = [Content(sentence)]
        if choices:
            rows.append(Content(""))
        rows.extend(
            Content.assemble((f" {choice.key} ", "bold $accent"), choice.label)
            for choice in choices
        )
        rows.append(Content.assemble((" esc ", "bold $accent"), ("close", MUTED)))
        self.border_title = title
        self.set_class(error, "-error")
        self.update(Content("\n").join(rows))
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
