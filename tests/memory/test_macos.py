"""macOS's buffers, byte for byte as the system calls fill them."""

import ctypes
import struct

import pytest

from kvcore.memory import macos

PAGE = 16384


def vm_statistics(count: int) -> bytes:
    """A 16 GB machine under load, in the first `count` ints of a larger buffer.

    The layout is written out here once more, by hand: 4 counts, 9 counters of 64 bits, 2 counts,
    4 counters, 4 counts, then what later systems added.
    """
    fields = struct.pack(
        "<4I9Q2I4Q4IQQ11Q",
        *(4_201, 310_118, 305_977, 131_072),
        *(912_345_678, 5_432_100, 8_765_432, 123_456, 1_234_567_890, 98_765_432, 4_321, 1_234, 77),
        *(9_500, 2_100),
        *(7_777_777, 8_888_888, 45_000, 61_000),
        *(180_000, 0, 220_000, 400_500),
        540_000,
        44_000,
        *range(11),
    )
    assert len(fields) == 62 * 4
    return fields[: count * 4].ljust(128 * 4, b"\xff")


@pytest.mark.parametrize("count", [38, 40, 62])
def test_pages_of_every_length_the_layout_has_had(count):
    assert macos.read_pages(vm_statistics(count), count, PAGE) == macos.Pages(
        used=(400_500 - 9_500 + 131_072 + 180_000) * PAGE,
        compressed=180_000 * PAGE,
        cached=(220_000 + 9_500) * PAGE,
        swapped_out=61_000 * PAGE,
    )


@pytest.mark.parametrize("count", [0, 15, 24, 35])
def test_a_layout_too_old_to_hold_the_fields_is_unknown(count):
    assert macos.read_pages(vm_statistics(count), count, PAGE) is None


def test_pages_need_a_buffer_and_a_page_size():
    assert macos.read_pages(None, 0, PAGE) is None
    assert macos.read_pages(vm_statistics(38), 38, None) is None
    assert macos.read_pages(vm_statistics(38)[:80], 38, PAGE) is None


def test_the_structure_is_laid_out_as_in_the_header():
    statistics = macos.VMStatistics64
    assert ctypes.sizeof(statistics) == 62 * 4
    offsets = {
        "zero_fill_count": 16,
        "purgeable_count": 88,
        "decompressions": 96,
        "swapouts": 120,
        "compressor_page_count": 128,
        "internal_page_count": 140,
        "total_uncompressed_pages_in_compressor": 144,
        "swapped_count": 152,
        "tag_storage": 160,
    }
    assert {name: getattr(statistics, name).offset for name in offsets} == offsets


@pytest.mark.parametrize(
    ("value", "level"), [(1, "normal"), (2, "warn"), (4, "critical"), (0, None), (3, None)]
)
def test_level(value, level):
    assert macos.read_level(struct.pack("<I", value)) == level


def test_level_that_cannot_be_read_is_unknown_and_not_normal():
    assert macos.read_level(None) is None
    assert macos.read_level(b"\x01") is None


def test_integers_of_both_widths():
    assert macos.read_integer(struct.pack("<Q", 17179869184)) == 17179869184
    assert macos.read_integer(struct.pack("<I", PAGE)) == PAGE
    assert macos.read_integer(b"") is None


def test_swap_used():
    usage = struct.pack("<QQQIi", 3 << 30, 1 << 30, 2 << 30, PAGE, 1)
    assert len(usage) == 32
    assert macos.read_swap_used(usage) == 2 << 30
    assert macos.read_swap_used(usage[:16]) is None


def test_footprint_is_not_the_resident_size():
    usage = b"\xab" * 16 + struct.pack("<35Q", *range(100, 135))
    assert len(usage) == 296
    assert macos.read_footprint(usage) == 107
    assert macos.read_footprint(None) is None


@pytest.mark.parametrize(("megabytes", "limit"), [(0, None), (12288, 12288 << 20)])
def test_gpu_limit_of_zero_means_that_the_system_chooses(megabytes, limit):
    assert macos.read_gpu_limit(struct.pack("<I", megabytes)) == limit
