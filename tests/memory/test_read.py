"""Whole samples: of this machine, of a recorded one, and of one whose sensors are all dead."""

import os
import struct
import sys
import types
from dataclasses import fields
from pathlib import Path

import pytest
from test_linux import MEMINFO, PRESSURE, V2_CGROUP, V2_MOUNTS, write
from test_macos import PAGE, vm_statistics

from kvcore.memory import macos
from kvcore.memory.counters import Counters, read_counters
from kvcore.memory.rate import Rate
from kvcore.memory.read import Reader, read_sample

KNOWN_ALWAYS = {"time", "monotonic"}


def known(sample) -> set[str]:
    names = {field.name for field in fields(sample)}
    return {name for name in names if getattr(sample, name) is not None}


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def no_mlx(monkeypatch):
    monkeypatch.delitem(sys.modules, "mlx.core", raising=False)


@pytest.mark.skipif(sys.platform != "linux", reason="compares with Linux's own files")
def test_this_machine():
    sample = read_sample()
    with Path("/proc/meminfo").open() as file:
        total = int(file.readline().split()[1]) * 1024
    assert sample.total is not None and 0 < sample.total <= total
    assert sample.used is not None and sample.available is not None
    assert 0 < sample.available <= sample.total
    assert sample.process is not None and 1 << 20 < sample.process < sample.total
    assert sample.level in ("normal", "warn", "critical") and sample.level_source


def test_a_recorded_linux(tmp_path, no_mlx):
    clock = Clock()
    write(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/pressure/memory": PRESSURE,
            "proc/self/cgroup": V2_CGROUP,
            "proc/self/mountinfo": V2_MOUNTS,
            "proc/self/smaps_rollup": "Pss: 340 kB\n",
            "proc/vmstat": "pswpin 0\npswpout 1000\n",
        },
    )
    reader = Reader("linux", tmp_path, clock)
    first = reader()
    assert first.swap_out_per_second is None
    assert first.swap_used == (2097148 - 1048572) * 1024
    assert first.compressed == 20480 * 1024
    assert (first.level, first.level_source) == ("warn", "PSI some avg10 12.5 %")
    assert first.process == 340 * 1024
    assert first.monotonic == 100.0

    clock.now = 102.0
    (tmp_path / "proc/vmstat").write_text("pswpin 0\npswpout 1500\n")
    (tmp_path / "proc/self/smaps_rollup").write_text("Pss: 350 kB\n")
    second = reader()
    assert second.swap_out_per_second == 500 * os.sysconf("SC_PAGE_SIZE") // 2
    assert second.process == 350 * 1024


def test_every_sensor_may_be_dead(tmp_path, no_mlx):
    for platform in ("linux", "darwin", "win32"):
        if platform != sys.platform or platform == "linux":
            assert known(Reader(platform, tmp_path)()) == KNOWN_ALWAYS


def test_unreadable_bytes_are_a_dead_sensor(tmp_path, no_mlx):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_bytes(b"\xff\xfe\x00MemTotal")
    (tmp_path / "proc/pressure").write_text("a file where a folder should be")
    assert known(Reader("linux", tmp_path)()) == KNOWN_ALWAYS


def test_a_recorded_mac(monkeypatch, no_mlx):
    values = {
        "hw.memsize": struct.pack("<Q", 16 << 30),
        "hw.pagesize": struct.pack("<Q", PAGE),
        "vm.swapusage": struct.pack("<QQQIi", 3 << 30, 1 << 30, 2 << 30, PAGE, 1),
        "iogpu.wired_limit_mb": struct.pack("<I", 12288),
        macos.LEVEL: struct.pack("<I", 2),
    }
    monkeypatch.setattr(macos, "call_sysctl", values.get)
    monkeypatch.setattr(macos, "call_vm_statistics", lambda: (vm_statistics(38), 38))
    monkeypatch.setattr(macos, "call_rusage", lambda: b"\0" * 72 + struct.pack("<Q", 5 << 30))
    sample = Reader("darwin")()
    used = (400_500 - 9_500 + 131_072 + 180_000) * PAGE
    assert (sample.total, sample.used, sample.available) == (16 << 30, used, (16 << 30) - used)
    assert (sample.level, sample.level_source) == ("warn", macos.LEVEL)
    assert sample.swap_used == 2 << 30
    assert sample.process == 5 << 30
    assert sample.gpu_limit == 12288 << 20
    assert sample.warn_below is None


def fake_mlx(**device):
    return types.SimpleNamespace(
        get_active_memory=lambda: 1000,
        get_cache_memory=lambda: 200,
        get_peak_memory=lambda: 3000,
        device_info=lambda: device,
    )


def test_mlx_is_not_asked_before_it_is_there(no_mlx):
    assert read_counters() == Counters()


@pytest.mark.parametrize(
    ("device", "used", "limit"),
    [
        ({"max_recommended_working_set_size": 12 << 30, "memory_size": 16 << 30}, None, 12 << 30),
        ({"free_memory": 30 << 30, "total_memory": 80 << 30}, 50 << 30, 80 << 30),
        ({"device_name": "a CPU"}, None, None),
    ],
)
def test_mlx_on_metal_on_cuda_and_on_the_cpu(monkeypatch, device, used, limit):
    monkeypatch.setitem(sys.modules, "mlx.core", fake_mlx(**device))
    counters = read_counters()
    assert (counters.mlx_active, counters.mlx_cache, counters.mlx_peak) == (1000, 200, 3000)
    assert (counters.gpu_used, counters.gpu_limit) == (used, limit)


def test_mlx_half_loaded_or_broken_is_unknown(monkeypatch):
    def fail():
        raise RuntimeError("no device")

    broken = types.SimpleNamespace(device_info=fail)
    monkeypatch.setitem(sys.modules, "mlx.core", broken)
    assert read_counters() == Counters()


def test_a_rate_needs_two_readings_some_time_apart():
    rate = Rate(span=0.9)
    assert rate.at(0.0, 1000) is None
    assert rate.at(0.1, 9000) is None
    assert rate.at(2.0, 9000) == 4000
    assert rate.at(2.1, 99000) == 4000
    assert rate.at(4.0, 9000) == 0


def test_a_rate_starts_again_when_counter_or_clock_go_back():
    rate = Rate()
    rate.at(0.0, 1000)
    assert rate.at(10.0, 500) is None
    assert rate.at(11.0, 600) == 100
    assert rate.at(5.0, 700) is None
    assert rate.at(6.0, None) is None
    assert rate.at(7.0, 900) is None
