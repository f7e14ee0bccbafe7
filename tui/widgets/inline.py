"""Styled text of what stands inside a Markdown paragraph, and its rows."""

from itertools import accumulate

from markdown_it.tree import SyntaxTreeNode
from rich.style import Style
from rich.text import Text

from tui.widgets.palette import Palette
from tui.widgets.wrapping import wrap

EMPHASIS = {"strong": Style(bold=True), "em": Style(italic=True), "s": Style(strike=True)}


def inline(node: SyntaxTreeNode, palette: Palette, style: Style) -> Text:
    """The text of a node; a link's target is written out after it."""
    text = Text()
    _append(text, node, palette, style)
    return text


def _append(text: Text, node: SyntaxTreeNode, palette: Palette, style: Style) -> None:
    match node.type:
        case "softbreak":
            text.append(" ", style)
        case "hardbreak":
            text.append("\n")
        case "code_inline":
            text.append(node.content, style + palette.code)
        case "image":
            text.append(f"[image: {node.content}] ({node.attrs.get('src', '')})", style)
        case "link":
            start = len(text)
            _append_all(text, node, palette, style + palette.link)
            target = str(node.attrs.get("href", ""))
            if text.plain[start:] not in (target, target.removeprefix("mailto:")):
                text.append(f" ({target})", style + palette.quiet)
        case "text":
            text.append(node.content, style)
        case _:
            _append_all(text, node, palette, style + EMPHASIS.get(node.type, Style.null()))


def _append_all(text: Text, node: SyntaxTreeNode, palette: Palette, style: Style) -> None:
    for child in node.children:
        _append(text, child, palette, style)


def wrap_styled(text: Text, width: int) -> list[Text]:
    """The rows of a styled text, by cells, without the spaces at their ends."""
    rows = []
    for line in text.split("\n", allow_blank=True):
        rows += divide(line, wrap(line.plain, width))
    for row in rows:
        row.rstrip()
    return rows


def divide(line: Text, rows: list[str]) -> list[Text]:
    """The styled line cut as its plain text was."""
    ends = list(accumulate(map(len, rows)))
    return list(line.divide(ends[:-1]))
