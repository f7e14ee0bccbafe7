"""Panels show what the engine said, and `–` for what it did not."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcore.memory.sample import MemorySample
from kvcore.report import LayerReport
from tui import messages as m
from tui.bench.fake_engine import FakeEngine, layer_report
from tui.live import Live
from tui.sentences import ranges, sentence
from tui.widgets.event_log import EventLog, EventPanel
from tui.widgets.layer_map import LayerMap, bits_in_use
from tui.widgets.memory_panel import MemoryPanel, bar, shares
from tui.widgets.panel import Panel
from tui.widgets.progress import Progress
from tui.widgets.projection import ProjectionPanel
from tui.widgets.status_line import StatusLine, doing
from tui.widgets.throughput import ThroughputPanel

SIDE = 38
SAMPLE = m.Sampled(
    memory=MemorySample(
        time=0.0,
        total=32 << 30,
        used=20 << 30,
        available=12 << 30,
        swap_used=0,
        swap_out_per_second=0,
        level="warn",
        level_source="PSI full avg10 1.2 %",
        process=6 << 30,
        mlx_active=6 << 30,
        mlx_cache=1 << 30,
        gpu_used=7 << 30,
        gpu_limit=21 << 30,
    ),
    weights=4 << 30,
    cache=1 << 30,
    projection=m.Projection(
        bytes_per_token=53453.0,
        tokens_to_warn=31_200,
        tokens_to_limit=300_000,
        limit="GPU",
        tokens_to_context=112_000,
        tokens_at_floor=45_600,
    ),
)


@pytest.fixture
def live() -> Live:
    return Live(m.Setup(model="smollm2"))


def drawn(panel: Panel, width: int = SIDE, height: int = 20, now: float | None = None) -> str:
    rows = panel.rows(width, height, time.monotonic() if now is None else now)
    assert all(row.cell_length <= width for row in rows), [row.plain for row in rows]
    return "\n".join(row.plain for row in rows)


PANELS = (
    MemoryPanel,
    LayerMap,
    ProjectionPanel,
    ThroughputPanel,
    StatusLine,
)


@pytest.mark.parametrize("panel", PANELS)
def test_nothing_known_is_a_dash_and_no_figure(panel: type[Panel], live: Live) -> None:
    shown = drawn(panel(live))
    assert "–" in shown
    # The level's 60 s, the floor's 2/2 and the cache's own 6/4 are names, not figures.
    names = ("60 s", "2/2", "6/4", "fp16", "smollm2")
    for name in names:
        shown = shown.replace(name, "")
    assert not any(sign in "123456789" for sign in shown)


@pytest.mark.parametrize("panel", PANELS)
@pytest.mark.parametrize("width", [24, 38, 58, 78])
def test_rows_fit_at_any_width(panel: type[Panel], width: int, live: Live) -> None:
    live.take(SAMPLE)
    for row in panel(live).rows(width, 20, 0.0):
        assert row.truncate(width).cell_length <= width


def test_memory_says_what_was_sampled(live: Live) -> None:
    live.take(SAMPLE)
    shown = drawn(MemoryPanel(live))
    assert "20.0G / 32.0G" in shown
    assert "▲ warn" in shown
    assert "PSI full avg10 1.2 %" in shown
    assert "available 12.0G" in shown
    assert "7.00G / 21.0G" in shown
    # Active and pooled, less weights and cache: 6 + 1 - 4 - 1.
    assert "scratch    2.00G" in shown
    assert "other      13.0G" in shown


def test_a_memory_limit_stands_beside_what_mlx_holds() -> None:
    live = Live(m.Setup(model="x", limits=m.Limits(memory=8 << 30)))
    live.take(SAMPLE)
    assert "6.00G / 8.00G" in drawn(MemoryPanel(live))


def test_shares_that_are_not_known_are_none() -> None:
    parts = shares(m.Sampled(memory=MemorySample(time=0.0, used=5 << 30), weights=1 << 30))
    assert parts["scratch"] is None
    assert parts["cache"] is None
    assert parts["other"] == 4 << 30


@given(
    st.integers(1, 200),
    st.integers(1, 2**40),
    st.integers(0, 2**41),
    st.integers(0, 2**40),
    st.integers(0, 2**40),
)
def test_the_bar_is_exactly_as_wide_as_asked(
    width: int, total: int, used: int, weights: int, cache: int
) -> None:
    sample = m.Sampled(
        memory=MemorySample(time=0.0, total=total, used=used), weights=weights, cache=cache
    )
    assert bar(sample, width).cell_length == width


def test_history_says_how_far_it_moved(live: Live) -> None:
    for used in (10, 11, 12):
        live.take(m.Sampled(memory=MemorySample(time=0.0, total=32 << 30, used=used << 30)))
    assert "+2.00G" in drawn(MemoryPanel(live))


def test_projection_in_tokens_and_time(live: Live) -> None:
    live.take(SAMPLE)
    live.take(m.Token(text="a", count=1, rate=41.2))
    shown = drawn(ProjectionPanel(live))
    assert "31.2k to memory warn" in shown
    assert "≈ 12m 37s" in shown
    assert "300k to GPU limit" in shown
    assert "45.6k all layers at 2/2" in shown
    assert "112k to context end" in shown


def layers(*bits: tuple[int, int], tokens: int = 4096) -> m.Layers:
    reports = tuple(layer_report(index, tokens, *pair) for index, pair in enumerate(bits))
    return m.Layers(
        tokens=tokens,
        nbytes=sum(report.nbytes for report in reports),
        half_nbytes=sum(report.half_nbytes or 0 for report in reports),
        layers=reports,
    )


def test_equal_neighbours_stand_together(live: Live) -> None:
    live.take(layers(*[(6, 4)] * 8, *[(5, 4)] * 14, *[(6, 4)] * 8))
    rows = drawn(LayerMap(live)).splitlines()
    assert [row.split()[0] for row in rows if row.startswith("L")] == ["L0-7", "L8-21", "L22-29"]
    assert "keys   666666665555555555555566666666" in rows
    assert "4,096 tokens" in rows[0]


def test_the_foot_has_all_bytes_and_the_one_ratio(live: Live) -> None:
    event = layers(*[(6, 4)] * 30)
    live.take(event)
    shown = drawn(LayerMap(live))
    assert event.half_nbytes
    assert f"{event.half_nbytes / event.nbytes:.1f}× smaller" in shown


def test_the_table_has_a_row_a_layer_where_there_is_room(live: Live) -> None:
    live.take(layers(*[(6, 4)] * 30))
    table = LayerMap(live, table=True)
    tall = drawn(table, width=56, height=40).splitlines()
    assert [row.split()[0] for row in tall if row.startswith("L")] == [f"L{i}" for i in range(30)]
    short = drawn(table, width=56, height=12).splitlines()
    assert [row.split()[0] for row in short if row.startswith("L")] == ["L0-29"]
    assert len(short) == 12


def test_groups_that_do_not_fit_are_counted(live: Live) -> None:
    live.take(layers(*[(6, 4), (5, 4)] * 15))
    rows = drawn(LayerMap(live), height=8).splitlines()
    assert len(rows) == 8
    assert "… 25 more groups" in rows


def test_other_kinds_say_what_they_are(live: Live) -> None:
    kinds = ("full", "sliding", "state", "latent")
    reports = tuple(
        LayerReport(index=index, kind=kind, tokens=100, nbytes=1000)
        for index, kind in enumerate(kinds)
    )
    live.take(m.Layers(tokens=100, nbytes=4000, half_nbytes=None, layers=reports))
    shown = drawn(LayerMap(live))
    for kind in kinds:
        assert kind in shown
    assert "fp16 –" in shown


@given(
    st.lists(st.tuples(st.integers(1, 8), st.integers(1, 8)), max_size=120),
    st.integers(30, 60),
    st.integers(5, 40),
    st.booleans(),
)
def test_any_layers_fit_the_room(
    bits: list[tuple[int, int]], width: int, height: int, table: bool
) -> None:
    live = Live(m.Setup(model="x"))
    live.take(layers(*bits))
    rows = LayerMap(live, table=table).rows(width, height, 0.0)
    assert len(rows) <= height
    assert all(row.cell_length <= width for row in rows)


def test_bits_in_use_are_the_most_and_the_least() -> None:
    assert bits_in_use(layers((6, 4), (6, 4)).layers) == "6/4"
    assert bits_in_use(layers((6, 4), (4, 3), (5, 4)).layers) == "6/4 to 4/3"
    assert bits_in_use(()) == "–"


def test_speed_during_an_answer_and_after_it(live: Live) -> None:
    live.take(m.Ready(FakeEngine().model))  # type: ignore[arg-type]
    live.asked("hello")
    live.take(m.Began(prompt_tokens=18_012, reused_tokens=0))
    live.take(m.Prefill(done=512, total=18_012, rate=612.0))
    assert "612 tok/s" in drawn(ThroughputPanel(live))
    live.take(m.Token(text="a", count=1, rate=41.2))
    assert "41.2 tok/s" in drawn(ThroughputPanel(live))
    live.take(
        m.Done(
            reason="stop",
            prompt_tokens=18_012,
            reused_tokens=0,
            tokens=420,
            prefill_rate=610.0,
            decode_rate=40.0,
            first_token=29.6,
            seconds=39.8,
            cache=None,
        )
    )
    shown = drawn(ThroughputPanel(live))
    assert "40.0 tok/s" in shown
    assert "29.6 s" in shown
    assert "420 written" in shown


def test_prefill_says_what_is_left(live: Live) -> None:
    live.asked("hello")
    progress = Progress(live)
    assert progress.wanted
    live.take(m.Prefill(done=12_288, total=18_012, rate=612.0))
    shown = drawn(progress, width=78)
    assert "12,288/18,012  612 tok/s  ≈ 9.35 s left" in shown


@pytest.mark.parametrize(
    ("event", "shown"),
    [
        (m.Loading(stage="download", done=40 << 20, total=80 << 20), "40.0M of 80.0M"),
        (m.Loading(stage="convert", done=3, total=30), "10%"),
        (m.Loading(stage="weights", done=0, total=None), "reading the weights"),
    ],
)
def test_loading_says_how_far(event: m.Loading, shown: str, live: Live) -> None:
    live.take(event)
    assert shown in drawn(Progress(live), width=78)


ACTED = m.Acted(
    act="lower",
    reason="memory pressure is warn",
    level="warn",
    layers=(2, 3, 4, 7),
    key_bits=5,
    value_bits=4,
    freed=202 << 20,
)


def test_the_log_speaks_in_sentences() -> None:
    assert sentence(ACTED) == ("L2-4, L7 lowered to 5/4, 202M freed: memory pressure is warn")
    assert sentence(m.Began(prompt_tokens=1024, reused_tokens=24)) == (
        "reading 1,024 tokens, 24 reused"
    )
    assert sentence(m.Token(text="a", count=1, rate=None)) is None


@given(st.sets(st.integers(0, 200)))
def test_ranges_name_every_layer(numbers: set[int]) -> None:
    named: set[int] = set()
    for part in filter(None, ranges(tuple(numbers)).split(", ")):
        first, _, last = part.removeprefix("L").partition("-")
        named.update(range(int(first), int(last or first) + 1))
    assert named == numbers


def test_a_level_is_logged_when_it_changes() -> None:
    log = EventLog()
    for level in ("normal", "normal", "warn", "warn", "critical"):
        log.take(m.Sampled(memory=MemorySample(time=0.0, level=level)))
    assert [entry.sentence for entry in log.entries] == [
        "pressure warn, was normal",
        "pressure critical, was warn",
    ]


def test_the_log_is_bounded_and_shows_its_end(live: Live) -> None:
    log = EventLog()
    for number in range(5000):
        log.add(f"event {number}")
    assert len(log.entries) < 5000
    rows = drawn(EventPanel(live, log), height=4).splitlines()
    assert len(rows) == 4
    assert rows[-1].endswith("event 4999")


def test_the_status_says_what_goes_on(live: Live) -> None:
    assert doing(live, 0.0)[0] == "starting"
    live.take(m.Loading(stage="download", done=21 << 20, total=46 << 20))
    assert "downloading 21.0M of 46.0M" in doing(live, 0.0)[0]
    live.take(ACTED, now=100.0)
    assert "▲ L2-4, L7 lowered to 5/4" in doing(live, 101.0)[0]
    assert "downloading" in doing(live, 200.0)[0]
    live.take(m.Error(sentence="gone", fatal=True))
    assert doing(live, 200.0)[0] == "engine ended"


def test_two_rows_stand_for_the_panels(live: Live) -> None:
    model = m.ModelInfo(
        name="org/qwen3-8b-4bit", context=131_072, weights=4 << 30, layers=36, backend="Metal"
    )
    live.take(m.Ready(model))
    live.take(SAMPLE, now=100.0)
    live.take(layers(*[(6, 4)] * 36, tokens=18_432))
    first, second = drawn(StatusLine(live), width=80, height=2, now=100.0).splitlines()
    assert "qwen3-8b-4bit · kv 6/4-bit · 18.4k/131k tokens" in first
    assert "20.0G/32.0G ▲ warn" in second
    assert "31.2k tok to warn" in second


def test_old_samples_say_their_age(live: Live) -> None:
    live.take(SAMPLE, now=100.0)
    assert MemoryPanel(live).note(101.0) == ""
    assert "12" in MemoryPanel(live).note(112.0)
    assert "12 s old" in drawn(StatusLine(live), width=80, height=2, now=112.0)
