"""`veloxquant-tui themes`: which there are, and whether one can be read well."""

from collections.abc import Sequence
from pathlib import Path

from tui import paths, themes
from tui.arguments import Parser
from tui.exits import DONE, FAILED
from tui.themes import ColourTheme, ThemeError


def main(argv: Sequence[str]) -> int:
    parser = Parser("themes", "List the themes, or check one.")
    parser.add_argument(
        "--check",
        metavar="FILE",
        help="contrast of a theme file's colours, in full and in 256 colours; also a theme's name",
    )
    args = parser.read(argv)
    if args.check is None:
        return _list()
    path = themes.theme_files().get(args.check, Path(args.check))
    return _check(themes.read_theme(path))


def _list() -> int:
    fitting = themes.automatic()
    for name, path in themes.theme_files().items():
        try:
            theme = themes.read_theme(path)
        except ThemeError as error:
            print(f"{name:<12}{error}")
            continue
        kind = "terminal colours" if theme.ansi else "dark" if theme.dark else "light"
        print(f"{name:<12}{kind:<18}{'fits this terminal' if name == fitting else ''}".rstrip())
    print(f"Your own go into {paths.themes()}.")
    return DONE


def _check(theme: ColourTheme) -> int:
    """FAILED where a colour cannot be told well enough from its ground."""
    if theme.ansi:
        print(f"{theme.name} uses the terminal's own colours: there is nothing to measure.")
        return DONE
    # Here, because it loads the library that knows the 256 colours.
    from tui.contrast import contrasts

    print(f"{'':<20}{'colour':<10}{'least':>6}{'contrast':>10}{'as 256':>8}{'contrast':>10}")
    low = 0
    for colour in contrasts(theme):
        enough = min(colour.ratio, colour.ratio_256) >= colour.least
        low += not enough
        print(
            f"{colour.name:<20}{colour.colour:<10}{colour.least:>6.1f}{colour.ratio:>10.1f}"
            f"{colour.colour_256:>8}{colour.ratio_256:>10.1f}{'' if enough else '  low'}"
        )
    return FAILED if low else DONE
