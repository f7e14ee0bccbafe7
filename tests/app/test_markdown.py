"""Markdown as rows: nothing is lost, nothing is too wide, nothing can be clicked."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import split_graphemes
from rich.style import Style

from tui.widgets.blocks import Blocks
from tui.widgets.entries import Answer, Rule, UserTurn
from tui.widgets.markdown import Drawing, parse
from tui.widgets.palette import Palette

PALETTE = Palette(code=Style(bgcolor="black"), user=Style(bold=True))
SOURCE = st.lists(
    st.sampled_from(
        [
            *(
                "word ",
                "한글",
                "\n",
                "\n\n",
                "- ",
                "1. ",
                "  ",
                "> ",
                "```py\n",
                "x = 'a'",
                "`",
                "**",
            ),
            *("| a | b |\n|---|--:|\n", "| 1 | 2 |\n", "[x](http://y)", "![i](u)", "<b>", "# "),
            *("---\n", "[x]", "[x]: http://z\n", "\\", "&amp;", "~~", "    ", "\t", "👩‍🚀"),
            "long" * 20,
        ]
    ),
    max_size=40,
).map("".join)


def rows(source: str, width: int = 40) -> list[str]:
    return [row.plain.rstrip() for row in Drawing(PALETTE).rows(parse(source), width)]


@given(SOURCE, st.integers(2, 90))
@settings(max_examples=300)
def test_any_markdown_is_drawn_within_the_width(source: str, width: int) -> None:
    for row in Drawing(PALETTE).rows(parse(source), width):
        assert row.cell_len <= width or len(split_graphemes(row.plain)[0]) == 1


@given(st.lists(st.sampled_from(["alpha", "beta", "- ", "\n", "\n\n", "> ", "| ", "<i>"])))
def test_no_word_is_lost(parts: list[str]) -> None:
    source = " ".join(parts)
    shown = "".join(rows(source, 30))
    for word in ("alpha", "beta", "<i>"):
        assert shown.count(word) == source.count(word)


def test_lists_hang() -> None:
    source = "- one two three four five\n- six\n  1. nested\n"
    assert rows(source, 16) == ["• one two three", "  four five", "• six", "  1. nested"]


def test_a_list_goes_on_counting() -> None:
    assert rows("21. a\n22. b\n") == ["21. a", "22. b"]


def test_code_keeps_its_spaces_and_has_a_number() -> None:
    shown = rows("```python\nif a:\n        b = 'x'\n```\n", 20)
    assert shown == [" python     /copy 1", " if a:", "         b = 'x'"]


def test_a_wide_table_shrinks() -> None:
    source = "| a | b |\n|---|--:|\n| " + "word " * 12 + "| 1 |\n"
    assert rows(source, 24) == [
        "a                  │   b",
        "───────────────────┼────",
        "word word word     │   1",
        "word word word     │",
        "word word word     │",
        "word word word     │",
    ]


def test_a_link_shows_where_it_leads_and_does_nothing() -> None:
    drawn = Drawing(PALETTE).rows(parse("[here](http://a.b) <http://c.d> <a href='x'>raw</a>"), 80)
    assert drawn[0].plain == "here (http://a.b) http://c.d <a href='x'>raw</a>"
    for span in drawn[0].spans:
        assert not isinstance(span.style, str)
        assert span.style.link is None and not span.style.meta


def answers(text: str) -> list[Answer]:
    cutter = Blocks()
    drawn: list[Answer] = []
    for block in [*cutter.feed(text), *cutter.finish()]:
        drawn.append(Answer(block, previous=drawn[-1] if drawn else None))
    return drawn


def test_a_table_in_several_blocks_keeps_its_columns() -> None:
    text = "| number | b |\n|---|---|\n" + "".join(f"| {n} | {'x' * n} |\n" for n in range(50))
    shown = [row.plain for answer in answers(text) for row in answer.rows(60, PALETTE)]
    assert len(answers(text)) == 3
    assert sum("number" in row for row in shown) == 1
    assert {row.index("│") for row in shown if "│" in row} == {7}


def test_code_in_several_blocks_is_one_to_look_at() -> None:
    text = "```python\n" + "value = 'one line of it'\n" * 300 + "```\n"
    parts = answers(text)
    shown = [row.plain.strip() for part in parts for row in part.rows(60, PALETTE)]
    assert len(parts) == 2
    assert shown == ["python" + " " * 45 + "/copy 1", *["value = 'one line of it'"] * 300]


def test_user_turns_are_not_markdown() -> None:
    shown = [row.plain for row in UserTurn("**a**\n\n- b").rows(40, PALETTE)]
    assert shown == ["▌ you", "▌ **a**", "▌ ", "▌ - b"]


@pytest.mark.parametrize(
    ("text", "rows", "more"),
    [("line\n" * 1000, 40, 4799), ("x" * 9000, 106, 5000), ("short\n" * 40, 40, 0)],
)
def test_a_long_user_turn_says_how_much_follows(text: str, rows: int, more: int) -> None:
    _, *shown = [row.plain for row in UserTurn(text).rows(40, PALETTE)]
    last = f"▌ … {more:,} more characters, sent in full"
    assert (last in shown) == bool(more)
    assert len(shown) - bool(more) == rows


def test_a_rule_fills_its_row() -> None:
    (row,) = Rule("18:02:19 cache lowered to 4 bits here (-202M)").rows(60, PALETTE)
    assert re.fullmatch(r"── 18:02:19 .* \(-202M\) ─+", row.plain)
    assert row.cell_len == 60
