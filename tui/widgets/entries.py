"""What a transcript is made of: the user's turns, the blocks of answers, rules and notes."""

from dataclasses import dataclass
from typing import Protocol

from rich.cells import cell_len
from rich.text import Text

from tui.widgets.blocks import Block
from tui.widgets.inline import wrap_styled
from tui.widgets.markdown import Drawing, fences, parse, table_columns
from tui.widgets.palette import Palette
from tui.widgets.wrapping import TAB, crop

SHOWN_LINES, SHOWN_CHARACTERS = 40, 4000
"""Of a user's turn."""


class Entry(Protocol):
    """Drawn in a palette at a width, as often as either changes."""

    @property
    def joined(self) -> bool:
        """Stands right under the entry before it, without a blank row."""
        ...

    def rows(self, width: int, palette: Palette) -> list[Text]: ...


@dataclass(frozen=True)
class UserTurn:
    """A long one, as of a pasted file, shows its beginning and says how much follows."""

    text: str
    joined: bool = False

    def rows(self, width: int, palette: Palette) -> list[Text]:
        shown = "\n".join(self.text[:SHOWN_CHARACTERS].split("\n")[:SHOWN_LINES])
        text = Text(shown.rstrip().replace("\t", TAB), palette.text)
        rows = [Text("you", palette.user), *wrap_styled(text, max(1, width - 2))]
        if rest := self.text[len(shown) :].strip():
            rows.append(Text(f"… {len(rest):,} more characters, sent in full", palette.quiet))
        return [Text.assemble(("▌ ", palette.user), row) for row in rows]


@dataclass(frozen=True)
class Answer:
    """A closed block. `number` is its first code fence's, over the whole transcript."""

    block: Block
    number: int = 1
    previous: "Answer | None" = None
    definitions: str = ""
    """Link reference definitions of the answer's other blocks."""

    @property
    def joined(self) -> bool:
        return self.block.continues

    @property
    def source(self) -> str:
        return (
            f"{self.block.source}\n\n{self.definitions}" if self.definitions else self.block.source
        )

    @property
    def code(self) -> list[str]:
        """The code of each fence in it."""
        source = self.block.source
        return fences(parse(source)) if "```" in source or "~~~" in source else []

    def rows(self, width: int, palette: Palette) -> list[Text]:
        if palette.plain:
            text = self.block.text.strip("\n").replace("\t", TAB)
            return wrap_styled(Text(text, palette.text), width) if text else []
        drawing = Drawing(
            palette,
            self.number,
            continues=self.block.continues,
            columns=self._columns(width) if self.block.continues else [],
        )
        return drawing.rows(parse(self.source), width)

    def _columns(self, width: int) -> list[int]:
        """The columns of the table's first block, however many continue it."""
        first = self
        while first.block.continues and first.previous is not None:
            first = first.previous
        return table_columns(parse(first.block.source), width)


@dataclass(frozen=True)
class Rule:
    """A thin line with a text in it: what was done to the cache, and where in the chat."""

    text: str
    joined: bool = False

    def rows(self, width: int, palette: Palette) -> list[Text]:
        text = crop(self.text, max(1, width - 8))
        rest = "─" * max(2, width - 4 - cell_len(text))
        return [
            Text.assemble(("── ", palette.rule), (text, palette.action), (f" {rest}", palette.rule))
        ]


@dataclass(frozen=True)
class Note:
    """How an answer ended, where that needs saying."""

    text: str
    joined: bool = False

    def rows(self, width: int, palette: Palette) -> list[Text]:
        return wrap_styled(Text(self.text, palette.action), width)
