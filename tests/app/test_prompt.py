"""The prompt: what is sent, what is kept, and what a paste may be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual import events
from textual.app import App, ComposeResult
from textual.pilot import Pilot
from textual.widgets import Input

from tui.widgets.folds import Folds
from tui.widgets.history import History
from tui.widgets.prompt import Completion, Prompt

SIZES = [(80, 24), (120, 40), (200, 50)]
COMMANDS = [
    Completion("copy", "copy a code block"),
    Completion("clear", "start again"),
    Completion("quit", "leave"),
]


class PromptApp(App[None]):
    def __init__(self, *, history: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.prompt = Prompt(history=history, completions=COMMANDS)
        self.sent: list[str] = []
        self.ended = 0
        self.told: list[str] = []

    def compose(self) -> ComposeResult:
        yield self.prompt
        yield Input()

    def on_mount(self) -> None:
        self.prompt.focus()

    def on_prompt_submitted(self, message: Prompt.Submitted) -> None:
        self.sent.append(message.text)

    def on_prompt_end_of_input(self) -> None:
        self.ended += 1

    def notify(self, message: str, **options) -> None:  # pyright: ignore
        self.told.append(message)


async def paste(pilot: Pilot, text: str) -> None:
    pilot.app.focused.post_message(events.Paste(text))
    await pilot.pause()


async def write(pilot: Pilot, text: str) -> None:
    await pilot.press(*("space" if character == " " else character for character in text))


@pytest.mark.parametrize("size", SIZES)
async def test_enter_sends_and_empties(size: tuple[int, int]) -> None:
    app = PromptApp()
    async with app.run_test(size=size) as pilot:
        await write(pilot, "hi")
        await pilot.press("ctrl+j", "a", "shift+enter", "b", "alt+enter", "c")
        assert app.prompt.text == "hi\na\nb\nc"
        await pilot.press("enter")
        assert app.sent == ["hi\na\nb\nc"]
        assert app.prompt.text == ""


async def test_nothing_and_spaces_are_not_sent() -> None:
    app = PromptApp()
    async with app.run_test() as pilot:
        await pilot.press("enter", "space", "enter")
        assert app.sent == []
        assert app.prompt.text == " "


async def test_grows_with_the_draft_up_to_ten_rows() -> None:
    app = PromptApp()
    async with app.run_test() as pilot:
        heights = []
        for _ in range(14):
            await pilot.pause()
            heights.append(app.prompt.size.height)
            await pilot.press("ctrl+j")
        assert heights == [*range(1, 11), 10, 10, 10, 10]


async def test_escape_keeps_the_draft() -> None:
    app = PromptApp()
    async with app.run_test() as pilot:
        await write(pilot, "kept")
        await pilot.press("escape", "escape")
        assert app.prompt.text == "kept"


async def test_control_d_leaves_only_when_empty() -> None:
    app = PromptApp()
    async with app.run_test() as pilot:
        await pilot.press("a", "left", "ctrl+d")
        assert (app.prompt.text, app.ended) == ("", 0)
        await pilot.press("ctrl+d")
        assert app.ended == 1


async def test_up_and_down_walk_the_history_and_keep_the_draft() -> None:
    app = PromptApp(history=("first", "second\nrow"))
    async with app.run_test() as pilot:
        await write(pilot, "draft")
        await pilot.press("up")
        assert app.prompt.text == "second\nrow"
        await pilot.press("up")  # to its first row
        assert app.prompt.text == "second\nrow"
        await pilot.press("up", "up")
        assert app.prompt.text == "first"
        await pilot.press("down", "down")
        assert app.prompt.text == "draft"


async def test_what_was_sent_is_in_the_history() -> None:
    app = PromptApp()
    async with app.run_test() as pilot:
        await write(pilot, "one")
        await pilot.press("enter", "up")
        assert app.prompt.text == "one"


def test_history_keeps_what_was_changed_on_the_way() -> None:
    history = History(["a", "b"])
    assert history.older("draft") == "b"
    assert history.older("b changed") == "a"
    assert history.older("a") is None
    assert history.newer("a") == "b changed"
    assert history.newer("b changed") == "draft"
    history.add("b changed")
    assert history.older("") == "b changed"
    assert history.older("b changed") == "b"


async def test_a_paste_of_lines_is_one_draft() -> None:
    app = PromptApp()
    async with app.run_test() as pilot:
        await paste(pilot, "one\rtwo\r\nthree\n")
        assert app.prompt.text == "one\ntwo\nthree\n"
        assert app.sent == []


async def test_a_huge_paste_is_folded_and_sent_in_full() -> None:
    huge = "0123456789 abcdefghij 한글 line\n" * 34_000
    app = PromptApp()
    async with app.run_test() as pilot:
        await write(pilot, "Sum up: ")
        await paste(pilot, huge)
        assert app.prompt.document.text == "Sum up: [pasted 1: 1.1 MB, 34,001 lines]"
        assert app.prompt.size.height == 1
        await write(pilot, "!")
        await pilot.press("enter")
        assert app.sent == [f"Sum up: {huge}!"]


async def test_a_folded_paste_goes_whole() -> None:
    app = PromptApp()
    async with app.run_test() as pilot:
        await pilot.press("a")
        await paste(pilot, "x" * 9000)
        await pilot.press("b", "left", "backspace")
        assert app.prompt.document.text == "ab"
        await pilot.press("ctrl+z")
        assert app.prompt.text == "a" + "x" * 9000 + "b"


async def test_typing_inside_a_mark_comes_after_it() -> None:
    app = PromptApp()
    async with app.run_test() as pilot:
        await paste(pilot, "x" * 9000)
        await pilot.press("left", "left", "q")
        assert app.prompt.text == "x" * 9000 + "q"


async def test_a_binary_paste_is_refused_with_a_sentence() -> None:
    app = PromptApp()
    async with app.run_test() as pilot:
        await paste(pilot, "\x7fELF\x02\x01\x00\x00")
        assert app.prompt.text == ""
        assert app.told[0].startswith("The paste was not taken: it is binary, with 5 control")


async def test_escape_sequences_in_a_paste_are_spelt_out() -> None:
    app = PromptApp()
    async with app.run_test() as pilot:
        await paste(pilot, "a long enough text with \x1b[31mred and \u202eflipped")
        assert app.prompt.text == "a long enough text with ␛[31mred and \\u202eflipped"


async def test_wide_characters_count_two_cells() -> None:
    app = PromptApp()
    async with app.run_test(size=(80, 24)) as pilot:
        await paste(pilot, "한글👩‍🚀")
        assert app.prompt.cursor_screen_offset.x - app.prompt.content_region.x == 6
        await pilot.press("backspace", "backspace")
        assert app.prompt.text.startswith("한")


async def test_tab_completes_commands_in_turn() -> None:
    app = PromptApp()
    async with app.run_test() as pilot:
        await pilot.press("/", "c")
        assert app.prompt.suggestion == "opy"
        assert "copy a code block" in app.prompt.border_subtitle
        await pilot.press("tab")
        assert app.prompt.text == "/copy "
        await pilot.press("tab")
        assert app.prompt.text == "/clear "
        await pilot.press("tab")
        assert app.prompt.text == "/copy "


async def test_tab_moves_the_focus_where_there_is_nothing_to_complete() -> None:
    app = PromptApp()
    async with app.run_test() as pilot:
        await pilot.press("a", "tab")
        assert isinstance(app.focused, Input)


@given(st.integers(0, 60), st.integers(0, 60))
def test_an_edit_never_cuts_a_mark(start: int, end: int) -> None:
    folds = Folds()
    line = f"before {folds.fold('x' * 9000)} and {folds.fold('y' * 9000)} after"
    start, end = sorted((min(start, len(line)), min(end, len(line))))
    start, end = folds.widen(line, start, end)
    left = line[:start] + line[end:]
    assert start <= end
    assert left.count("[") == left.count("]") == left.count("pasted")


async def test_enter_never_overtakes_what_was_typed_before_it() -> None:
    app = PromptApp()
    async with app.run_test() as pilot:
        # As when the app was busy: all keys wait in its queue before the first is looked at.
        for character in "one two":
            app.post_message(events.Key("space" if character == " " else character, character))
        app.post_message(events.Key("enter", "\r"))
        await pilot.pause()
        assert app.sent == ["one two"]
