"""The transcript: streaming, following, searching, and what it keeps."""

import pytest
from textual.app import App, ComposeResult

from tui import messages as m
from tui.bench.fake_engine import ANSWER, FakeEngine
from tui.widgets.transcript import Transcript

SIZES = [(80, 24), (120, 40), (200, 50)]


class TranscriptApp(App[None]):
    def __init__(self, engine: FakeEngine | None = None) -> None:
        super().__init__()
        self.engine = engine or FakeEngine()
        self.transcript = Transcript(flushes_per_second=100)

    def compose(self) -> ComposeResult:
        yield self.transcript

    async def answer(self, question: str = "What is open?") -> None:
        """Ask, and show what the engine recites to its end."""
        self.transcript.add_user(question)
        await self.engine.send(m.Ask(text=question))
        async for event in self.engine.events():
            match event:
                case m.Began():
                    self.transcript.begin_answer()
                case m.Token():
                    self.transcript.feed(event.text)
                case m.Done():
                    stopped = event.reason == "cancelled"
                    self.transcript.end_answer("stopped here" if stopped else None)
                    return

    @property
    def rows(self) -> list[str]:
        return [row.rstrip() for row in self.transcript._document.texts()]

    @property
    def screen_rows(self) -> list[str]:
        return [strip.text.rstrip() for strip in self.screen._compositor.render_strips()]


@pytest.mark.parametrize("size", SIZES)
async def test_an_answer_streams_in_and_ends_as_markdown(size: tuple[int, int]) -> None:
    app = TranscriptApp()
    async with app.run_test(size=size) as pilot:
        await app.answer()
        await pilot.pause()
        assert app.rows[:6] == [
            "▌ you",
            "▌ What is open?",
            "",
            "The cache grows with every token, and nothing is given back.",
            "",
            "• keys tolerate 4 bits once they are rotated",
        ]
        assert app.rows[-1] == "Left open: how the ratio moves past 64k tokens."
        assert app.transcript.last_answer() == ANSWER
        assert app.transcript.code_blocks() == [
            "size = layers * heads * head_dim * tokens * bits // 8\n"
        ]
        assert any("Left open" in row for row in app.screen_rows)


async def test_the_open_block_is_shown_before_it_closes() -> None:
    app = TranscriptApp()
    async with app.run_test() as pilot:
        app.transcript.begin_answer()
        app.transcript.feed("Closed.\n\nStill **op")
        app.transcript.flush()
        await pilot.pause()
        assert app.rows == ["Closed.", "", "Still **op"]
        assert app.transcript.last_answer() == "Closed.\n\nStill **op"
        app.transcript.feed("en**")
        app.transcript.end_answer("stopped here")
        await pilot.pause()
        assert app.rows == ["Closed.", "", "Still open", "", "stopped here"]


async def test_the_timer_shows_what_was_fed() -> None:
    app = TranscriptApp()
    async with app.run_test() as pilot:
        app.transcript.begin_answer()
        app.transcript.feed("word")
        while app.rows != ["word"]:
            await pilot.pause(0.01)


async def test_a_rule_comes_above_the_open_block() -> None:
    app = TranscriptApp()
    async with app.run_test():
        app.transcript.begin_answer()
        app.transcript.feed("One.\n\nTwo")
        app.transcript.flush()
        app.transcript.add_rule("lowered")
        app.transcript.end_answer()
        assert [row.strip("─ ") for row in app.rows] == ["One.", "", "lowered", "", "Two"]
        assert app.transcript.last_answer() == "One.\n\nTwo"


def filled(app: TranscriptApp, lines: int = 200) -> None:
    app.transcript.begin_answer()
    app.transcript.feed("".join(f"line {number}\n\n" for number in range(lines)))
    app.transcript.flush()


@pytest.mark.parametrize("size", SIZES)
async def test_follows_until_scrolled_and_again_at_the_end(size: tuple[int, int]) -> None:
    app = TranscriptApp()
    async with app.run_test(size=size) as pilot:
        app.transcript.focus()
        filled(app)
        await pilot.pause()
        assert app.transcript.scroll_y == app.transcript.max_scroll_y > 0
        assert app.transcript.new_lines == 0

        await pilot.press("up", "up")
        await pilot.wait_for_animation()
        place = app.transcript.scroll_y
        app.transcript.feed("more\n\n" * 10)
        app.transcript.flush()
        await pilot.pause()
        assert not app.transcript.following
        assert app.transcript.scroll_y == place
        assert "new lines" in app.screen_rows[-1]
        app.transcript.end_answer()
        await pilot.pause()
        assert app.transcript.scroll_y == place

        await pilot.press("end")
        await pilot.pause()
        assert app.transcript.following
        assert app.screen_rows[-1].strip().startswith("more")


