"""Rows of text by cells, and text that a terminal would obey made harmless."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len, split_graphemes

from tui.widgets.visible import visible
from tui.widgets.wrapping import crop, wrap, wrap_text

PROSE = st.text(alphabet="ab  한글é\u0301👩\u200d🚀🇸🇰-", max_size=120)


@given(PROSE, st.integers(1, 30))
def test_rows_fit_and_are_the_line_again(line: str, width: int) -> None:
    rows = wrap(line, width)
    assert "".join(rows) == line
    for row in rows:
        assert cell_len(row.rstrip(" ")) <= width or len(split_graphemes(row.strip())[0]) == 1


@given(PROSE, st.integers(2, 30))
def test_a_break_falls_between_graphemes(line: str, width: int) -> None:
    edges = {start for start, _, _ in split_graphemes(line)[0]} | {len(line)}
    end = 0
    for row in wrap(line, width):
        end += len(row)
        assert end in edges


def test_breaks_after_spaces_first() -> None:
    assert wrap("one two three", 9) == ["one two ", "three"]
    assert wrap("abcdefghij", 4) == ["abcd", "efgh", "ij"]
    assert wrap("한글한글", 5) == ["한글", "한글"]
    assert wrap("", 10) == [""]


def test_a_line_of_a_megabyte_is_wrapped_too() -> None:
    assert len(wrap("x" * 1_000_000, 80)) == 12_500


def test_wrap_text_drops_what_is_not_seen() -> None:
    assert wrap_text("one two \n\tx\n", 80) == ["one two", "    x", ""]


def test_crop() -> None:
    assert crop("한글", 4) == "한글"
    assert crop("한글한글", 4) == "한…"
    assert crop("abcdef", 4) == "abc…"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]0;title\x07", "␛]0;title␇"),
        ("a\r\nb\rc", "a\nb␍c"),
        ("\x9b31m", "\\x9b31m"),
        ("if \u202eflipped\u2069", "if \\u202eflipped\\u2069"),
        ("a\u2028b\x0bc\x85", "a\\u2028b␋c\\x85"),
        ("\ud800", "\\ud800"),
        ("tab\tand 한글", "tab\tand 한글"),
    ],
)
def test_what_a_terminal_would_obey_is_spelt_out(text: str, shown: str) -> None:
    assert visible(text) == shown


@given(st.text(alphabet=st.characters(exclude_categories=())))
def test_visible_text_is_safe(text: str) -> None:
    shown = visible(text)
    shown.encode()
    assert shown.splitlines() == shown.removesuffix("\n").split("\n") or not shown
    assert visible(shown) == shown
    assert all(
        character.isprintable() or character in "\n\t" for character in shown if character < "\xa0"
    )
