"""One line on a terminal that says how far a thing is, drawn over itself, gone when it is done."""

import shutil
from typing import TextIO

from tui import figures
from tui.messages import AnyEvent, Done, Error, Loading, Prefill, Ready, Token
from tui.sentences import STAGES

BAR = 20


class ProgressLine:
    """Draws nothing where `out` is no terminal."""

    def __init__(self, out: TextIO | None) -> None:
        self._out = out if out is not None and out.isatty() else None
        self._drawn = False

    def show(self, event: AnyEvent) -> None:
        """Draws a Loading or a Prefill; what comes after them takes the line away."""
        match event:
            case Loading(stage=stage, done=done, total=total):
                amounts = f"{figures.size(done)} of {figures.size(total)}"
                self._draw(STAGES[stage], done, total, amounts if stage == "download" else "")
            case Prefill(done=done, total=total):
                self._draw("reading the prompt", done, total, f"{done:,} of {total:,} tokens")
            case Ready() | Token() | Done() | Error():
                self.clear()

    def clear(self) -> None:
        if self._out is not None and self._drawn:
            self._out.write("\r\x1b[K")
            self._out.flush()
        self._drawn = False

    def _draw(self, what: str, done: int, total: int | None, amounts: str) -> None:
        if self._out is None:
            return
        filled = min(BAR, BAR * done // total) if total else 0
        bar = "#" * filled + "." * (BAR - filled)
        width = shutil.get_terminal_size().columns
        self._out.write("\r\x1b[K" + f"{what} [{bar}] {amounts}".rstrip()[: width - 1])
        self._out.flush()
        self._drawn = True
