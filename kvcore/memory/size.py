"""Sizes in people's units."""


def in_words(nbytes: float) -> str:
    """As 212 MB or 1.40 GB: powers of 1024, three digits."""
    size, units = float(nbytes), ["B", "KB", "MB", "GB", "TB"]
    while abs(size) >= 999.5 and len(units) > 1:
        size /= 1024
        units.pop(0)
    digits = 0 if units[0] == "B" or abs(size) >= 99.95 else 1 if abs(size) >= 9.995 else 2
    return f"{size:.{digits}f} {units[0]}"
