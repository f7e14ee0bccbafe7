"""The styles that a transcript's rows are drawn with."""

from dataclasses import dataclass, fields

from rich.style import Style

NONE = Style.null()


@dataclass(frozen=True)
class Palette:
    """One Rich style for each part; the transcript fills them from its component classes."""

    text: Style = NONE
    quiet: Style = NONE
    user: Style = NONE
    heading: Style = NONE
    subheading: Style = NONE
    marker: Style = NONE
    quote: Style = NONE
    link: Style = NONE
    rule: Style = NONE
    action: Style = NONE
    code: Style = NONE
    keyword: Style = NONE
    name: Style = NONE
    string: Style = NONE
    number: Style = NONE
    comment: Style = NONE
    plain: bool = False
    """Answers as they were written, their Markdown not drawn."""


PARTS = tuple(field.name for field in fields(Palette) if field.type is Style)
