"""Colour themes: one TOML file each, shipped beside the program or in the user's config folder.

The file's name is the theme's. `[theme]` holds Textual's base colours, all of them; the other
sections are the panels' own colours, each of which falls back to a base colour.
"""

import os
import re
import reprlib
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tui import guard, paths
from tui.settings import nearest

BASE = (
    "primary",
    "secondary",
    "warning",
    "error",
    "success",
    "accent",
    "foreground",
    "background",
    "surface",
    "panel",
)
SECTIONS = {
    "pressure": {"normal": "success", "warn": "warning", "critical": "error"},
    "memory": {
        "weights": "primary",
        "cache": "accent",
        "scratch": "secondary",
        "other": "foreground",
    },
    "bits": {"2": "error", "4": "warning", "8": "success", "16": "primary"},
    "chat": {"user": "primary", "action": "warning"},
}
"""The colours of each section, and the base colours that they fall back to."""

_HUES = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
TERMINAL_COLOURS = (
    "ansi_default",
    *(f"ansi_{hue}" for hue in _HUES),
    *(f"ansi_bright_{hue}" for hue in _HUES),
)

# A terminal's own colours may be light or dark: reversing them always shows.
_ANSI_VARIABLES = {
    "block-cursor-foreground": "ansi_default",
    "block-cursor-background": "ansi_default",
    "block-cursor-text-style": "reverse",
    "block-cursor-blurred-text-style": "bold",
    "button-focus-text-style": "reverse",
    "input-cursor-text-style": "reverse",
}


@dataclass(frozen=True)
class ColourTheme:
    """The arguments of textual.theme.Theme, for who may import it.

    `colours` has every name in BASE; `variables` those of SECTIONS, as "pressure-warn".
    With `ansi`, all are the terminal's own colours, as "ansi_red"; else all are "#rrggbb".
    """

    name: str
    dark: bool
    ansi: bool
    colours: dict[str, str]
    variables: dict[str, str]


class ThemeError(Exception):
    """One sentence: what is wrong, in which file, what is allowed."""


def shipped_folder() -> Path:
    """Inside the package where it is installed, beside it in a checkout."""
    here = Path(__file__).parent
    installed = here / "themes"
    return installed if installed.is_dir() else here.parent / "themes"


def theme_files() -> dict[str, Path]:
    """All themes by name; the user's own stand in for shipped ones of the same name."""
    found = {}
    for folder in (shipped_folder(), paths.themes()):
        if folder.is_dir():
            found |= {path.stem: path for path in sorted(folder.glob("*.toml"))}
    return found


def automatic() -> str:
    """The theme that fits the terminal, by its environment."""
    if "NO_COLOR" in os.environ:
        return "mono"
    return "ansi" if guard.few_colours() else "night"


def load_theme(name: str) -> ColourTheme:
    """The theme called `name`, or the automatic one for "auto". Raises ThemeError."""
    files = theme_files()
    if name == "auto":
        name = automatic()
    if name not in files:
        near = f"; did you mean {nearest(name, files)!r}?" if files else "."
        raise ThemeError(
            f"There is no theme {name!r}{near} Known: {', '.join(files) or 'none'}; "
            f"your own go into {paths.themes()}."
        )
    return read_theme(files[name])


def read_theme(path: Path) -> ColourTheme:
    """Raises ThemeError for a file that is no theme."""
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ThemeError(f"Cannot read the theme {path}: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise ThemeError(f"The theme {path} is not UTF-8 text.") from None
    except (ValueError, RecursionError) as error:
        raise ThemeError(f"The theme {path} is not TOML: {error}.") from None
    try:
        return _theme(path.stem, document)
    except ThemeError as error:
        raise ThemeError(f"The theme {path} is wrong: {error}.") from None


def _theme(name: str, document: dict[str, Any]) -> ColourTheme:
    _known(document, ("theme", *SECTIONS), "section")
    base = _section(document, "theme", ("dark", "ansi", *BASE))
    flags = {}
    for key, default in (("dark", True), ("ansi", False)):
        flags[key] = base.pop(key, default)
        if not isinstance(flags[key], bool):
            raise ThemeError(f"{key} in [theme] is true or false, not {reprlib.repr(flags[key])}")
    ansi = flags["ansi"]
    colours = {key: _colour(base, "theme", key, ansi) for key in BASE}
    variables = dict(_ANSI_VARIABLES) if ansi else {}
    for section, fallbacks in SECTIONS.items():
        given = _section(document, section, tuple(fallbacks))
        for key, fallback in fallbacks.items():
            variables[f"{section}-{key}"] = (
                _colour(given, section, key, ansi) if key in given else colours[fallback]
            )
    return ColourTheme(name=name, colours=colours, variables=variables, **flags)


def _section(document: dict[str, Any], name: str, known: tuple[str, ...]) -> dict[str, Any]:
    section = document.get(name, {})
    if not isinstance(section, dict):
        raise ThemeError(f"{name} is a section, [{name}], not a value")
    _known(section, known, f"key of [{name}]")
    return dict(section)


def _known(given: dict[str, Any], known: tuple[str, ...], what: str) -> None:
    for key in given:
        if key not in known:
            raise ThemeError(f"{key!r} is no {what}; the nearest is {nearest(key, known)!r}")


def _colour(section: dict[str, Any], name: str, key: str, ansi: bool) -> str:
    if key not in section:
        raise ThemeError(f"[{name}] has no {key}")
    value = section[key]
    if ansi:
        if value not in TERMINAL_COLOURS:
            raise ThemeError(
                f"{key} in [{name}] is one of {', '.join(TERMINAL_COLOURS)}, "
                f"not {reprlib.repr(value)}"
            )
    elif not isinstance(value, str) or not re.fullmatch("#[0-9a-fA-F]{6}", value):
        raise ThemeError(f'{key} in [{name}] is "#rrggbb", not {reprlib.repr(value)}')
    return value
