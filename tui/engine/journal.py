"""The chat on the disk: each turn is there before anybody is told that it is done."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from tui import sessions
from tui.messages import Turn


class Journal:
    """`path` None keeps nothing. `turns` are what the file holds already.

    No other program writes to the file until `close`. Raises SessionError where one does now.
    """

    def __init__(self, path: str | None, turns: Sequence[Turn]) -> None:
        self._path = None if path is None else Path(path)
        self._written = tuple(turns)
        self._failing = False
        self._hold: IO[bytes] | None = None
        if self._path is not None:
            with suppress(OSError):  # a disk that cannot be written is told of by `save`
                self._hold = sessions.hold(self._path)

    def close(self) -> None:
        if self._hold is not None:
            self._hold.close()

    def save(self, turns: tuple[Turn, ...]) -> str | None:
        """Bring the file up to `turns`; a sentence, once, where that cannot be done.

        It is tried again with every turn, and then the missing ones come too.
        """
        if self._path is None or turns == self._written:
            return None
        count = len(self._written)
        try:
            if turns[:count] == self._written:
                sessions.append(self._path, turns[count:])
            else:
                sessions.replace(self._path, turns)
        except OSError as error:
            first, self._failing = not self._failing, True
            return self._sentence(error) if first else None
        self._written, self._failing = turns, False
        return None

    def _sentence(self, error: OSError) -> str:
        return (
            f"The chat cannot be saved to {self._path}: {error.strerror or error}. It goes on in "
            "memory, and is saved when that is possible again."
        )
