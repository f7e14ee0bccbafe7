"""Figures as the panels show them: short, of steady width, and `–` for what is not known."""

from collections.abc import Sequence

UNKNOWN = "–"


def size(nbytes: float | None) -> str:
    """Bytes in at most five characters, in powers of 1024: 938M, 0.92G, 21.4G."""
    if nbytes is None:
        return UNKNOWN
    if nbytes < 1024:
        return f"{nbytes:.0f}B"
    value = nbytes / 1024
    for unit in "KMGT":
        # Three digits, so that a changing figure keeps its place.
        if value < 9.995 and unit != "K":
            return f"{value:.2f}{unit}"
        if value < 99.95:
            return f"{value:.1f}{unit}"
        if value < 999.5:
            return f"{value:.0f}{unit}"
        value /= 1024
    return f"{value:.0f}P"


def change(nbytes: float | None) -> str:
    if nbytes is None:
        return UNKNOWN
    return ("-" if nbytes < 0 else "+") + size(abs(nbytes))


def count(number: int | None) -> str:
    """Tokens in at most five characters: 812, 18.4k, 131k, 1.2M."""
    if number is None:
        return UNKNOWN
    if number < 1000:
        return str(number)
    value = float(number)
    for unit in ("k", "M", "G"):
        value /= 1000
        if value < 99.95:
            return f"{value:.1f}{unit}"
        if value < 999.5:
            return f"{value:.0f}{unit}"
    return f"{value:.0f}G"


def full(number: int | None) -> str:
    return UNKNOWN if number is None else f"{number:,}"


def rate(tokens_per_second: float | None) -> str:
    if tokens_per_second is None:
        return UNKNOWN
    return f"{tokens_per_second:.{0 if tokens_per_second >= 100 else 1}f}"


def seconds(duration: float | None) -> str:
    """A span of time in its two largest units: 0.42 s, 29.6 s, 12m 37s, 5h 2m, 3d 4h."""
    if duration is None:
        return UNKNOWN
    if duration < 9.995:
        return f"{duration:.2f} s"
    if duration < 59.95:
        return f"{duration:.1f} s"
    whole = round(duration)
    for unit, large, small, below in (
        (60, "m", "s", 3600),
        (3600, "h", "m", 86400),
        (86400, "d", "h", 0),
    ):
        if whole < below or not below:
            rest = whole % unit // (unit // 60 if unit < 86400 else 3600)
            return f"{whole // unit}{large} {rest}{small}"
    return UNKNOWN


def spark(
    values: Sequence[float], width: int, heights: str, low: float | None = None, span: float = 0.0
) -> str:
    """The last `width` values as a row of `heights`, from `low`, or their least, to their largest.

    `span` is the least difference that fills the whole height, so that noise stays flat.
    """
    shown = list(values)[-width:]
    if not shown:
        return ""
    low = min(shown) if low is None else low
    span = max(span, max(shown) - low)
    top = len(heights) - 1
    if span <= 0:
        return heights[0] * len(shown)
    return "".join(heights[min(top, int((value - low) / span * len(heights)))] for value in shown)


def compression(half: int | None, held: int | None) -> str:
    """fp16(K+V) over the bytes held, in words; a short chat may hold more than fp16 would."""
    if not half or not held:
        return f"{UNKNOWN} smaller"
    return f"{half / held:.1f}× smaller" if held <= half else f"{held / half:.1f}× larger"
