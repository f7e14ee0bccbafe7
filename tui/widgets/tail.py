"""The open end of an answer as plain rows: only what a new piece touches is laid out again."""

from tui.widgets.wrapping import TAB, wrap


class Tail:
    """Rows of a text that grows at its end."""

    def __init__(self, width: int) -> None:
        self.width = width
        self._rows: list[str] = []

    def __len__(self) -> int:
        return len(self._rows)

    def append(self, text: str) -> int:
        """Take more text; the number of the first row that changed."""
        last = self._rows.pop() if self._rows else ""
        first_changed = len(self._rows)
        for line in (last + text.replace("\t", TAB)).split("\n"):
            self._rows += wrap(line, self.width)
        return first_changed

    def row(self, y: int) -> str:
        return self._rows[y].rstrip()

    def rows(self) -> list[str]:
        return [row.rstrip() for row in self._rows]
