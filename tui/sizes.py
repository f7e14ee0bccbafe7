"""Sizes in bytes as people write them: 900M, 1.5G. Units are powers of 1024."""

import re

_UNITS = "BKMGT"
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)\s*(?:([KMGT])(?:i?B)?|B)?", re.I | re.A)


def parse_size(text: str) -> int:
    """Bytes. Raises ValueError, with a sentence, for what is no size or not above zero."""
    match = _SIZE.fullmatch(text.strip())
    size = int(float(match[1]) * 1024 ** _UNITS.index((match[2] or "B").upper())) if match else 0
    if not 0 < size < 2**63:
        raise ValueError(f"a size is a number above zero with K, M, G or T, as 900M; not {text!r}")
    return size
