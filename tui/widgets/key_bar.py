"""The bottom row: the keys that matter now, as many as fit."""

from textual.content import Content

from tui.widgets.panel import MUTED, Panel, Piece, text

WRITING = (("esc", "stop"),)
IDLE = (("enter", "send"),)
ALWAYS = (
    ("^j", "newline"),
    ("^p", "commands"),
    ("^o", "panels"),
    ("^q", "quit"),
    ("^l", "layers"),
    ("^g", "copy"),
    ("^r", "regenerate"),
    ("^f", "find"),
    ("^n", "new"),
    ("^s", "sessions"),
    ("pgup", "scroll"),
)
DEAD = (("^r", "new engine"),)
READING = (("tab", "prompt"), ("j k", "scroll"), ("y", "copy"), ("e", "edit"), ("?", "help"))


class KeyBar(Panel):
    """`in_transcript` is set while the transcript, not the prompt, has the keys."""

    in_transcript = False

    def rows(self, width: int, height: int, now: float) -> list[Content]:
        if self.live.phase == "dead":
            first = DEAD
        elif self.live.busy:
            first = WRITING
        else:
            first = () if self.in_transcript else IDLE
        pieces: list[Piece] = []
        for key, what in (*first, *(READING if self.in_transcript else ()), *ALWAYS):
            if what == "regenerate" and self.live.phase == "dead":
                continue
            more: list[Piece] = [" " if not pieces else "  ", (key, "bold"), (f" {what}", MUTED)]
            if text(*pieces, *more).cell_length >= width:
                break
            pieces.extend(more)
        return [text(*pieces)]

    def note(self, now: float) -> str:
        return ""
