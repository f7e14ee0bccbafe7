"""An answer cut into blocks, whatever the pieces it arrives in."""

from itertools import pairwise
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tui.widgets import blocks
from tui.widgets.blocks import ITEMS, LIMIT, Block, Blocks

LINES = st.sampled_from(
    [
        "a line of prose",
        "",
        "   ",
        "```python",
        "```",
        "~~~~",
        "    ```",
        "- item",
        "- ```sh",
        "  more of it",
        "1. first",
        "12) twelfth",
        "2024 was a year",
        "**bold** start",
        "| a | b |",
        "|---|---|",
        "---",
        "# Heading",
        "> quoted",
        "[x]: http://example.org",
        "x" * 90,
        "한글 " * 20,
        "e\u0301" * 50,
    ]
)
ANSWERS = st.builds(
    lambda lines, end: "\n".join(lines) + end,
    st.lists(LINES, max_size=60),
    st.sampled_from(["", "\n", "\n\n"]),
)


def split(text: str, cuts: list[int] | None = None) -> list[Block]:
    cutter = Blocks()
    closed: list[Block] = []
    edges = sorted({0, *(cut % (len(text) + 1) for cut in cuts or []), len(text)})
    for start, end in pairwise(edges):
        closed += cutter.feed(text[start:end])
    return closed + cutter.finish()


@given(st.one_of(ANSWERS, st.text(alphabet="a1-.*`~| \t\n:", max_size=200)), st.data())
@settings(max_examples=300)
def test_nothing_is_lost_and_pieces_do_not_matter(text: str, data: st.DataObject) -> None:
    cuts = data.draw(st.lists(st.integers(0, 2000), max_size=40))
    with patch.multiple(blocks, LIMIT=120, ITEMS=4):
        whole = split(text)
        assert "".join(block.text for block in whole) == text
        assert split(text, cuts) == whole
        assert split(text, list(range(len(text)))) == whole
        assert all(len(block.text) <= 120 + 32 for block in whole)


def texts(answer: str) -> list[str]:
    return [block.text for block in split(answer)]


def test_a_blank_line_closes_a_paragraph() -> None:
    assert texts("one\ntwo\n\nthree") == ["one\ntwo\n\n", "three"]


def test_a_blank_line_in_a_fence_does_not() -> None:
    assert texts("```\na\n\nb\n```\nafter\n") == ["```\na\n\nb\n```\n", "after\n"]


def test_a_fence_starts_its_own_block() -> None:
    assert texts("like this:\n```\na\n```\n") == ["like this:\n", "```\na\n```\n"]


def test_a_fence_ends_only_at_marks_as_long() -> None:
    assert texts("````\n```\n\n````\nx") == ["````\n```\n\n````\n", "x"]


def test_marks_deeper_than_the_fence_are_code() -> None:
    assert texts("```\n    ```\n\n```\nx") == ["```\n    ```\n\n```\n", "x"]


def test_a_loose_list_stays_together() -> None:
    answer = "1. one\n\n   more\n\n2. two\n\n   ```\n   code\n   ```\n\n3. three\n\nafter"
    assert texts(answer) == [answer.removesuffix("after"), "after"]


def test_prose_after_a_list_is_its_own_block_at_its_first_letter() -> None:
    cutter = Blocks()
    assert cutter.feed("- one\n- two\n\n") == []
    assert cutter.feed("A") == [Block("- one\n- two\n\n")]
    assert cutter.open == "A"


@pytest.mark.parametrize("marker", ["- item {}\n", "{}. item\n"])
def test_a_long_list_closes_after_some_items(marker: str) -> None:
    answer = "".join(marker.format(number) for number in range(1, 2 * ITEMS + 4))
    whole = split(answer)
    assert [block.text.count("item") for block in whole] == [ITEMS, ITEMS, 3]
    assert [block.continues for block in whole] == [False, True, True]


def test_a_long_table_repeats_its_head() -> None:
    head = "| a | b |\n|---|--:|\n"
    answer = head + "".join(f"| {row} | x |\n" for row in range(ITEMS + 2))
    first, second = split(answer)
    assert first.text.count("\n") == ITEMS + 2
    assert second == Block(f"| {ITEMS} | x |\n| {ITEMS + 1} | x |\n", head, continues=True)


def test_a_long_fence_goes_on_in_the_next_block() -> None:
    answer = "```python\n" + "x = 1\n" * 1000 + "```\nafter"
    *fence, last = split(answer)
    assert len(fence) == 2
    assert fence[1].source.startswith("```python\nx = 1\n") and fence[1].continues
    assert last == Block("after")


def test_a_line_without_end_is_cut_at_a_space() -> None:
    first, second = split("word " * 900)
    assert first.text.endswith(" ") and len(first.text) <= LIMIT
    assert second.continues


def test_definitions_are_found_outside_code() -> None:
    assert Block("see [x]\n[x]: http://a\n").definitions == ["[x]: http://a"]
    assert Block("```\n[x]: http://a\n```\n").definitions == []
