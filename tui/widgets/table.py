"""Rows of a Markdown table, its columns shrunk until they fit."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest

from rich.text import Text

from tui.widgets.inline import wrap_styled
from tui.widgets.palette import Palette

BETWEEN = " │ "
CROSSING = "─┼─"
NARROWEST = 3


@dataclass(frozen=True)
class Table:
    """The first row is the head; every row has as many cells as it."""

    rows: list[list[Text]]
    right_aligned: list[bool]


def column_widths(table: Table, width: int) -> list[int]:
    """The columns' widths in cells. The widest give way first, none below NARROWEST."""
    widths = [
        max(NARROWEST, *(cell.cell_len for cell in column))
        for column in zip(*table.rows, strict=True)
    ]
    surplus = sum(widths) + len(BETWEEN) * (len(widths) - 1) - width
    while surplus > 0 and (widest := max(widths)) > NARROWEST:
        index = widths.index(widest)
        next_widest = max((size for size in widths if size < widest), default=NARROWEST)
        taken = min(surplus, max(1, (widest - next_widest)))
        widths[index] -= taken
        surplus -= taken
    return widths


def table_rows(table: Table, widths: list[int], palette: Palette, *, head: bool) -> Iterator[Text]:
    """The table's rows; without the head where they continue a table."""
    separator = Text(BETWEEN, palette.rule)
    first, *rest = table.rows
    if head:
        for cell in first:
            cell.stylize("bold")
        yield from _row(first, table, widths, separator)
        yield Text(CROSSING.join("─" * size for size in widths), palette.rule)
    for cells in rest:
        yield from _row(cells, table, widths, separator)


def _row(cells: list[Text], table: Table, widths: list[int], separator: Text) -> Iterator[Text]:
    columns = [wrap_styled(cell, size) for cell, size in zip(cells, widths, strict=True)]
    for parts in zip_longest(*columns):
        padded = []
        for part, size, right in zip(parts, widths, table.right_aligned, strict=True):
            part = part or Text()
            space = max(0, size - part.cell_len)
            part.pad_left(space if right else 0)
            part.pad_right(0 if right else space)
            padded.append(part)
        yield separator.join(padded)
