"""What the panels share: rows of text made from the live state, redrawn only where they changed."""

import time

from textual.content import Content
from textual.geometry import Region
from textual.strip import Strip
from textual.visual import Visual
from textual.widget import Widget

from tui.live import Live

MUTED = "$muted"
Piece = str | tuple[str, str]


def text(*pieces: Piece) -> Content:
    """Pieces in a row, each plain or with a style."""
    return Content.assemble(*pieces)


def spread(width: int, left: Content, right: Content) -> Content:
    """`left` and `right` at the two ends of a row; `right` gives way where both do not fit."""
    gap = width - left.cell_length - right.cell_length
    return left if gap < 1 else Content.assemble(left, " " * gap, right)


class Panel(Widget):
    """A bordered block of rows. It computes only while it is shown."""

    TITLE = ""
    can_focus = False

    def __init__(self, live: Live, id: str | None = None) -> None:
        super().__init__(id=id)
        self.live = live
        self.drawn: list[Content] = []
        self.border_title = self.TITLE

    def rows(self, width: int, height: int, now: float) -> list[Content]:
        """The rows to draw in `width` by `height` cells."""
        raise NotImplementedError

    def note(self, now: float) -> str:
        """What the lower border says."""
        age = self.live.age(now)
        return "" if age is None else f"{int(age)} s old"

    def tick(self, now: float) -> None:
        """Draws what changed since the last call."""
        width, height = self.content_size
        if not width or not height or not self.is_on_screen:
            return
        before = self.drawn
        self.drawn = [row.truncate(width) for row in self.rows(width, height, now)[:height]]
        for y in range(max(len(before), len(self.drawn))):
            same = y < min(len(before), len(self.drawn)) and before[y].is_same(self.drawn[y])
            if not same:
                self.refresh(Region(0, y, width, 1))
        self.set_class(self.live.age(now) is not None or self.live.phase == "dead", "-stale")
        if self.border_subtitle != (note := self.note(now)):
            self.border_subtitle = note

    def on_resize(self) -> None:
        self.drawn = []
        self.tick(time.monotonic())

    def on_show(self) -> None:
        self.tick(time.monotonic())

    def render_line(self, y: int) -> Strip:
        if y >= len(self.drawn):
            return Strip.blank(self.content_size.width, self.rich_style)
        strips = Visual.to_strips(
            self, self.drawn[y], self.content_size.width, 1, self.visual_style
        )
        return strips[0]
