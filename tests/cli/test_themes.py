import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from textual.theme import Theme

from tui import paths, themes
from tui.contrast import contrasts
from tui.themes import SECTIONS, ThemeError

SHIPPED = ("ansi", "day", "mono", "night")
NIGHT = (themes.shipped_folder() / "night.toml").read_text()


def test_four_themes_are_shipped() -> None:
    assert tuple(themes.theme_files()) == SHIPPED
    assert themes.load_theme("night").dark and not themes.load_theme("day").dark


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_themes_are_textual_themes_with_all_variables(name: str) -> None:
    theme = themes.load_theme(name)
    made = Theme(
        name=theme.name,
        dark=theme.dark,
        ansi=theme.ansi,
        variables=theme.variables,
        **theme.colours,
    )
    assert made.to_color_system().generate()["primary"]
    for section, keys in SECTIONS.items():
        assert all(theme.variables[f"{section}-{key}"] for key in keys)


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_colours_can_be_read_in_full_and_in_256_colours(name: str) -> None:
    low = [
        c.name for c in contrasts(themes.load_theme(name)) if min(c.ratio, c.ratio_256) < c.least
    ]
    assert low == []


@pytest.mark.parametrize("name", ["day", "night"])
def test_levels_stay_apart_in_256_colours(name: str) -> None:
    shown = {
        c.colour_256 for c in contrasts(themes.load_theme(name)) if c.name.startswith("pressure-")
    }
    assert len(shown) == 3


def test_black_on_white_has_the_ratio_that_wcag_gives(tmp_path: Path) -> None:
    path = tmp_path / "paper.toml"
    path.write_text(
        "[theme]\n"
        + "".join(
            f'{key} = "{"#ffffff" if key in ("background", "surface", "panel") else "#000000"}"\n'
            for key in themes.BASE
        )
    )
    for contrast in contrasts(themes.read_theme(path)):
        assert contrast.ratio == pytest.approx(21)


def test_sections_fall_back_to_base_colours(tmp_path: Path) -> None:
    path = tmp_path / "plain.toml"
    path.write_text(NIGHT[: NIGHT.index("[pressure]")] + '[pressure]\nwarn = "#123456"\n')
    theme = themes.read_theme(path)
    assert theme.variables["pressure-warn"] == "#123456"
    assert theme.variables["pressure-critical"] == theme.colours["error"]


def test_ones_own_theme_stands_in_for_a_shipped_one() -> None:
    paths.themes().mkdir(parents=True)
    (paths.themes() / "night.toml").write_text(NIGHT.replace("#7aa2f7", "#00ff00"))
    (paths.themes() / "mine.toml").write_text(NIGHT)
    assert themes.load_theme("night").colours["primary"] == "#00ff00"
    assert themes.load_theme("mine").colours["primary"] == "#7aa2f7"


@pytest.mark.parametrize(
    ("environment", "name"),
    [
        ({"NO_COLOR": "1", "COLORTERM": "truecolor"}, "mono"),
        ({"TERM": "xterm"}, "ansi"),
        ({"TERM": "xterm-256color"}, "night"),
        ({"TERM": "xterm", "COLORTERM": "truecolor"}, "night"),
    ],
)
def test_auto_goes_by_the_terminal(
    environment: dict[str, str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("NO_COLOR", "COLORTERM", "TERM"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    assert themes.load_theme("auto").name == name


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1", ("'x'", "section")),
        ("theme = 1", ("theme", "section")),
        ("[theme]", ("no primary",)),
        ('[theme]\nprimry = "#fff"', ("'primry'", "'primary'")),
        (NIGHT.replace('"#7aa2f7"', '"blue"', 1), ("primary in [theme]", "#rrggbb", "blue")),
        (NIGHT.replace("dark = true", "dark = 1"), ("dark", "true or false")),
        (NIGHT.replace("dark = true", "ansi = true"), ("primary in [theme]", "ansi_red")),
        (NIGHT.replace("warn =", "wran ="), ("'wran'", "[pressure]", "'warn'")),
        (NIGHT + "[bits", ("not TOML",)),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(
    text: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(ThemeError) as error:
        themes.read_theme(path)
    assert all(word in str(error.value) for word in (str(path), *words))


def test_an_unknown_theme_has_a_nearest() -> None:
    with pytest.raises(ThemeError, match="did you mean 'night'"):
        themes.load_theme("nigth")


@given(
    at=st.integers(0, len(NIGHT)),
    cut=st.integers(0, 20),
    junk=st.text(st.characters(exclude_categories=("Cs",))),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_no_mutation_gives_anything_but_a_sentence(
    at: int, cut: int, junk: str, tmp_path: Path
) -> None:
    path = tmp_path / "mutated.toml"
    path.write_text(NIGHT[:at] + junk + NIGHT[at + cut :])
    try:
        themes.read_theme(path)
    except ThemeError as error:
        assert str(path) in str(error)


def test_themes_are_read_without_textual() -> None:
    code = "import sys, tui.themes; tui.themes.load_theme('night'); print('textual' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
