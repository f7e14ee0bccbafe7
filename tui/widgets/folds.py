"""Large pastes, kept beside the draft and shown in it as one short mark each."""

import re

CHARACTERS, LINES = 8_000, 100
"""A text above either is folded."""

_MARK = re.compile(r"\[pasted \d+: [^\]\n]*\]")
KILO = 1024


class Folds:
    """Texts by the marks that stand for them."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def fold(self, text: str) -> str:
        """The text itself, or the mark that stands for it from now on."""
        lines = text.count("\n") + 1
        if len(text) <= CHARACTERS and lines <= LINES:
            return text
        number = len(self._texts) + 1
        mark = f"[pasted {number}: {_size(text)}, {lines:,} line{'s' if lines > 1 else ''}]"
        self._texts[mark] = text
        return mark

    def unfold(self, draft: str) -> str:
        """The draft with every paste in full."""
        return _MARK.sub(lambda match: self._texts.get(match[0], match[0]), draft)

    def widen(self, line: str, start: int, end: int) -> tuple[int, int]:
        """The columns of an edit, so moved that no mark is cut in two: it goes whole or stays."""
        for match in _MARK.finditer(line):
            first, last = match.span()
            if match[0] not in self._texts or end <= first or start >= last:
                continue
            start, end = (last, last) if start == end else (min(start, first), max(end, last))
        return start, end


def _size(text: str) -> str:
    size = len(text.encode())
    if size < KILO * KILO:
        return f"{size / KILO:.0f} KB"
    return f"{size / KILO / KILO:.1f} MB"
