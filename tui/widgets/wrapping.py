"""Breaks text into rows by terminal cells, never inside a grapheme."""

import re

from rich.cells import cell_len, set_cell_size, split_graphemes

TAB = "    "


def wrap(line: str, width: int) -> list[str]:
    """Rows of at most `width` cells; joined, they are the line again.

    Breaks after the last space that fits, else after the last grapheme that fits. Spaces at the
    end of a row may hang over its edge. A grapheme wider than `width` has a row of its own.
    """
    rows = []
    start = 0
    while start < len(line) or not rows:
        # More characters than a row could reasonably hold, so that a long line stays linear.
        window = line[start : start + 8 * width + 32]
        end = start + _row_end(window, width)
        rows.append(line[start:end])
        start = end
    return rows


def fold(line: str, width: int) -> list[str]:
    """Rows broken where they are full, spaces or not; for code."""
    if line.isascii():
        return [line[start : start + width] for start in range(0, len(line), width)] or [""]
    rows, begun, used = [], 0, 0
    for start, _, cells in split_graphemes(line)[0]:
        if used + cells > width and start > begun:
            rows.append(line[begun:start])
            begun, used = start, 0
        used += cells
    return [*rows, line[begun:]]


_SPACES = re.compile(" *")


def _row_end(line: str, width: int) -> int:
    """How many characters of the line its first row takes."""
    if not line.isascii():
        return _row_end_by_graphemes(line, width)
    hanging = _SPACES.match(line, width)
    if hanging is None or hanging.end() == len(line):
        return len(line)
    if hanging.end() > width:
        return hanging.end()
    return line.rfind(" ", 0, width) + 1 or width


def _row_end_by_graphemes(line: str, width: int) -> int:
    used = after_space = 0
    for start, end, cells in split_graphemes(line)[0]:
        used += cells
        if line[start:end] == " ":
            after_space = end
        elif used > width:
            return after_space or start or end
    return len(line)


def wrap_text(text: str, width: int) -> list[str]:
    """The rows of a whole text, tabs and the spaces at row ends gone, for drawing."""
    lines = text.replace("\t", TAB).split("\n")
    return [row.rstrip() for line in lines for row in wrap(line, width)]


def crop(text: str, width: int) -> str:
    """As much of one row of text as fits in `width` cells, ending in "…" where some does not."""
    return text if cell_len(text) <= width else set_cell_size(text, width - 1).rstrip() + "…"
