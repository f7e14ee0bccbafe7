"""Finds a text in rows that it may be wrapped over."""

import re
from bisect import bisect_right
from itertools import accumulate

Match = list[tuple[int, int, int]]
"""The parts of one occurrence: row, and the first and last-but-one character in it."""


def find(rows: list[str], query: str) -> list[Match]:
    """All occurrences, upper and lower case alike; any spaces and row ends match any others."""
    words = query.split()
    if not words:
        return []
    pattern = re.compile(r"\s+".join(map(re.escape, words)), re.IGNORECASE)
    starts = list(accumulate((len(row) + 1 for row in rows), initial=0))
    return [_parts(found, rows, starts) for found in pattern.finditer("\n".join(rows))]


def _parts(found: re.Match[str], rows: list[str], starts: list[int]) -> Match:
    parts = []
    row = bisect_right(starts, found.start()) - 1
    while row < len(rows) and starts[row] < found.end():
        begin = max(0, found.start() - starts[row])
        end = min(len(rows[row]), found.end() - starts[row])
        begin += len(rows[row][begin:end]) - len(rows[row][begin:end].lstrip())
        parts.append((row, begin, end))
        row += 1
    return parts
