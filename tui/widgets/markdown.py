"""Draws one block of Markdown as rows of styled text.

Rows instead of widgets: a list of 20 items as a Textual Markdown widget is 60 widgets, and each
one makes every later layout slower. Raw HTML and link targets are shown as text; nothing in the
rows can be clicked.
"""

from collections.abc import Iterator, Sequence

from markdown_it import MarkdownIt
from markdown_it.tree import SyntaxTreeNode
from rich.text import Text

from tui.widgets.code import code_rows
from tui.widgets.inline import divide, inline, wrap_styled
from tui.widgets.palette import Palette
from tui.widgets.table import Table, column_widths, table_rows
from tui.widgets.wrapping import fold

NARROWEST = 8
"""Cells that nesting leaves for text at the least."""

_parser = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])


def parse(source: str) -> SyntaxTreeNode:
    return SyntaxTreeNode(_parser.parse(source))


def fences(root: SyntaxTreeNode) -> list[str]:
    """The code of each fence, in order."""
    return [node.content for node in root.walk() if node.type == "fence"]


def table_columns(root: SyntaxTreeNode, width: int) -> list[int]:
    """The column widths of the last table, which its continuation keeps; [] without a table."""
    tables = [node for node in root.walk() if node.type == "table"]
    return column_widths(_read_table(tables[-1], Palette()), width) if tables else []


class Drawing:
    """Draws a parsed block.

    `number` is that of its first code fence. A block that `continues` another starts in the
    middle of a fence, a list or a table, whose `columns` it keeps.
    """

    def __init__(
        self,
        palette: Palette,
        number: int = 1,
        *,
        continues: bool = False,
        columns: Sequence[int] = (),
    ) -> None:
        self._palette = palette
        self._number = number
        self._continues = continues
        self._columns = list(columns)

    def rows(self, root: SyntaxTreeNode, width: int) -> list[Text]:
        """Rows of at most `width` cells; what does not fit is folded, never cut off."""
        rows = []
        for row in self._stack(root.children, max(width, NARROWEST)):
            rows += [row] if row.cell_len <= width else divide(row, fold(row.plain, width))
        return rows

    def _stack(self, nodes: Sequence[SyntaxTreeNode], width: int) -> Iterator[Text]:
        """One below the other, a blank row between them; none in a tight list."""
        for index, node in enumerate(nodes):
            if index and not _is_tight(node) and not _is_tight(nodes[index - 1]):
                yield Text()
            yield from self._draw(node, width)

    def _draw(self, node: SyntaxTreeNode, width: int) -> Iterator[Text]:
        palette = self._palette
        match node.type:
            case "heading":
                style = palette.heading if node.tag == "h1" else palette.subheading
                yield from wrap_styled(inline(node, palette, style), width)
            case "bullet_list":
                yield from self._list(node, ["• "] * len(node.children), width)
            case "ordered_list":
                yield from self._list(node, _numbers(node), width)
            case "blockquote":
                for row in self._stack(node.children, _inner(width, 2)):
                    yield Text.assemble(("│ ", palette.quote), row)
            case "fence" | "code_block":
                yield from self._code(node, width)
            case "table":
                yield from self._table(node, width)
            case "hr":
                yield Text("─" * width, palette.rule)
            case _:
                yield from wrap_styled(inline(node, palette, palette.text), width)

    def _list(self, node: SyntaxTreeNode, markers: list[str], width: int) -> Iterator[Text]:
        loose = not all(_is_tight(child) for item in node.children for child in item.children[:1])
        for index, (item, marker) in enumerate(zip(node.children, markers, strict=True)):
            if index and loose:
                yield Text()
            rows = self._stack(item.children, _inner(width, len(marker)))
            yield Text.assemble((marker, self._palette.marker), next(rows, Text()))
            for row in rows:
                yield Text.assemble(" " * len(marker), row)

    def _code(self, node: SyntaxTreeNode, width: int) -> Iterator[Text]:
        language = node.info.split()[0] if node.info.strip() else ""
        label = None
        if node.type == "fence":
            if not self._continues:
                label = f"/copy {self._number}"
                self._number += 1
            self._continues = False
        yield from code_rows(node.content, language, label, width, self._palette)

    def _table(self, node: SyntaxTreeNode, width: int) -> Iterator[Text]:
        table = _read_table(node, self._palette)
        columns = self._columns or column_widths(table, width)
        yield from table_rows(table, columns, self._palette, head=not self._columns)
        self._columns = []


def _numbers(node: SyntaxTreeNode) -> list[str]:
    first = int(node.attrs.get("start", 1))
    last = first + len(node.children) - 1
    return [f"{number:>{len(str(last))}}. " for number in range(first, last + 1)]


def _inner(width: int, used: int) -> int:
    return max(width - used, NARROWEST)


def _is_tight(node: SyntaxTreeNode) -> bool:
    return node.type == "paragraph" and node.hidden


def _read_table(node: SyntaxTreeNode, palette: Palette) -> Table:
    lines = [row.children for part in node.children for row in part.children]
    return Table(
        rows=[[inline(cell, palette, palette.text) for cell in line] for line in lines],
        right_aligned=["right" in str(cell.attrs.get("style", "")) for cell in lines[0]],
    )
