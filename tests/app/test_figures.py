"""Figures are short, of steady width, and never made up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tui import figures
from tui.glyphs import HEIGHTS


@pytest.mark.parametrize(
    ("nbytes", "shown"),
    [
        (None, "–"),
        (0, "0B"),
        (812, "812B"),
        (52 * 1024, "52.0K"),
        (938 << 20, "938M"),
        (1023 << 20, "1.00G"),
        (int(21.4 * 2**30), "21.4G"),
        (999 << 40, "999T"),
    ],
)
def test_sizes(nbytes: int | None, shown: str) -> None:
    assert figures.size(nbytes) == shown


@given(st.integers(0, 2**60))
def test_a_size_takes_at_most_five_cells(nbytes: int) -> None:
    assert len(figures.size(nbytes)) <= 5


@given(st.integers(0, 10**12))
def test_a_count_takes_at_most_five_cells(number: int) -> None:
    assert len(figures.count(number)) <= 5


@pytest.mark.parametrize(
    ("duration", "shown"),
    [
        (None, "–"),
        (0.42, "0.42 s"),
        (29.6, "29.6 s"),
        (757, "12m 37s"),
        (5 * 3600 + 125, "5h 2m"),
        (3 * 86400 + 4 * 3600, "3d 4h"),
        (59.99, "1m 0s"),
    ],
)
def test_spans_of_time(duration: float | None, shown: str) -> None:
    assert figures.seconds(duration) == shown


def test_changes_have_a_sign() -> None:
    assert figures.change(-(202 << 20)) == "-202M"
    assert figures.change(1024) == "+1.0K"
    assert figures.change(None) == "–"


def test_a_spark_goes_from_least_to_largest() -> None:
    assert figures.spark([1, 2, 3], 10, HEIGHTS)[0] == HEIGHTS[0]
    assert figures.spark([1, 2, 3], 10, HEIGHTS)[-1] == HEIGHTS[-1]
    assert figures.spark([1, 2, 3], 2, HEIGHTS) == HEIGHTS[0] + HEIGHTS[-1]
    assert figures.spark([], 10, HEIGHTS) == ""


def test_noise_below_the_span_stays_low() -> None:
    assert set(figures.spark([100, 101, 100], 3, HEIGHTS, span=100)) == {HEIGHTS[0]}


def test_from_zero_a_steady_rate_is_full() -> None:
    assert figures.spark([25.0] * 3, 3, HEIGHTS, low=0.0) == HEIGHTS[-1] * 3


@given(st.lists(st.floats(0, 1e12), max_size=80), st.integers(1, 60))
def test_a_spark_never_passes_its_width(values: list[float], width: int) -> None:
    line = figures.spark(values, width, HEIGHTS)
    assert len(line) == min(width, len(values))
    assert set(line) <= set(HEIGHTS)


def test_compression_is_fp16_over_what_is_held() -> None:
    assert figures.compression(310, 100) == "3.1× smaller"
    assert figures.compression(100, 310) == "3.1× larger"
    assert figures.compression(None, 100) == "– smaller"
    assert figures.compression(310, 0) == "– smaller"
