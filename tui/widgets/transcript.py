"""The chat: finished blocks as drawn Markdown, the open one as a plain tail, all of it rows.

One line-API widget. What streams in is queued and laid out by one timer; a closed block is drawn
once; a new width or theme redraws what is in sight first and the rest in small slices. So neither
the length of the chat nor that of a list holds up the event loop.
"""

import math
from collections import deque
from collections.abc import Iterable
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Size
from textual.reactive import var
from textual.scroll_view import ScrollView
from textual.selection import Selection
from textual.strip import Strip
from textual.timer import Timer

from tui.messages import Turn
from tui.widgets.document import Document
from tui.widgets.entries import Note, Rule, UserTurn
from tui.widgets.palette import PARTS, Palette
from tui.widgets.search import Match, find
from tui.widgets.visible import visible

SLICE = 0.01
"""Seconds of drawing at a stretch, so that keys are answered in between."""
MARGIN = 1
"""Cells between the text and the scroll bar."""
STOPPED = "Stopped here."


class Transcript(ScrollView, can_focus=True):
    """Follows its end unless the reader has scrolled up; says then how much is below."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        *(f"transcript--{part}" for part in PARTS),
        "transcript--found",
        "transcript--badge",
    }
    DEFAULT_CSS = """
    Transcript {
        height: 1fr;
        padding: 0 0 0 1;
        overflow-x: hidden;
        scrollbar-gutter: stable;
        scrollbar-size-vertical: 1;
        color: $foreground;
        background: $background;
        & .transcript--text { color: $foreground; }
        & .transcript--quiet { color: $foreground 60%; }
        & .transcript--user { color: $primary; text-style: bold; }
        & .transcript--heading { color: $accent; text-style: bold underline; }
        & .transcript--subheading { color: $accent; text-style: bold; }
        & .transcript--marker { color: $primary; }
        & .transcript--quote { color: $secondary; }
        & .transcript--link { color: $secondary; text-style: underline; }
        & .transcript--rule { color: $foreground 30%; }
        & .transcript--action { color: $warning; }
        & .transcript--code { background: $panel; }
        & .transcript--keyword { color: $accent; }
        & .transcript--name { color: $primary; }
        & .transcript--string { color: $success; }
        & .transcript--number { color: $warning; }
        & .transcript--comment { color: $foreground 60%; text-style: italic; }
        & .transcript--found { color: $background; background: $warning; }
        & .transcript--badge { color: $background; background: $primary; text-style: bold; }
    }
    """

    following = var(True)
    """Whether the end stays in sight; set by scrolling to it, unset by scrolling up."""

    plain = var(False)
    """Whether answers are shown as they were written, their Markdown not drawn."""

    def __init__(self, *, flushes_per_second: float = 10, id: str | None = None) -> None:
        super().__init__(id=id)
        self.flushes_per_second = flushes_per_second
        self._document = Document(80, Palette())
        self._waiting: deque[str] = deque()
        self._timer: Timer | None = None
        self._drawing = False
        self._seen = 0
        self._query = ""
        self._found: Match = []

    # What the app tells it

    def add_user(self, text: str) -> None:
        self._document.add(UserTurn(visible(text)))
        self.follow()

    def add_rule(self, text: str) -> None:
        """A thin line with a text, above the block that is being written."""
        self._document.add(Rule(visible(text)))
        self._changed()

    def begin_answer(self) -> None:
        self._document.begin_answer()
        self._waiting.clear()
        if self._timer is None:
            self._timer = self.set_interval(1 / self.flushes_per_second, self.flush)

    def feed(self, text: str) -> None:
        """Take a piece of the answer; it is drawn at the next flush."""
        self._waiting.append(text)

    def end_answer(self, note: str | None = None) -> None:
        """The answer is complete, or ended as `note` says."""
        self._document.write(visible(self._stop_flushing()))
        self._document.end_answer()
        if note:
            self._document.add(Note(visible(note)))
        self._changed()

    def load(self, turns: Iterable[Turn]) -> None:
        """Show these turns instead of what is there."""
        self._stop_flushing()
        self._document = Document(self._document.width, self._document.palette)
        self._found = []
        for turn in turns:
            if turn.role == "user":
                self._document.add(UserTurn(visible(turn.text)))
            elif turn.role == "assistant":
                self._document.begin_answer()
                self._document.write(visible(turn.text))
                self._document.end_answer()
                if not turn.complete:
                    self._document.add(Note(STOPPED))
        self.follow()

    def last_answer(self) -> str:
        """The text of the last answer, or of the one that is being written."""
        self.flush()
        return self._document.last_answer()

    def code_blocks(self) -> list[str]:
        """The code of each finished fence; the first has number 1 on the screen."""
        return list(self._document.codes)

    def follow(self) -> None:
        """Go to the end and stay there."""
        self.following = True
        self._changed()

    # Content

    def flush(self) -> None:
        """Lay out what has arrived since the last time."""
        text = "".join(self._waiting)
        self._waiting.clear()
        if text.endswith("\r"):  # half a line end, perhaps
            self._waiting.append("\r")
            text = text[:-1]
        if not text:
            return
        changed_from = self._document.write(visible(text))
        if changed_from is None:
            self._changed()
        else:
            self.refresh_lines(changed_from, self._document.height - changed_from)

    def _stop_flushing(self) -> str:
        """Stop the timer; what it had still to lay out."""
        if self._timer is not None:
            self._timer.stop()
            self._timer = None
        text = "".join(self._waiting)
        self._waiting.clear()
        return text

    def _changed(self) -> None:
        """Show the document as it is now, the reader's place kept."""
        place = self._document.locate(round(self.scroll_y))
        unfinished = self._document.redraw(SLICE)
        self.virtual_size = Size(self._document.width, self._document.height)
        if self.following:
            self._show_row(self._document.height)
        else:
            self._show_row(self._document.find_again(place))
        self.refresh()
        if unfinished and not self._drawing:
            self._drawing = True
            self.call_later(self._go_on_drawing)

    def _go_on_drawing(self) -> None:
        self._drawing = False
        self._changed()

    def _show_row(self, y: int) -> None:
        # By force: a scroll bar that this very change calls for is not there yet.
        self.scroll_to(y=y, animate=False, force=True, immediate=True)

    def on_resize(self) -> None:
        self._restyle()
        self._changed()

    def notify_style_update(self) -> None:
        super().notify_style_update()
        if self.is_mounted:  # the components' styles follow the widget's own
            self.call_later(self._restyle)

    def watch_plain(self) -> None:
        if self.is_mounted:
            self._restyle()

    def _restyle(self) -> None:
        """Draw anew where the width or the theme has changed."""
        width = max(1, self.scrollable_content_region.width - MARGIN)
        styles = {part: self._style(f"transcript--{part}") for part in PARTS}
        palette = Palette(**styles, plain=self.plain)
        if (width, palette) != (self._document.width, self._document.palette):
            self._found = []
            top = round(self.scroll_y)
            self._document.change(width, palette, range(top, top + self.size.height))
            self._changed()

    def _style(self, component: str) -> Style:
        """A component's colours, its background only where it has one of its own."""
        style = self.get_component_rich_style(component)
        partial = self.get_component_rich_style(component, partial=True)
        bare = Style.from_color(
            style.color if partial.color else None, style.bgcolor if partial.bgcolor else None
        )
        return partial.without_color + bare

    # Scrolling

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self.following = round(new_value) >= self.max_scroll_y

    def action_scroll_end(self) -> None:
        self.follow()

    def action_scroll_home(self) -> None:
        self.scroll_home(animate=False)

    @property
    def new_lines(self) -> int:
        """Rows below the visible ones that the reader has not had in sight."""
        bottom = round(self.scroll_y) + self.size.height
        self._seen = self._document.height if self.following else max(self._seen, bottom)
        return max(0, self._document.height - self._seen)

    def on_click(self, event: events.Click) -> None:
        if not self.following and event.y == self.size.height - 1:
            self.follow()

    # Search

    def find(self, query: str) -> int:
        """How often the text occurs; the last occurrence is shown and marked."""
        self._query = query
        self._found = []
        return self.find_next(-1)

    def find_next(self, step: int = 1) -> int:
        """Show the next occurrence, or with -1 the one before, around the ends; how many."""
        self._document.redraw(math.inf)
        matches = find(self._document.texts(), self._query)
        if matches:
            if self._found in matches:
                index = (matches.index(self._found) + step) % len(matches)
            else:
                index = -1
            self._found = matches[index]
            self.following = False
            self._changed()
            self._show_row(self._found[0][0] - self.size.height // 2)
        else:
            self._found = []
        self.refresh()
        return len(matches)

    # Drawing

    def render_line(self, y: int) -> Strip:
        row = round(self.scroll_y) + y
        width = self.scrollable_content_region.width
        strip = Strip(self._document.row(row))
        for begin, end, style in self._marks(row):
            strip = _mark(strip, begin, end, style)
        strip = strip.apply_style(self.rich_style).adjust_cell_length(width, self.rich_style)
        strip = strip.apply_offsets(0, row)
        if y == self.size.height - 1 and (count := self.new_lines) and not self.following:
            strip = self._with_badge(strip, count, width)
        return strip

    def _marks(self, row: int) -> Iterable[tuple[int, int, Style]]:
        for found_row, begin, end in self._found:
            if found_row == row:
                yield begin, end, self._style("transcript--found")
        selection = self.text_selection
        if selection is not None and (span := selection.get_span(row)) is not None:
            yield *span, self.screen.get_component_rich_style("screen--selection")

    def _with_badge(self, strip: Strip, count: int, width: int) -> Strip:
        text = f" ↓ {count:,} new line{'s' if count > 1 else ''} "
        badge = Strip([Segment(text, self._style("transcript--badge"))])
        return Strip.join([strip.crop(0, max(0, width - badge.cell_length)), badge])

    # Selection by mouse

    @property
    def allow_select(self) -> bool:
        return True

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        text = selection.extract("\n".join(self._document.texts()))
        return "\n".join(line.rstrip() for line in text.split("\n")), "\n"

    def selection_updated(self, selection: Selection | None) -> None:
        self.refresh()


def _mark(strip: Strip, begin: int, end: int, style: Style) -> Strip:
    """The strip with the characters from `begin` to `end` (-1: the last) in another style."""
    length = len(strip.text)
    end = length if end == -1 else min(end, length)
    if begin >= end:
        return strip
    cuts = [strip.index_to_cell_position(index) for index in (begin, end)]
    before, marked, after = strip.divide([*cuts, strip.cell_length])
    return Strip.join([before, Strip(Segment.apply_style(marked, post_style=style)), after])
