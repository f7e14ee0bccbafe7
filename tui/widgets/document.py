"""What a transcript holds, as rows at one width: the entries, and the open end of an answer."""

from collections import deque
from collections.abc import Iterable
from io import StringIO
from time import perf_counter

from rich.console import Console
from rich.segment import Segment
from rich.text import Text

from tui.widgets.blocks import Block, Blocks
from tui.widgets.column import Column, Row
from tui.widgets.entries import Answer, Entry
from tui.widgets.palette import Palette
from tui.widgets.tail import Tail

FENCES = ("```", "~~~")


class Document:
    """Draws each entry once, and again after a new width or palette, a few at a time."""

    def __init__(self, width: int, palette: Palette) -> None:
        self.width = width
        self.palette = palette
        self.codes: list[str] = []
        """The code of each finished fence; the first is number 1 on the screen."""
        self._column = Column()
        self._stale: deque[int] = deque()
        self._blocks = Blocks()
        self._tail: Tail | None = None
        self._answer_start = 0

    @property
    def height(self) -> int:
        return self.tail_start + len(self._tail) if self._tail else self._column.height

    @property
    def tail_start(self) -> int:
        """The row that the open block begins at."""
        height = self._column.height
        return height + 1 if height and not self._blocks.continues else height

    def add(self, entry: Entry) -> None:
        """Add an entry; `redraw` draws it, the newest first."""
        self._stale.appendleft(len(self._column))
        self._column.append(entry)

    # The answer that is being written

    def begin_answer(self) -> None:
        self._answer_start = len(self._column)
        self._blocks = Blocks()
        self._tail = Tail(self.width)

    def write(self, text: str) -> int | None:
        """Take a piece of the answer; the first row that changed, None where more than that did."""
        if self._tail is None:
            self.begin_answer()
        assert self._tail is not None
        rows_before = len(self._tail)
        closed = self._blocks.feed(text)
        if not closed:
            first = self._append(text)
            return None if len(self._tail) != rows_before else self.tail_start + first
        self._add_blocks(closed)
        self._tail = Tail(self.width)
        self._append(self._blocks.open)
        return None

    def end_answer(self) -> None:
        self._add_blocks(self._blocks.finish())
        self._tail = None
        self._resolve_references()

    def last_answer(self) -> str:
        """The text of the last answer, or of the one that is being written."""
        entries = self._column.entries[self._answer_start :]
        closed = [entry.block.text for entry in entries if isinstance(entry, Answer)]
        return "".join(closed) + self._blocks.open

    def _append(self, text: str) -> int:
        assert self._tail is not None
        return self._tail.append(text if len(self._tail) else text.lstrip("\n"))

    def _add_blocks(self, blocks: Iterable[Block]) -> None:
        for block in blocks:
            previous = self._column.entries[-1] if len(self._column) else None
            answer = Answer(
                block,
                number=len(self.codes) + 1,
                previous=previous if isinstance(previous, Answer) else None,
            )
            codes = answer.code
            if codes and block.opening.lstrip().startswith(FENCES):
                self.codes[-1] += codes.pop(0)
            self.codes += codes
            self.add(answer)

    def _resolve_references(self) -> None:
        """Draw again the blocks whose links another block of the answer defines."""
        entries = self._column.entries
        answers = [
            (index, entry)
            for index, entry in enumerate(entries[self._answer_start :], self._answer_start)
            if isinstance(entry, Answer)
        ]
        definitions = "\n".join(line for _, entry in answers for line in entry.block.definitions)
        if not definitions:
            return
        for index, entry in answers:
            if "[" in entry.block.text and not entry.block.opening:
                entries[index] = Answer(entry.block, entry.number, entry.previous, definitions)
                self._stale.append(index)

    # Rows

    def row(self, y: int) -> Row:
        """The row `y`, an empty one below the last."""
        if y < self._column.height:
            return self._column.row(y)
        if not self._tail or not 0 <= y - self.tail_start < len(self._tail):
            return ()
        return (Segment(self._tail.row(y - self.tail_start), self.palette.text),)

    def texts(self) -> list[str]:
        """All rows as plain text."""
        rows = map(self.row, range(self.height))
        return ["".join(segment.text for segment in row) for row in rows]

    def locate(self, y: int) -> tuple[int, int]:
        """The entry and the row in it at `y`; they find the place again after a redraw."""
        return self._column.locate(min(y, self._column.height))

    def find_again(self, place: tuple[int, int]) -> int:
        index, row = place
        if index >= len(self._column):
            return self.tail_start + row
        return self._column.start(index) + min(row, max(0, len(self._column.rows(index)) - 1))

    def change(self, width: int, palette: Palette, in_sight: range) -> None:
        """Take a new width or palette; the rows `in_sight` are drawn first."""
        if self._tail is not None and width != self.width:
            self._tail = Tail(width)
            self._append(self._blocks.open)
        self.width, self.palette = width, palette
        first, last = self.locate(in_sight.start)[0], self.locate(in_sight.stop)[0]
        order = sorted(range(len(self._column)), reverse=True)
        order.sort(key=lambda index: not first <= index <= last)
        self._stale = deque(order)

    def redraw(self, seconds: float) -> bool:
        """Draw what is still to be drawn, for about so long; True where some is left."""
        end = perf_counter() + seconds
        while self._stale:
            self._redraw(self._stale.popleft())
            if perf_counter() > end:
                break
        return bool(self._stale)

    def _redraw(self, index: int) -> None:
        entry = self._column.entries[index]
        rows = entry.rows(self.width, self.palette)
        gap = [Text()] if rows and index and not entry.joined else []
        self._column.redraw(index, [_segments(row) for row in (*gap, *rows)])


_console = Console(file=StringIO())


def _segments(row: Text) -> Row:
    # A Text without spans would lose its own style here; as a part of another it becomes one.
    return tuple(Text().append_text(row).render(_console))
