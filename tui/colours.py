"""Themes as Textual wants them, and the colours that panels use by name."""

from textual.color import Color
from textual.theme import Theme

from tui.themes import SECTIONS, load_theme


def textual_theme(name: str) -> Theme:
    """Raises ThemeError."""
    theme = load_theme(name)
    colours = dict(theme.colours)
    return Theme(
        name=theme.name,
        dark=theme.dark,
        ansi=theme.ansi,
        variables=theme.variables,
        primary=colours.pop("primary"),
        **colours,  # pyright: ignore[reportArgumentType]
    )


def defaults(theme: Theme) -> dict[str, str]:
    """Every variable that the stylesheet and the panels use, for a theme that lacks some."""
    named = {
        f"{section}-{key}": getattr(theme, base) or theme.primary
        for section, keys in SECTIONS.items()
        for key, base in keys.items()
    }
    return named | quiet(theme)


def quiet(theme: Theme) -> dict[str, str]:
    """Colours between the theme's text and its background: for labels, frames, histories."""
    if theme.ansi or not theme.foreground or not theme.background:
        grey, plain = "ansi_bright_black", "ansi_default"
        # Textual's own stylesheets use the last two wherever a theme says that it is ansi.
        return {
            "muted": grey,
            "line": grey,
            "spark": grey,
            "ansi-background": plain,
            "ansi-foreground": plain,
        }
    back, front = Color.parse(theme.background), Color.parse(theme.foreground)
    accent = Color.parse(theme.accent or theme.primary)
    return {
        "muted": back.blend(front, 0.62).hex,
        "line": back.blend(front, 0.25).hex,
        "spark": back.blend(accent, 0.6).hex,
    }
