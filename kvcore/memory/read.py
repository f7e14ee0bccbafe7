"""`read_sample()`: one MemorySample of this machine and this process, now."""

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from kvcore.memory import linux, macos
from kvcore.memory.counters import read_counters
from kvcore.memory.rate import Rate
from kvcore.memory.sample import MemorySample

PROCESS_SPAN = 0.9
"""Seconds for which the process's size is good: summing up its pages takes the kernel
milliseconds a gigabyte, and samples are also taken between tokens."""


class Reader:
    """Takes samples; keeps what rates need and what is slow to read. Never raises."""

    def __init__(
        self,
        platform: str = sys.platform,
        root: Path = Path("/"),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._files = linux.Files(root)
        self._monotonic = monotonic
        self._swap = Rate()
        self._process: tuple[float, int | None] | None = None
        readers = {"linux": self._linux, "darwin": self._macos}
        self._machine = readers.get(platform, self._unknown)

    def __call__(self) -> MemorySample:
        now = self._monotonic()
        sample = self._machine(now)
        counters = read_counters()
        return replace(
            sample,
            mlx_active=counters.mlx_active,
            mlx_cache=counters.mlx_cache,
            mlx_peak=counters.mlx_peak,
            gpu_used=counters.gpu_used,
            gpu_limit=counters.gpu_limit if counters.gpu_limit is not None else sample.gpu_limit,
        )

    def _unknown(self, now: float) -> MemorySample:
        return MemorySample(time=time.time(), monotonic=now)

    def _linux(self, now: float) -> MemorySample:
        files = self._files
        groups = files.groups()
        meminfo = linux.parse_counters(files.text("proc/meminfo"))
        machine = files.machine(meminfo, groups)
        swapping = self._swap.at(now, files.swapped_out())
        level, source = linux.level_of(
            files.pressure(groups), machine.available, machine.total, swapping
        )
        warn_below = None if machine.total is None else round(machine.total * linux.WARN_SHARE)
        return MemorySample(
            time=time.time(),
            monotonic=now,
            total=machine.total,
            used=machine.used,
            available=machine.available,
            compressed=meminfo.get("Zswap"),
            cached=machine.cached,
            swap_used=linux.swap_used(meminfo),
            swap_out_per_second=swapping,
            level=level,
            level_source=source,
            warn_below=warn_below,
            process=self._held_for_a_while(now, files.process),
        )

    def _macos(self, now: float) -> MemorySample:
        total = macos.read_integer(macos.call_sysctl("hw.memsize"))
        page_size = macos.read_integer(macos.call_sysctl("hw.pagesize"))
        pages = macos.read_pages(*macos.call_vm_statistics(), page_size)
        level = macos.read_level(macos.call_sysctl(macos.LEVEL))
        used = pages.used if pages is not None else None
        return MemorySample(
            time=time.time(),
            monotonic=now,
            total=total,
            used=used,
            available=max(0, total - used) if total is not None and used is not None else None,
            compressed=pages.compressed if pages is not None else None,
            cached=pages.cached if pages is not None else None,
            swap_used=macos.read_swap_used(macos.call_sysctl("vm.swapusage")),
            swap_out_per_second=self._swap.at(now, pages.swapped_out if pages else None),
            level=level,
            level_source=None if level is None else macos.LEVEL,
            process=self._held_for_a_while(now, lambda: macos.read_footprint(macos.call_rusage())),
            gpu_limit=macos.read_gpu_limit(macos.call_sysctl("iogpu.wired_limit_mb")),
        )

    def _held_for_a_while(self, now: float, read: Callable[[], int | None]) -> int | None:
        last = self._process
        if last is not None and 0 <= now - last[0] < PROCESS_SPAN:
            return last[1]
        size = read()
        self._process = (now, size)
        return size


read_sample = Reader()
"""The one that everybody in this process shares."""
