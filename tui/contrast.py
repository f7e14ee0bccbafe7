"""How well a theme's colours can be told from what they stand on."""

from collections.abc import Iterator
from dataclasses import dataclass

from rich.color import Color, ColorSystem

from tui.themes import ColourTheme

GROUNDS = ("background", "surface", "panel")
READABLE = 4.5
"""The least ratio for text in WCAG 2.2, AA."""
VISIBLE = 3.0
"""The least ratio for marks and bars in WCAG 2.2, AA."""


@dataclass(frozen=True)
class Contrast:
    """`ratio` is the least of the ratios to GROUNDS, 1 to 21; `ratio_256` the same where a
    terminal of 256 colours shows `colour_256` instead, as over SSH."""

    name: str
    colour: str
    least: float
    ratio: float
    colour_256: int
    ratio_256: float


def contrasts(theme: ColourTheme) -> Iterator[Contrast]:
    """One for each colour that is drawn on a ground; none for a theme of terminal colours."""
    if theme.ansi:
        return
    grounds = [theme.colours[name] for name in GROUNDS]
    drawn = {name: colour for name, colour in theme.colours.items() if name not in GROUNDS}
    for name, colour in (drawn | theme.variables).items():
        yield Contrast(
            name=name,
            colour=colour,
            least=VISIBLE if name.startswith("memory-") else READABLE,
            ratio=min(_ratio(_rgb(colour), _rgb(ground)) for ground in grounds),
            colour_256=_downgrade(colour).number or 0,
            ratio_256=min(
                _ratio(_downgrade(colour).get_truecolor(), _downgrade(ground).get_truecolor())
                for ground in grounds
            ),
        )


def _rgb(colour: str) -> tuple[int, int, int]:
    return Color.parse(colour).get_truecolor()


def _downgrade(colour: str) -> Color:
    """What is written to a terminal of 256 colours."""
    return Color.parse(colour).downgrade(ColorSystem.EIGHT_BIT)


def _ratio(one: tuple[int, int, int], other: tuple[int, int, int]) -> float:
    """WCAG 2.2's contrast ratio."""
    high, low = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def _luminance(rgb: tuple[int, int, int]) -> float:
    """WCAG 2.2's relative luminance, 0 to 1."""
    red, green, blue = (
        value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4
        for value in (channel / 255 for channel in rgb)
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
