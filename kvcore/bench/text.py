"""Windows of tokens to measure on, from a text file."""

import re
from collections.abc import Callable
from pathlib import Path

# WikiText keeps words apart from punctuation; a model was never trained on that.
_JOINED = (
    (" @-@ ", "-"),
    (" @,@ ", ","),
    (" @.@ ", "."),
    (" 's", "'s"),
    ("( ", "("),
    (" )", ")"),
    ("[ ", "["),
    (" ]", "]"),
)
_SPACED_PUNCTUATION = re.compile(r" ([,.;:!?])(?=\s)")


def windows(
    path: Path, encode: Callable[[str], list[int]], count: int, tokens: int
) -> list[list[int]]:
    """`count` windows of `tokens` tokens, evenly spread over the file.

    Raises ValueError where the text is too short for them.
    """
    ids = encode(plain_text(path.read_text(encoding="utf-8")))
    if len(ids) < count * tokens:
        raise ValueError(
            f"{path} has {len(ids):,} tokens, fewer than {count} windows of {tokens:,} need."
        )
    step = (len(ids) - tokens) // max(1, count - 1) if count > 1 else 0
    return [ids[i * step : i * step + tokens] for i in range(count)]


def plain_text(text: str) -> str:
    """Text with the tokenisation of WikiText undone; other text is hardly changed."""
    for apart, joined in _JOINED:
        text = text.replace(apart, joined)
    return _SPACED_PUNCTUATION.sub(r"\1", text)
