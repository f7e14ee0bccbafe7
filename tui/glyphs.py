"""The drawing characters of the panels, one cell each, and what stands for them in ASCII."""

from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

LEVELS = {"normal": "●", "warn": "▲", "critical": "■"}
HEIGHTS = "▁▂▃▄▅▆▇█"
EIGHTHS = "▏▎▍▌▋▊▉█"
EMPTY = "·"
# Weights, cache, scratch, other programs, free: told apart without colour too.
SEGMENTS = "█▓▒░·"

ASCII = str.maketrans(
    {
        **dict(zip("●▲■", "o^#", strict=True)),
        **dict(zip("▁▂▃▄▅▆▇█", "_..--==#", strict=True)),
        **dict(zip("▏▎▍▌▋▊▉▐▕", ".:!|+**||", strict=True)),
        **dict(zip("▓▒░", "=+-", strict=True)),
        **dict(zip("│┃║╎╏", "|||||", strict=True)),
        **dict(zip("─━═┄┈╌▔▀▄", "-------==", strict=True)),
        **dict.fromkeys("╭╮╰╯┌┐└┘├┤┬┴┼┏┓┗┛┣┫┳┻╋╔╗╚╝╠╣╦╩╬╸╺", "+"),
        **dict(zip("·•–—…×≈≤❯→←↑↓↳⌁", ".*--.x~<>><^v>~", strict=True)),
        **dict(zip("“”‘’", "\"\"''", strict=True)),
    }
)


class AsciiFilter(LineFilter):
    """Draws the whole screen, borders included, in ASCII; letters of answers stay."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [
            Segment(segment.text.translate(ASCII), segment.style, segment.control)
            for segment in segments
        ]
