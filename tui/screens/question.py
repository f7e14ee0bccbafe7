"""One question, answered yes or no."""

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static


class Question(ModalScreen[bool]):
    """Gives True for yes. Anything but y or enter is no."""

    BINDINGS = [  # noqa: RUF012
        Binding("y,Y,enter", "answer(True)", "yes"),
        Binding("n,N,escape,q", "answer(False)", "no"),
    ]

    def __init__(self, sentence: str) -> None:
        super().__init__()
        self.sentence = sentence

    def compose(self) -> ComposeResult:
        with Vertical(classes="box -narrow-box"):
            yield Static(self.sentence, markup=False)
            yield Static("[b]y[/] yes   [b]n[/] no", classes="hint")

    def action_answer(self, yes: bool) -> None:
        self.dismiss(yes)
