"""Rows of a code block: highlighted, folded at the edge, on a background of their own."""

from pygments.lexers import get_lexer_by_name
from pygments.token import Comment, Keyword, Name, Number, Operator, String, _TokenType
from pygments.util import ClassNotFound
from rich.style import Style
from rich.text import Text

from tui.widgets.inline import divide
from tui.widgets.palette import Palette
from tui.widgets.wrapping import TAB, crop, fold

MARGIN = 1


def code_rows(
    code: str, language: str, label: str | None, width: int, palette: Palette
) -> list[Text]:
    """The code's rows, `width` cells each; a row with language and label above, if there is one."""
    inner = max(1, width - 2 * MARGIN)
    rows = []
    if label is not None:
        gap = max(1, inner - len(label))
        head = Text(crop(language, gap - 1) if gap > 1 else "", palette.quiet)
        head.pad_right(max(0, gap - head.cell_len))
        rows.append(head.append(label, palette.quiet))
    code = code.removesuffix("\n").replace("\t", TAB)
    for line in _highlight(code, language, palette).split("\n", allow_blank=True):
        rows += divide(line, fold(line.plain, inner))
    return [_on_background(row, width, palette.code) for row in rows]


def _highlight(code: str, language: str, palette: Palette) -> Text:
    try:
        lexer = get_lexer_by_name(language, stripnl=False, ensurenl=False)
    except ClassNotFound:
        return Text(code)
    text = Text()
    for token, piece in lexer.get_tokens(code):
        text.append(piece, _style(token, palette))
    return text


def _style(token: _TokenType, palette: Palette) -> Style | None:
    for kind, part in _PARTS:
        if token in kind:
            return getattr(palette, part)
    return None


def _on_background(row: Text, width: int, style: Style) -> Text:
    row.pad_left(MARGIN)
    row.pad_right(max(0, width - row.cell_len))
    row.stylize_before(style)
    return row


_PARTS = (
    (Comment, "comment"),
    (Keyword, "keyword"),
    (Operator.Word, "keyword"),
    (String, "string"),
    (Number, "number"),
    (Name.Function, "name"),
    (Name.Class, "name"),
    (Name.Builtin, "name"),
    (Name.Decorator, "name"),
)
