"""Entries one below the other, as rows that are found by their number."""

from bisect import bisect_right

from rich.segment import Segment

from tui.widgets.entries import Entry

Row = tuple[Segment, ...]
"""Not a Textual Strip: its caches are twenty objects a row for the garbage collector to visit."""


class Column:
    """Holds the rows that each entry was last drawn as; an entry without rows takes no room."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._rows: list[list[Row]] = []
        self._ends: list[int] = []

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def height(self) -> int:
        self._count(len(self._rows))
        return self._ends[-1] if self._ends else 0

    def append(self, entry: Entry) -> None:
        self.entries.append(entry)
        self._rows.append([])

    def redraw(self, index: int, rows: list[Row]) -> None:
        self._rows[index] = rows
        del self._ends[index:]

    def rows(self, index: int) -> list[Row]:
        return self._rows[index]

    def start(self, index: int) -> int:
        self._count(index)
        return self._ends[index - 1] if index else 0

    def locate(self, y: int) -> tuple[int, int]:
        """The entry that row `y` belongs to, and the row's number within it."""
        self._count(len(self._rows))
        index = bisect_right(self._ends, y)
        return index, y - self.start(index)

    def row(self, y: int) -> Row:
        index, row = self.locate(y)
        return self._rows[index][row]

    def _count(self, entries: int) -> None:
        for index in range(len(self._ends), entries):
            before = self._ends[-1] if self._ends else 0
            self._ends.append(before + len(self._rows[index]))
