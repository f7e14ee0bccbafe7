"""Keys and commands, as they are bound."""

from collections.abc import Iterable

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from tui.commands import COMMANDS, usage

PROMPT = (
    ("enter", "send; while an answer is written, keep the message for later"),
    ("^j", "newline"),
    ("↑ ↓", "earlier messages, from the first and last row"),
    ("esc", "stop the answer, keep its text; else to the chat and back"),
    ("^c", "copy what is selected; else stop; twice: quit"),
    ("^o", "panels: beside the chat, on the whole screen, folded"),
    ("^l", "the cache layer by layer"),
    ("^g", "copy the last code block; again: the whole answer"),
    ("^r", "write the last answer again; start a new engine after one ended"),
    ("^f", "find in the chat"),
    ("^n", "new chat"),
    ("^s", "earlier chats"),
    ("^p", "commands"),
    ("pgup pgdn", "scroll the chat; ^home and ^end to its ends"),
    ("^q", "quit"),
)
CHAT = (
    ("j k g G", "scroll"),
    ("/ n N", "find, next, the one before"),
    ("y", "copy the answer"),
    ("e", "edit the last message and send it again"),
    ("r", "write the last answer again"),
    ("q", "back to the prompt"),
)


def table(rows: Iterable[tuple[str, str]], width: int) -> list[Content]:
    return [Content.assemble((f"  {key:<{width}}", "bold"), what) for key, what in rows]


class Help(ModalScreen[None]):
    BINDINGS = [Binding("escape,q,Q,question_mark,enter", "dismiss", "close")]  # noqa: RUF012

    def compose(self) -> ComposeResult:
        commands = [(usage(command), command.help) for command in COMMANDS]
        width = max(len(use) for use, _ in commands) + 2
        blank = Content("")
        rows = [
            Content.styled("In the prompt", "bold $accent"),
            *table(PROMPT, 12),
            blank,
            Content.styled("In the chat, after esc", "bold $accent"),
            *table(CHAT, 12),
            blank,
            Content.styled("Commands", "bold $accent"),
            *table(commands, width),
            blank,
            Content('A message that begins with a slash: write two, "//".'),
        ]
        with VerticalScroll(classes="box") as box:
            box.border_title = "help"
            box.border_subtitle = "esc closes"
            yield Static(Content("\n").join(rows))

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()