async def test_the_badge_counts_and_leads_to_the_end() -> None:
    app = TranscriptApp()
    async with app.run_test() as pilot:
        filled(app)
        await pilot.pause()
        app.transcript.scroll_home(animate=False)
        await pilot.pause()
        app.transcript.feed("a\n\nb\n\nc\n\n")
        app.transcript.flush()
        await pilot.pause()
        assert app.transcript.new_lines == 6
        assert "↓ 6 new lines" in app.screen_rows[-1]
        await pilot.click(app.transcript, offset=(70, 23))
        await pilot.pause()
        assert app.transcript.following


async def test_a_narrower_screen_keeps_the_place() -> None:
    app = TranscriptApp()
    async with app.run_test(size=(120, 24)) as pilot:
        app.transcript.begin_answer()
        app.transcript.feed("".join(f"no{n} {'long paragraph ' * 20}\n\n" for n in range(60)))
        app.transcript.end_answer()
        await pilot.pause()
        app.transcript.scroll_to(y=app.rows.index("") * 20 + 20, animate=False, immediate=True)
        await pilot.pause()
        top = app.screen_rows[0].split()[0]
        assert top.startswith("no")
        await pilot.resize_terminal(60, 24)
        while max(map(len, app.rows)) > 60:
            await pilot.pause()
        await pilot.pause()
        assert app.screen_rows[0].split()[0] == top
        assert not app.transcript.following


async def test_a_long_chat_is_loaded_newest_first_and_stays_responsive() -> None:
    turns = [
        turn
        for number in range(150)
        for turn in (m.Turn("user", f"question {number}"), m.Turn("assistant", ANSWER))
    ]
    app = TranscriptApp()
    async with app.run_test() as pilot:
        app.transcript.load(turns)
        await pilot.pause()
        assert any("Left open" in row for row in app.screen_rows)
        while "▌ question 0" not in app.rows:
            await pilot.pause()
        assert app.transcript.following
        assert app.transcript.scroll_y == app.transcript.max_scroll_y
        assert len(app.transcript.code_blocks()) == 150
        assert "/copy 150" in "\n".join(app.rows[-8:])


async def test_a_stopped_turn_says_so_when_loaded() -> None:
    app = TranscriptApp()
    async with app.run_test():
        app.transcript.load([m.Turn("user", "q"), m.Turn("assistant", "half", complete=False)])
        assert app.rows[-3:] == ["half", "", "Stopped here."]


async def test_finds_in_everything_over_row_ends() -> None:
    app = TranscriptApp()
    async with app.run_test(size=(40, 12)) as pilot:
        app.transcript.add_user("the Needle in the haystack")
        filled(app)
        app.transcript.feed("a rather long row that is wrapped before the need and the NEEDLE\n")
        app.transcript.flush()
        assert app.transcript.find("needle") == 2
        await pilot.pause()
        assert "NEEDLE" in "\n".join(app.screen_rows)
        app.transcript.find_next()
        await pilot.pause()
        assert "Needle" in app.screen_rows[1]
        assert app.transcript.find("that is wrapped") == 1
        assert app.transcript.find("nowhere") == 0
        assert app.transcript.find("") == 0


async def test_what_is_found_is_marked() -> None:
    app = TranscriptApp()
    async with app.run_test():
        app.transcript.add_user("한글 and needle here")
        app.transcript.find("needle")
        strip = app.transcript.render_line(1)
        marked = app.transcript._style("transcript--found").bgcolor
        assert "".join(s.text for s in strip if s.style and s.style.bgcolor == marked) == "needle"


