"""Sizes in bytes as people write and read them: 900M, 1.5G. Units are powers of 1024."""

import re

_UNITS = "BKMGT"
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([KMGT])(?:i?B)?|B)?", re.IGNORECASE | re.ASCII)


def parse_size(text: str) -> int:
    """Bytes. Raises ValueError, with a sentence, for what is no size or not above zero."""
    match = _SIZE.fullmatch(text.strip())
    size = 0
    if match:
        size = int(float(match[1]) * 1024 ** _UNITS.index((match[2] or "B").upper()))
    if not 0 < size < 2**63:
        raise ValueError(f"a size is a number above zero with K, M, G or T, as 900M; not {text!r}")
    return size


def format_size(size: int | None) -> str:
    """At most five characters for anything below a petabyte: 512B, 1.5K, 900M; – when unknown."""
    if size is None:
        return "–"
    value = float(size)
    for unit in _UNITS:
        if abs(value) < 999.5 or unit == "T":
            break
        value /= 1024
    digits = 0 if unit == "B" or abs(value) >= 99.95 else 1
    return f"{value:.{digits}f}{unit}"
