"""The whole app on an engine that recites: what a person does, and what they see."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from shown import Shown, showing
from textual.content import Content

from kvcore.memory.sample import MemorySample
from tui import messages as m
from tui import paths, sessions
from tui.bench.fake_engine import MODEL, FakeEngine
from tui.settings import Settings
from tui.widgets.layer_map import FLASH, LayerMap
from tui.widgets.projection import ProjectionPanel

SIZES = ((80, 24), (120, 40), (200, 50))


@pytest.mark.parametrize("size", SIZES)
async def test_opens_and_answers(size: tuple[int, int]) -> None:
    async with showing(size=size) as shown:
        await shown.write("hello")
        await shown.until_idle()
        await shown.until_shown("Left open: how the ratio moves past 64k tokens.")
        assert "smollm2" in shown.text
        assert shown.requests == [m.Ask("hello")]
        assert all(len(row) == size[0] for row in shown.text.split("\n"))


async def test_panels_stand_beside_the_chat() -> None:
    async with showing(size=(120, 40)) as shown:
        await shown.write("hello")
        await shown.until_idle()
        shown.engine.sample("warn", used=9 << 30)
        await shown.until_shown("▲ warn")
        for text in (
            "9.00G / 16.0G",
            "available 7.00G",
            "L0-29",
            "to context end",
            "600 tok/s",
            "reading 1,024 tokens",
        ):
            assert text in shown.text


async def test_two_rows_stand_for_the_panels() -> None:
    async with showing(size=(80, 24)) as shown:
        await shown.write("hello")
        await shown.until_idle()
        shown.engine.sample("warn", used=9 << 30)
        await shown.until_shown("9.00G/16.0G ▲ warn")
        first, second, *_ = shown.text.split("\n")
        assert "kv 6/4-bit" in first
        assert "tok to" in second
        assert "memory" not in shown.text


async def test_the_layer_table_has_a_column_of_its_own() -> None:
    async with showing(size=(200, 50)) as shown:
        await shown.write("hello")
        await shown.until_idle()
        await shown.until_shown("L29     packed   6/4")


@pytest.mark.parametrize("size", SIZES)
async def test_lowering_shows_everywhere(size: tuple[int, int]) -> None:
    engine = FakeEngine("one two three four", stall_at=2)
    async with showing(engine, size=size) as shown:
        await shown.write("hello")
        await shown.until(lambda: shown.app.live.tokens == 2)
        engine.lower(4, 3, tuple(range(10, 20)), reason="pressure is warn", level="warn")
        await shown.until(lambda: shown.app.live.acted)
        await shown.until_shown("L10-19 lowered to 4/3")
        assert any(
            "L10-19 lowered to 4/3" in entry.sentence and "pressure is warn" in entry.sentence
            for entry in shown.app.event_log.entries
        )
        if size[0] >= 120:
            await shown.until_shown("4/3  packed" if size[0] < 160 else "L10     packed   4/3")
        else:
            await shown.until_shown("kv 6/4 to 4/3-bit")
        engine.resume()
        await shown.until_idle()


async def test_a_hidden_panel_computes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[str] = []
    rows = ProjectionPanel.rows

    def counted(self: ProjectionPanel, *size: Any) -> list[Content]:
        computed.append(self.TITLE)
        return rows(self, *size)

    monkeypatch.setattr(ProjectionPanel, "rows", counted)
    async with showing(size=(120, 40)) as shown:
        shown.app.chat.tick()
        assert computed
        await shown.pilot.resize_terminal(80, 24)
        await shown.until(lambda: "tokens left" not in shown.text)
        computed.clear()
        shown.app.chat.tick()
        assert not computed


async def test_lowered_layers_stand_out_for_a_moment() -> None:
    async with showing(size=(120, 40)) as shown:
        await asked(shown)
        shown.engine.lower(4, 3, (3, 4), reason="asked for")
        map = shown.app.chat.query_one("#map", LayerMap)
        await shown.until(lambda: set(map.flashing) == {3, 4})
        map.tick(time.monotonic())
        reversed_ = [row for row in map.drawn if any("reverse" in str(s.style) for s in row.spans)]
        assert reversed_
        map.tick(time.monotonic() + FLASH + 1)
        assert not map.flashing


async def test_resizing_moves_the_panels() -> None:
    async with showing(size=(120, 40)) as shown:
        await shown.until_shown("tokens left")
        await shown.pilot.resize_terminal(80, 24)
        await shown.until(lambda: "tokens left" not in shown.text)
        await shown.pilot.resize_terminal(200, 50)
        await shown.until_shown("of fp16")
        await shown.pilot.resize_terminal(50, 12)
        await shown.until_shown("60×16 needed, this is 50×12")
        await shown.pilot.resize_terminal(100, 24)
        await shown.until_shown("kv cache")
        assert "tokens left" not in shown.text


async def test_unknown_is_a_dash() -> None:
    async with showing(size=(120, 40)) as shown:
        shown.engine.emit(m.Sampled(memory=MemorySample(time=0.0)))
        await shown.until_shown("level not known")
        assert "– / –" in shown.text
        assert "● normal" not in shown.text


async def test_old_samples_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async with showing(size=(120, 40)) as shown:
        shown.engine.sample()
        await shown.until_shown("● normal")
        shown.app.live.sampled_at = (shown.app.live.sampled_at or 0.0) - 12
        await shown.until_shown("12 s old")


async def test_loading_shows_its_stages() -> None:
    async with showing(FakeEngine(model=None)) as shown:
        shown.engine.emit(m.Loading(stage="download", done=40 << 20, total=80 << 20))
        await shown.until_shown("downloading the model")
        assert "40.0M of 80.0M" in shown.text
        await shown.write("sent too early")
        await shown.until_shown("queued: sent too early")
        assert shown.requests == []
        shown.engine.emit(m.Ready(MODEL))
        await shown.until(lambda: shown.requests == [m.Ask("sent too early")])
        await shown.until_idle()
        assert "queued" not in shown.text


async def test_reading_a_prompt_shows_how_far() -> None:
    async with showing(size=(80, 24)) as shown:
        shown.engine.emit(m.Began(prompt_tokens=18_012, reused_tokens=0, forecast_bytes=920 << 20))
        shown.engine.emit(m.Prefill(done=12_288, total=18_012, rate=612.0))
        await shown.until_shown("12,288/18,012  612 tok/s  ≈ 9.35 s left")
        assert "reading the prompt, cache to be 920M" in shown.text


async def test_a_message_written_meanwhile_waits_its_turn() -> None:
    engine = FakeEngine("first", "second", stall_at=1)
    async with showing(engine) as shown:
        await shown.write("one")
        await shown.until(lambda: shown.app.live.tokens == 1)
        await shown.write("two")
        assert "queued: two" in shown.text
        engine.stall_at = None
        engine.resume()
        await shown.until(lambda: shown.requests == [m.Ask("one"), m.Ask("two")])
        await shown.until_idle()
        await shown.until_shown("second")


async def test_esc_stops_and_keeps_text_draft_and_queue() -> None:
    async with showing(FakeEngine("one two three", stall_at=2)) as shown:
        await shown.write("question")
        await shown.until(lambda: shown.app.live.tokens == 2)
        await shown.write("queued text")
        shown.app.chat.prompt.text = "a draft"
        await shown.pilot.press("escape")
        await shown.until_idle()
        await shown.until_shown("one two")
        assert shown.app.live.turns[-1] == m.Turn("assistant", "one two", complete=False)
        assert shown.app.chat.prompt.text == "queued text\na draft"
        assert m.Stop() in shown.requests
        assert m.Ask("queued text") not in shown.requests


async def test_ctrl_c_stops_then_asks_then_quits() -> None:
    async with showing(FakeEngine("one two three", stall_at=2)) as shown:
        await shown.write("question")
        await shown.until(lambda: shown.app.live.tokens == 2)
        await shown.pilot.press("ctrl+c")
        await shown.until_idle()
        await shown.pilot.press("ctrl+c")
        await shown.until_said("Press ^c again to quit.")
        await shown.pilot.press("ctrl+c")
        await shown.until(lambda: shown.engine.closed)


async def test_ctrl_c_copies_a_selection() -> None:
    async with showing() as shown:
        shown.app.chat.prompt.text = "copy me"
        shown.app.chat.prompt.select_all()
        await shown.pilot.press("ctrl+c")
        assert (paths.state() / "copied.txt").read_text() == "copy me"


async def test_what_was_not_sent_waits_for_the_next_start() -> None:
    async with showing() as shown:
        shown.app.chat.prompt.text = "half a thought"
        await shown.pilot.press("ctrl+q")
        await shown.until(lambda: shown.engine.closed)
    async with showing() as shown:
        assert shown.app.chat.prompt.text == "half a thought"
        await shown.write("half a thought, and the rest")
        await shown.pilot.press("ctrl+q")
        await shown.until(lambda: shown.engine.closed)
    async with showing() as shown:
        assert shown.app.chat.prompt.text == ""


async def test_a_dead_engine_keeps_the_chat_and_a_new_one_gets_it() -> None:
    first, second = FakeEngine("one two three", stall_at=2), FakeEngine("again")
    async with showing(first, second) as shown:
        await shown.write("question")
        await shown.until(lambda: shown.app.live.tokens == 2)
        shown.app.chat.prompt.text = "a draft"
        first.die()
        await shown.until_shown("The engine was killed by signal 9")
        assert "one two" in shown.text
        await shown.write("meanwhile")
        assert "queued: meanwhile" in shown.text
        await shown.pilot.press("ctrl+r")
        await shown.until(lambda: m.Ask("meanwhile") in second.requests)
        assert second.setup.turns == (
            m.Turn("user", "question"),
            m.Turn("assistant", "one two", complete=False),
        )
        await shown.until_idle()
        await shown.until_shown("again")
        assert "one two" in shown.text


async def test_r_starts_a_new_engine_from_the_box() -> None:
    first, second = FakeEngine(), FakeEngine()
    async with showing(first, second) as shown:
        first.die("The engine was killed by signal 9.")
        await shown.until_shown("start a new engine")
        await shown.pilot.press("r")
        await shown.until_idle()
        assert shown.engine is second
        assert not shown.app.chat.notice.display


async def test_what_was_changed_goes_over_to_a_new_engine() -> None:
    first, second = FakeEngine(), FakeEngine()
    async with showing(first, second) as shown:
        await shown.write("/policy hard")
        await shown.write("/set temp 0.1")
        first.die()
        await shown.until(lambda: shown.app.live.phase == "dead")
        await shown.pilot.press("ctrl+r")
        await shown.until_idle()
        assert second.setup.policy == "hard"
        assert second.setup.sampling == m.Sampling(temperature=0.1)


async def test_another_model_replaces_one_that_could_not_be_loaded() -> None:
    first, second = FakeEngine(model=None), FakeEngine()
    async with showing(first, second) as shown:
        first.emit(m.Error(sentence="There is no model smolm2.", exit_code=3, fatal=True))
        await shown.until_shown("There is no model smolm2.")
        await shown.pilot.press("slash", *"model", "space", *"smollm2", "enter")
        await shown.until_idle()
        assert second.setup.model == "smollm2"


async def test_an_engine_that_cannot_be_reached_says_so() -> None:
    async with showing() as shown:

        async def refuse(setup: m.Setup) -> FakeEngine:
            raise OSError("no such socket")

        shown.engine.die()
        await shown.until(lambda: shown.app.live.phase == "dead")
        shown.app.connect = refuse
        await shown.pilot.press("ctrl+r")
        await shown.until_shown("no such socket")


def stopped_by_memory() -> m.Done:
    return m.Done(
        reason="memory",
        prompt_tokens=10,
        reused_tokens=0,
        tokens=31_870,
        prefill_rate=None,
        decode_rate=None,
        first_token=None,
        seconds=1.0,
        cache=None,
        sentence="The cache would pass --kv-limit 200M.",
    )


async def test_memory_that_is_out_says_what_can_be_done() -> None:
    engine = FakeEngine("one", "two", setup=m.Setup(model="x", limits=m.Limits(kv=200 << 20)))
    async with showing(engine) as shown:
        await shown.write("question")
        await shown.until_idle()
        engine.emit(stopped_by_memory())
        await shown.until_shown("The cache would pass --kv-limit 200M. 31,870 tokens")
        await shown.pilot.press("1")
        await shown.until(lambda: m.Regenerate() in shown.requests)
        assert m.Watch("balanced", m.Limits()) in shown.requests
        await shown.until_idle()


async def test_without_limits_memory_offers_another_try() -> None:
    async with showing() as shown:
        await shown.write("question")
        await shown.until_idle()
        shown.engine.emit(stopped_by_memory())
        await shown.until_shown("1 answer again, once other programs")
        await shown.pilot.press("2")
        await shown.until(lambda: m.Reset(None) in shown.requests)


async def test_without_a_watchdog_memory_offers_it() -> None:
    engine = FakeEngine(setup=m.Setup(model="smollm2", policy="off"))
    async with showing(engine) as shown:
        await shown.write("question")
        await shown.until_idle()
        engine.emit(stopped_by_memory())
        await shown.until_shown("1 turn the watchdog on")
        await shown.pilot.press("1")
        await shown.until(lambda: m.Watch("balanced", m.Limits()) in shown.requests)


async def test_acts_that_follow_at_once_are_one_line_in_the_chat() -> None:
    async with showing() as shown:
        await asked(shown)
        shown.engine.lower(5, 4, (0, 1), reason="pressure is warn")
        shown.engine.lower(4, 4, (2, 3), reason="pressure is warn")
        await shown.until_shown("cache lowered to 5/4, 4/4, ")


# Keys


async def asked(shown: Shown) -> None:
    await shown.write("question")
    await shown.until_idle()


async def test_panels_fold_and_fill() -> None:
    async with showing(size=(120, 40)) as shown:
        await shown.until_shown("tokens left")
        await shown.pilot.press("ctrl+o")
        await shown.until(lambda: "Ask, or / for commands" not in shown.text)
        assert "events" in shown.text
        await shown.pilot.press("ctrl+o")
        await shown.until(lambda: "tokens left" not in shown.text)
        assert "Ask, or / for commands" in shown.text
        await shown.pilot.press("ctrl+o")
        await shown.until_shown("tokens left")
        assert "Ask, or / for commands" in shown.text


async def test_panels_fill_a_small_screen() -> None:
    async with showing(size=(80, 24)) as shown:
        await shown.pilot.press("ctrl+o")
        for title in ("memory", "tokens left", "speed", "kv cache", "events"):
            await shown.until_shown(title)
        await shown.pilot.press("ctrl+o")
        await shown.until(lambda: "tokens left" not in shown.text)


async def test_layers_are_lowered_by_hand() -> None:
    async with showing(size=(120, 40)) as shown:
        await asked(shown)
        await shown.pilot.press("ctrl+l")
        await shown.until_shown("kv cache by layer")
        await shown.pilot.press("space", "space", "[", "[", "]")
        await shown.until_shown("applying frees")
        await shown.pilot.press("enter")
        await shown.until_shown("Lower L0-1?")
        await shown.pilot.press("y")
        await shown.until(lambda: m.Lower(5, 4, (0, 1)) in shown.requests)
        await shown.until_shown("L0-1 lowered to 5/4")


async def test_nothing_is_lowered_without_a_yes() -> None:
    async with showing() as shown:
        await asked(shown)
        await shown.pilot.press("ctrl+l")
        await shown.pilot.press("a", "[", "enter")
        await shown.until_shown("Lower L0-29?")
        await shown.pilot.press("n", "q")
        await shown.pilot.pause()
        assert not any(isinstance(request, m.Lower) for request in shown.requests)


async def test_grab_copies_code_then_the_answer() -> None:
    async with showing() as shown:
        await asked(shown)
        copied = paths.state() / "copied.txt"
        await shown.pilot.press("ctrl+g")
        assert copied.read_text().strip() == (
            "size = layers * heads * head_dim * tokens * bits // 8"
        )
        await shown.pilot.press("ctrl+g")
        assert copied.read_text().startswith("The cache grows with every token")


async def test_regenerate_replaces_the_answer() -> None:
    async with showing(FakeEngine("first answer", "second answer")) as shown:
        await asked(shown)
        await shown.pilot.press("ctrl+r")
        await shown.until(lambda: m.Regenerate() in shown.requests)
        await shown.until_idle()
        await shown.until_shown("second answer")
        assert "first answer" not in shown.text


async def test_edit_sends_the_last_message_anew() -> None:
    async with showing(FakeEngine("first answer", "second answer")) as shown:
        await asked(shown)
        await shown.pilot.press("escape", "e")
        assert shown.app.chat.prompt.text == "question"
        await shown.write("better question")
        await shown.until(lambda: m.Regenerate("better question") in shown.requests)
        await shown.until_idle()
        assert [turn.text for turn in shown.app.live.turns] == ["better question", "second answer"]


async def test_find_marks_and_counts() -> None:
    async with showing() as shown:
        await asked(shown)
        await shown.pilot.press("ctrl+f", *"tokens")
        await shown.until_shown("2 places")
        await shown.pilot.press("escape")
        assert shown.app.focused is shown.app.chat.transcript


async def test_new_starts_an_empty_chat() -> None:
    async with showing() as shown:
        await asked(shown)
        await shown.pilot.press("ctrl+n")
        await shown.until(lambda: m.Reset(None) in shown.requests)
        await shown.until(lambda: "Left open" not in shown.text)
        assert shown.app.live.turns == []


async def test_an_earlier_chat_goes_on() -> None:
    turns = (m.Turn("user", "what was it"), m.Turn("assistant", "it was this"))
    paths.sessions().mkdir(parents=True)
    path = sessions.path_of("earlier")
    sessions.append(path, turns)
    async with showing() as shown:
        await shown.pilot.press("ctrl+s")
        await shown.until_shown("what was it")
        await shown.pilot.press("enter")
        await shown.until(lambda: m.Restore(turns, str(path)) in shown.requests)
        await shown.until_shown("it was this")


async def test_help_lists_keys_and_commands() -> None:
    async with showing(size=(120, 60)) as shown:
        await shown.pilot.press("escape", "question_mark")
        await shown.until_shown("/policy off|careful|balanced|hard")
        await shown.pilot.press("escape")
        await shown.until(lambda: "/policy" not in shown.text)


async def test_the_palette_has_the_commands() -> None:
    async with showing() as shown:
        await shown.pilot.press("ctrl+p")
        await shown.pilot.press(*"forec")
        await shown.until_shown("how long the memory lasts")
        await shown.pilot.press("escape")


async def test_scrolling_up_stops_following() -> None:
    async with showing(FakeEngine("word " * 600), size=(80, 24)) as shown:
        await asked(shown)
        await shown.pilot.press("pageup")
        await shown.until(lambda: not shown.app.chat.transcript.following)
        await shown.pilot.press("ctrl+end")
        await shown.until(lambda: shown.app.chat.transcript.following)


# Commands


@pytest.mark.parametrize(
    ("line", "request_sent"),
    [
        ("/model other", m.Load("other")),
        ("/system be terse", m.System("be terse")),
        ("/system off", m.System(None)),
        ("/set temp 0.2", m.SetSampling(m.Sampling(temperature=0.2))),
        ("/set max_tokens 100", m.SetSampling(m.Sampling(max_tokens=100))),
        ("/bits 4/3 2-4", m.Lower(4, 3, (2, 3, 4))),
        ("/bits 4", m.Lower(4, 4, None)),
        ("/policy careful", m.Watch("careful", m.Limits())),
        ("/limit 900M", m.Watch("balanced", m.Limits(memory=900 << 20))),
        ("/limit kv 200M", m.Watch("balanced", m.Limits(kv=200 << 20))),
        ("/stop", m.Stop()),
        ("//help me", m.Ask("/help me")),
        ("/etc/hosts\nwhat is this", m.Ask("/etc/hosts\nwhat is this")),
    ],
)
async def test_commands_send(line: str, request_sent: m.Request) -> None:
    async with showing() as shown:
        await shown.write(line)
        await shown.until(lambda: request_sent in shown.requests)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("/hlep", "did you mean /help"),
        ("/set temperature hot", "temperature is a number from 0 to 5"),
        ("/set tempo 1", "did you mean 'temperature'"),
        ("/bits nine", "bits are one number or two"),
        ("/policy severe", "is no policy"),
        ("/limit much", "a size is a number"),
        ("/copy 3", "There is no code block 3"),
        ("/save", "/save needs a file's name"),
        ("/theme nihgt", "did you mean 'night'"),
        ("/fps fast", "/fps takes a number"),
        ("/export pdf", "/export takes json or md"),
    ],
)
async def test_wrong_commands_say_what_is_wrong(line: str, sentence: str) -> None:
    async with showing(size=(200, 50)) as shown:
        await shown.write(line)
        await shown.until_said(sentence)
        assert shown.requests == []
        assert shown.app.chat.prompt.text == line


async def test_plain_shows_answers_as_they_were_written() -> None:
    async with showing(FakeEngine("## Left *open*\n\n- one\n")) as shown:
        await asked(shown)
        await shown.until_shown("• one")
        await shown.write("/plain")
        await shown.until_shown("## Left *open*")
        assert "- one" in shown.text
        await shown.write("/plain")
        await shown.until_shown("• one")


async def test_export_writes_the_chat(folders: Path) -> None:
    async with showing(FakeEngine("an answer")) as shown:
        await asked(shown)
        file = folders / "chat.json"
        await shown.write(f"/export json {file}")
        await shown.until(file.exists)
        assert json.loads(file.read_text())[1]["text"] == "an answer"
        await shown.write(f"/save {folders / 'answer.md'}")
        await shown.until((folders / "answer.md").exists)
        assert (folders / "answer.md").read_text().strip() == "an answer"
        await shown.write(f"/export json {file}")
        await shown.until_said("exists already")


async def test_themes_change_while_it_runs() -> None:
    async with showing() as shown:
        await shown.write("/theme day")
        await shown.until(lambda: shown.app.theme == "day")
        dark = shown.app.theme_variables["pressure-warn"]
        await shown.write("/theme night")
        await shown.until(lambda: shown.app.theme == "night")
        assert shown.app.theme_variables["pressure-warn"] != dark


async def test_a_wrong_theme_is_a_sentence_and_the_app_opens() -> None:
    async with showing(settings=Settings(theme="nihgt")) as shown:
        await shown.until_said("There is no theme 'nihgt'")


@pytest.mark.parametrize("theme", ["ansi", "mono"])
async def test_the_terminals_own_colours_do_for_every_screen(theme: str) -> None:
    async with showing(settings=Settings(theme=theme)) as shown:
        await asked(shown)
        for keys in ("ctrl+l", "ctrl+p", "ctrl+s", "ctrl+f"):
            await shown.pilot.press(keys)
            await shown.pilot.pause()
            await shown.pilot.press("escape")
        assert shown.app.theme == theme
        assert shown.app.screen is shown.app.chat


async def test_ascii_draws_nothing_else() -> None:
    async with showing(settings=Settings(theme="night", ascii=True)) as shown:
        await asked(shown)
        shown.engine.sample("warn")
        await shown.until_shown("^ warn")
        assert shown.text.isascii(), {sign for sign in shown.text if not sign.isascii()}


def test_the_app_never_loads_the_models_libraries() -> None:
    """The engine's process has them; here they would cost seconds and hundreds of megabytes."""
    check = (
        "import sys, tui.app, tui.engine.client\n"
        "print([name for name in ('mlx', 'mlx_lm', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


async def test_a_question_longer_than_the_context_comes_back() -> None:
    class Short(FakeEngine):
        def _ask(self, text: str) -> None:
            end = {"reason": "context", "tokens": 0, "sentence": "It has 15,790 tokens."}
            self.emit(msgspec.structs.replace(stopped_by_memory(), **end))

    async with showing(Short()) as shown:
        await shown.write("hello")
        await shown.until_idle()
        await shown.until_shown("It has 15,790 tokens.")
        assert shown.app.chat.prompt.text == "hello"
        assert not shown.app.live.turns
