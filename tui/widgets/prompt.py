"""Where the person writes: several lines, history, large pastes, commands that complete."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.actions import SkipAction
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import TextArea
from textual.widgets.text_area import Edit, EditResult

from tui.widgets.folds import Folds
from tui.widgets.history import History
from tui.widgets.visible import visible

BINARY_SHARE = 0.05
"""More control characters than this in a paste, and it is no text."""


@dataclass(frozen=True)
class Completion:
    """A command that can be typed after a slash, and what it does in a few words."""

    command: str
    description: str


class Prompt(TextArea):
    """Enter sends; the draft stays until it has been sent, whatever goes on elsewhere."""

    DEFAULT_CSS = """
    Prompt {
        height: auto;
        max-height: 10;
        padding: 0 1;
        scrollbar-size-vertical: 1;
        color: $foreground;
        background: $background;
        & .text-area--placeholder { color: $foreground 60%; }
        & .text-area--suggestion { color: $foreground 60%; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "send", "send", id="send"),
        Binding("ctrl+j,alt+enter,shift+enter", "newline", "newline", id="newline"),
        Binding("tab", "complete", "complete a command", id="complete", show=False),
        Binding("ctrl+d", "delete_or_quit", "quit, if empty", id="end_of_input", show=False),
    ]

    class Submitted(Message):
        """The draft was sent; it is in the prompt's history now, and may be kept in a file."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    class EndOfInput(Message):
        """^d on an empty prompt: the person wants to leave."""

    def __init__(
        self,
        *,
        history: Iterable[str] = (),
        completions: Sequence[Completion] = (),
        placeholder: str = "Ask, or / for commands",
        id: str | None = None,
    ) -> None:
        self.past = History(history)
        self.completions = completions
        self._folds = Folds()
        self._cycle: list[str] = []
        super().__init__(placeholder=placeholder, id=id, compact=True, highlight_cursor_line=False)

    @property
    def text(self) -> str:
        """The draft, pastes in full. Setting it puts the cursor at the end."""
        return self._folds.unfold(self.document.text)

    @text.setter
    def text(self, value: str) -> None:
        self.load_text(self._folds.fold(visible(value)))
        self.move_cursor(self.document.end)

    # Sending

    async def _on_key(self, event: events.Key) -> None:
        # Not as priority bindings, which the app runs at once: where it is busy, they would
        # overtake the characters that were typed before.
        for binding in self._bindings.key_to_bindings.get(event.key, ()):
            if binding.id in ("send", "newline"):
                event.stop()
                event.prevent_default()
                await self.run_action(binding.action)
                return
        await super()._on_key(event)

    def action_send(self) -> None:
        text = self.text
        if text.strip():
            self.past.add(text)
            self.text = ""
            self.post_message(self.Submitted(text))

    def action_newline(self) -> None:
        self._replace_via_keyboard("\n", *self.selection)

    def action_delete_or_quit(self) -> None:
        if self.document.text:
            self.action_delete_right()
        else:
            self.post_message(self.EndOfInput())

    # History

    def action_cursor_up(self, select: bool = False) -> None:
        if select or not self.cursor_at_first_line:
            super().action_cursor_up(select)
        elif (older := self.past.older(self.text)) is not None:
            self.text = older

    def action_cursor_down(self, select: bool = False) -> None:
        if select or not self.cursor_at_last_line:
            super().action_cursor_down(select)
        elif (newer := self.past.newer(self.text)) is not None:
            self.text = newer

    # Pasting

    async def _on_paste(self, event: events.Paste) -> None:
        event.stop()
        event.prevent_default()
        text = event.text.replace("\r\n", "\n").replace("\r", "\n")
        if controls := _binary(text):
            self.notify(
                f"The paste was not taken: it is binary, with {controls:,} control characters. "
                "Paste text, or its path.",
                severity="warning",
            )
            return
        result = self._replace_via_keyboard(self._folds.fold(visible(text)), *self.selection)
        if result is not None:
            self.move_cursor(result.end_location)
        self.focus()

    def edit(self, edit: Edit) -> EditResult:
        """A folded paste is replaced whole, or not at all."""
        (top, left), (bottom, right) = sorted((edit.from_location, edit.to_location))
        if top == bottom:
            left, right = self._folds.widen(self.document.get_line(top), left, right)
        else:
            left, _ = self._folds.widen(self.document.get_line(top), left, left + 1)
            _, right = self._folds.widen(self.document.get_line(bottom), max(0, right - 1), right)
        edit.from_location, edit.to_location = (top, left), (bottom, right)
        return super().edit(edit)

    # Commands

    def update_suggestion(self) -> None:
        """Offer the rest of the first command that fits; say below what it does."""
        matches = self._matches(self.document.text)
        self.border_subtitle = self._describe(matches)
        self.suggestion = ""
        if matches and self.cursor_location == self.document.end:
            self.suggestion = f"/{matches[0].command}"[len(self.document.text) :]

    def action_complete(self) -> None:
        """Take the first command that fits; again, the next."""
        typed = self.document.text
        if typed.endswith(" ") and typed.rstrip() in self._cycle:
            following = self._cycle.index(typed.rstrip()) + 1
        else:
            self._cycle = [f"/{each.command}" for each in self._matches(typed)]
            following = 0
        if not self._cycle:
            raise SkipAction
        self.load_text(f"{self._cycle[following % len(self._cycle)]} ")
        self.move_cursor(self.document.end)

    def _matches(self, typed: str) -> list[Completion]:
        if not typed.startswith("/"):
            return []
        return [each for each in self.completions if each.command.startswith(typed[1:])]

    def _describe(self, matches: list[Completion]) -> str:
        if not matches:
            return ""
        first, *more = matches
        others = f"  tab tab: {' '.join(f'/{each.command}' for each in more[:4])}" if more else ""
        return f"/{first.command}: {first.description}{others}"


def _binary(text: str) -> int:
    """How many control characters make the text binary; 0 for what is text."""
    controls = len(_CONTROLS.findall(text))
    return controls if "\0" in text or controls > BINARY_SHARE * len(text) else 0


_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ufffd]")