async def test_escape_sequences_are_shown_and_harmless() -> None:
    app = TranscriptApp()
    async with app.run_test() as pilot:
        app.transcript.add_user("\x1b]52;c;ZXZpbA==\x07")
        app.transcript.begin_answer()
        for piece in ("\x1b[2J", "\x1b]8;;http://x\x1b", "\\link\r", "\nnext \u202eflip\x9b", "\r"):
            app.transcript.feed(piece)
            app.transcript.flush()
        app.transcript.end_answer("\x1b[31m")
        app.transcript.add_rule("\x07")
        await pilot.pause()
        text = "\n".join(app.screen_rows)
        assert "␛]52;c;" in text and "␛[2J" in text and "\\u202e" in text
        assert not any(character < " " and character != "\n" for character in text)
        assert "\x1b" not in app.transcript.last_answer()
        assert "link next" in text  # "\r\n" in two pieces is one line end


async def test_links_run_no_action() -> None:
    app = TranscriptApp()
    async with app.run_test() as pilot:
        app.transcript.begin_answer()
        app.transcript.feed("[click](http://a.b) [@click=app.quit]me[/]\n")
        app.transcript.end_answer()
        await pilot.pause()
        assert app.screen_rows[0].strip() == "click (http://a.b) [@click=app.quit]me[/]"
        for segment in app.transcript.render_line(0):
            assert segment.style is None or not segment.style.link
            assert segment.style is None or "@click" not in segment.style.meta


async def test_references_are_resolved_when_the_answer_ends() -> None:
    app = TranscriptApp()
    async with app.run_test():
        app.transcript.begin_answer()
        app.transcript.feed("See [the paper][1].\n\nMore.\n\n[1]: http://example.org\n")
        app.transcript.end_answer()
        assert app.rows == ["See the paper (http://example.org).", "", "More."]


async def test_wide_characters_keep_their_cells() -> None:
    app = TranscriptApp()
    async with app.run_test(size=(40, 12)) as pilot:
        app.transcript.begin_answer()
        app.transcript.feed("한글" * 30 + "👩‍🚀" * 9)
        app.transcript.flush()
        await pilot.pause()
        for y in range(4):
            assert app.transcript.render_line(y).cell_length == 38
        assert "".join(app.rows) == "한글" * 30 + "👩‍🚀" * 9
        assert app.rows[0] == "한글" * 9


async def test_the_mouse_selects_text() -> None:
    app = TranscriptApp()
    async with app.run_test(size=(40, 12)) as pilot:
        app.transcript.begin_answer()
        app.transcript.feed("one two\n\nthree four")
        app.transcript.flush()
        await pilot.pause()
        await pilot.mouse_down(app.transcript, offset=(5, 0))
        await pilot.hover(app.transcript, offset=(6, 2))
        await pilot.mouse_up(app.transcript, offset=(6, 2))
        assert app.screen.get_selected_text() == "two\n\nthree"


async def test_selecting_over_short_and_empty_rows() -> None:
    app = TranscriptApp()
    async with app.run_test(size=(40, 12)) as pilot:
        app.transcript.begin_answer()
        app.transcript.feed("a\n\n한글\n\nb")
        app.transcript.flush()
        await pilot.pause()
        await pilot.mouse_down(app.transcript, offset=(30, 0))
        await pilot.hover(app.transcript, offset=(30, 4))
        await pilot.mouse_up(app.transcript, offset=(30, 4))
        await pilot.pause()
        assert app.screen.get_selected_text() == "\n\n한글\n\nb"


async def test_loading_ends_an_answer_that_was_being_written() -> None:
    app = TranscriptApp()
    async with app.run_test():
        app.transcript.begin_answer()
        app.transcript.feed("old")
        app.transcript.load([m.Turn("user", "new")])
        app.transcript.flush()
        assert app.rows == ["▌ you", "▌ new"]
        assert app.transcript.last_answer() == ""


async def test_a_theme_change_redraws() -> None:
    app = TranscriptApp()
    async with app.run_test() as pilot:
        await app.answer()
        await pilot.pause()
        before = app.transcript._document.row(0)
        app.theme = "textual-light"
        await pilot.pause()
        after = app.transcript._document.row(0)
        assert [segment.text for segment in after] == [segment.text for segment in before]
        assert after != before


async def test_stopping_keeps_the_text() -> None:
    app = TranscriptApp(FakeEngine("one two three four", stall_at=2))
    async with app.run_test() as pilot:
        answer = app.run_worker(app.answer())
        while app.engine.tokens < 1026:
            await pilot.pause()
        await app.engine.send(m.Stop())
        await answer.wait()
        assert app.rows[-3:] == ["one two", "", "stopped here"]
