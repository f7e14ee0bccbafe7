"""The prompts sent so far, to walk through and to write again."""

from collections.abc import Iterable


class History:
    """Walks from the draft to older entries and back; what was written on the way is kept."""

    def __init__(self, entries: Iterable[str] = ()) -> None:
        self._entries = list(entries)
        self._start_over()

    def add(self, entry: str) -> None:
        if self._entries[-1:] != [entry]:
            self._entries.append(entry)
        self._start_over()

    def older(self, shown: str) -> str | None:
        """The entry before the one that is `shown`, None at the oldest."""
        return self._move(-1, shown)

    def newer(self, shown: str) -> str | None:
        """The entry after it, the draft at last, None where that is shown already."""
        return self._move(1, shown)

    def _start_over(self) -> None:
        self._lines = [*self._entries, ""]
        self._at = len(self._entries)

    def _move(self, step: int, shown: str) -> str | None:
        if not 0 <= self._at + step < len(self._lines):
            return None
        self._lines[self._at] = shown
        self._at += step
        return self._lines[self._at]
