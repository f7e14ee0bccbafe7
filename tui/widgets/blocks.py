"""Cuts a Markdown answer, while it streams in, into blocks that can be drawn once and for all.

A block closes on a blank line (in a list: on one that is not followed by more of the list), at
the end of a code fence, before the next item or row after ITEMS of them, and before it would
pass LIMIT characters. So none is ever large, and none changes once it is closed. Where the cut
falls does not depend on the pieces in which the text arrives.
"""

import re
import unicodedata
from dataclasses import dataclass

ITEMS = 20
LIMIT = 4000

_ITEM = re.compile(r" ?(?:[-*+]|\d{1,9}[.)])\s")
_INTERRUPTING_ITEM = re.compile(r" ?(?:[-*+]|1[.)])[ \t]+\S")
_UNDECIDED = re.compile(r"\s*| ?(?:[-*+]|\d{1,9}[.)]?)")
"""A line's beginning that may yet turn out to be a blank line or a list item."""
_FENCE = re.compile(r"(?P<indent> *)(?:(?:[-*+]|\d{1,9}[.)]) +)?(?P<marks>`{3,}(?!.*`)|~{3,})")
_TABLE_RULE = re.compile(r" {0,3}\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*\n")
_DEFINITION = re.compile(r"^ {0,3}\[[^\]\n]+\]:[ \t]*\S+.*$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A piece of an answer; the texts of all blocks, joined, are the answer.

    `opening` is what must come before the text to read it alone: the first line of the fence, or
    the head of the table, that it goes on with. `continues`: belongs to the block before it.
    """

    text: str
    opening: str = ""
    continues: bool = False

    @property
    def source(self) -> str:
        return self.opening + self.text

    @property
    def definitions(self) -> list[str]:
        """Its link reference definitions, which other blocks may refer to."""
        if self.text.lstrip().startswith(("```", "~~~")) or self.opening:
            return []
        return _DEFINITION.findall(self.text)


class Blocks:
    """Takes an answer piece by piece."""

    def __init__(self) -> None:
        self._line = ""
        self._begin(continues=False)

    @property
    def open(self) -> str:
        """The text that no closed block holds yet."""
        return self._text + self._line

    @property
    def continues(self) -> bool:
        """Whether the open block goes on with the last closed one."""
        return self._continues

    def feed(self, text: str) -> list[Block]:
        """The blocks that this piece closes."""
        closed: list[Block] = []
        first, *rest = text.split("\n")
        self._line += first
        for begun in rest:
            self._line += "\n"
            self._look_ahead(closed)
            self._take_line(closed)
            self._line = begun
        if not _UNDECIDED.fullmatch(self._line):
            self._look_ahead(closed)
        return closed

    def finish(self) -> list[Block]:
        """The last blocks: the answer has ended."""
        closed: list[Block] = []
        if self._line:
            self._look_ahead(closed)
        self._text += self._line
        self._line = ""
        self._close(closed)
        return closed

    def _begin(self, *, continues: bool, opening: str = "") -> None:
        """Start a block. What is open across the cut (fence, list, table) stays as it is."""
        self._text = ""
        self._opening = opening
        self._continues = continues
        self._count = 0
        self._after_blank = False
        if not continues:
            self._fence = ""
            self._fence_line = ""
            self._fence_indent = 0
            self._in_list = False
            self._table_head = ""
            self._cut = False

    def _close(self, closed: list[Block], *, continues: bool = False) -> None:
        """Close what there is; `continues` says that the next block goes on with it."""
        if self._text:
            closed.append(Block(self._text, self._opening, self._continues))
            opening = (self._fence_line or self._table_head) if continues else ""
            self._begin(continues=continues, opening=opening)

    def _look_ahead(self, closed: list[Block]) -> None:
        """Decide what the beginning of the line alone decides."""
        if self._after_blank and not self._belongs_to_list():
            self._close(closed)
        if len(self._text) + len(self._line) > LIMIT:
            self._close(closed, continues=True)
        while len(self._line) > LIMIT:
            cut = _cut(self._line)
            self._text, self._line = self._line[:cut], self._line[cut:]
            self._close(closed, continues=True)
            self._cut = True

    def _belongs_to_list(self) -> bool:
        line = self._line
        return line.startswith(("  ", "\t")) or line.isspace() or bool(_ITEM.match(line))

    def _take_line(self, closed: list[Block]) -> None:
        line = self._line
        if self._cut:
            self._cut = False
            self._text += line
        elif self._fence:
            self._text += line
            self._end_fence(line, closed)
        elif line.isspace():
            self._text += line
            self._end_paragraph(closed)
        elif match := _FENCE.match(line):
            self._start_fence(match, closed)
        elif _ITEM.match(line) and (self._in_list or self._interrupts(line)):
            self._start_item(closed)
        elif not self._table_head and self._is_table_rule(line):
            self._table_head = self._text.splitlines(keepends=True)[-1] + line
            self._text += line
        elif self._table_head:
            self._start_row(closed)
        else:
            self._text += line

    def _end_fence(self, line: str, closed: list[Block]) -> None:
        marks = line.strip()
        indent = len(line) - len(line.lstrip(" "))
        if (
            marks.startswith(self._fence)
            and not marks.strip(self._fence[0])
            and indent <= self._fence_indent + 3
        ):
            self._fence = self._fence_line = ""
            if not self._in_list:
                self._close(closed)

    def _end_paragraph(self, closed: list[Block]) -> None:
        if self._in_list:
            self._after_blank = True
        elif not self._text.isspace():
            self._close(closed)

    def _start_fence(self, match: re.Match[str], closed: list[Block]) -> None:
        if not self._in_list or not self._belongs_to_list():
            self._close(closed)
        if _ITEM.match(self._line):
            self._start_item(closed)
        else:
            self._text += self._line
        self._after_blank = False
        self._fence = match["marks"]
        self._fence_indent = len(match["indent"]) if not self._in_list else match.start("marks")
        self._fence_line = " " * self._fence_indent + self._line[match.start("marks") :]

    def _interrupts(self, line: str) -> bool:
        """A list item that begins a list; inside a paragraph not every one does."""
        return not self._text.strip() or bool(_INTERRUPTING_ITEM.match(line))

    def _start_item(self, closed: list[Block]) -> None:
        if not self._in_list:
            self._close(closed)
        elif self._count >= ITEMS:
            self._close(closed, continues=True)
        self._table_head = ""
        self._in_list = True
        self._after_blank = False
        self._count += 1
        self._text += self._line

    def _is_table_rule(self, line: str) -> bool:
        """The line under a table's head; a lone "---" is a rule or a heading."""
        if "|" not in line or not _TABLE_RULE.fullmatch(line) or not self._text:
            return False
        return "|" in self._text.splitlines()[-1]

    def _start_row(self, closed: list[Block]) -> None:
        if self._count >= ITEMS:
            self._close(closed, continues=True)
        self._count += 1
        self._text += self._line


def _cut(line: str) -> int:
    """Where to cut a line longer than LIMIT: after a space, or at least not inside a grapheme."""
    space = line.rfind(" ", LIMIT // 2, LIMIT)
    if space >= 0:
        return space + 1
    for cut in range(LIMIT, LIMIT - 32, -1):
        joined = line[cut] in _JOINERS or line[cut - 1] == "\u200d"
        if not joined and not unicodedata.combining(line[cut]):
            return cut
    return LIMIT


_JOINERS = "\u200d\ufe0e\ufe0f" + "".join(map(chr, range(0x1F3FB, 0x1F400)))
