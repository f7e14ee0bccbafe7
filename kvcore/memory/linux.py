"""Linux: the kernel's files, read as text, and what they mean.

Pressure is the kernel's stall information (PSI, Documentation/accounting/psi.rst); limits are
those of control groups, version 2 and version 1 alike.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kvcore.memory.sample import Level

WARN_SHARE = 0.10
CRITICAL_SHARE = 0.03
"""Shares of the total that are still available: below them the level is warn, or critical."""

_NO_LIMIT = 1 << 62
"""Version 1 writes the largest whole page below 2**63 for "none"; its value depends on the page."""


@dataclass(frozen=True)
class Pressure:
    """Share of the last ten seconds, in percent, that some or all tasks waited for memory."""

    some: float
    full: float


@dataclass(frozen=True)
class Group:
    """A control group: where its files lie under the root, and who owns them."""

    version: Literal[1, 2]
    mount: str
    path: str


@dataclass(frozen=True)
class Machine:
    """What the process may use, in bytes: of the machine, or of its tightest control group."""

    total: int | None
    used: int | None
    available: int | None
    cached: int | None


def parse_pressure(text: str | None) -> Pressure | None:
    averages: dict[str, float] = {}
    for line in (text or "").splitlines():
        name, _, fields = line.partition(" ")
        first = fields.split(" ")[0]
        if first.startswith("avg10="):
            try:
                averages[name] = float(first.removeprefix("avg10="))
            except ValueError:
                return None
    if "some" not in averages or "full" not in averages:
        return None
    return Pressure(averages["some"], averages["full"])


def parse_counters(text: str | None) -> dict[str, int]:
    """`name value` and `name: value kB` lines, the latter in bytes; other lines are skipped."""
    counters: dict[str, int] = {}
    for line in (text or "").splitlines():
        words = line.split()
        if len(words) in (2, 3) and words[1].isascii() and words[1].isdigit():
            unit = 1024 if words[2:] == ["kB"] else 1
            counters[words[0].rstrip(":")] = int(words[1]) * unit
    return counters


def parse_limit(text: str | None) -> int | None:
    """A limit or a size in bytes; None for "max", for version 1's "none", and for nonsense."""
    word = (text or "").strip()
    if not (word.isascii() and word.isdigit()):
        return None
    value = int(word)
    return value if value < _NO_LIMIT else None


def parse_groups(cgroup: str | None, mountinfo: str | None) -> tuple[Group, ...]:
    """The groups that bound this process's memory: /proc/self/cgroup against the mounts.

    A container may see only a part of the tree, mounted at its own root: paths are taken
    relative to what is mounted, and one that lies outside counts as the mount itself.
    """
    own: dict[int, str] = {}
    for line in (cgroup or "").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            own[2] = path
        elif "memory" in controllers.split(","):
            own[1] = path
    groups = []
    for line in (mountinfo or "").splitlines():
        left, _, right = line.partition(" - ")
        place, kind = left.split(), right.split()
        if len(place) < 5 or len(kind) < 3:
            continue
        root, mount = _unescape(place[3]), _unescape(place[4])
        if kind[0] == "cgroup2" and 2 in own:
            groups.append(Group(2, mount, _below(own[2], root)))
        elif kind[0] == "cgroup" and "memory" in kind[2].split(",") and 1 in own:
            groups.append(Group(1, mount, _below(own[1], root)))
    return tuple(groups)


def _unescape(path: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        path = path.replace(code, character)
    return path


def _below(path: str, root: str) -> str:
    if root != "/" and path != root and not path.startswith(root + "/"):
        return ""
    inside = path.removeprefix(root).strip("/")
    return "" if ".." in inside.split("/") else inside


def level_of(
    pressure: Pressure | None,
    available: int | None,
    total: int | None,
    swap_out_per_second: int | None,
) -> tuple[Level | None, str | None]:
    """The level, and where it comes from in words; None for both when nothing is known."""
    share = available / total if available is not None and total else None
    left = f"{share:.1%} available".replace("%", " %") if share is not None else ""
    if pressure is not None and pressure.full >= 10:
        return "critical", f"PSI full avg10 {pressure.full:.1f} %"
    if share is not None and share < CRITICAL_SHARE:
        return "critical", left
    if share is not None and share < WARN_SHARE and swap_out_per_second:
        return "critical", f"{left}, swapping out"
    if pressure is not None and pressure.full >= 1:
        return "warn", f"PSI full avg10 {pressure.full:.1f} %"
    if pressure is not None and pressure.some >= 10:
        return "warn", f"PSI some avg10 {pressure.some:.1f} %"
    if share is not None and share < WARN_SHARE:
        return "warn", left
    if pressure is not None:
        return "normal", f"PSI full avg10 {pressure.full:.1f} %"
    if share is not None:
        return "normal", f"{left}, no PSI"
    return None, None


class Files:
    """The files of /proc and /sys under `root`, which tests replace by a recorded tree."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root

    def text(self, *parts: str) -> str | None:
        """None where the file is missing or cannot be read: that sensor is dead, no other."""
        try:
            return self.root.joinpath(*(part.lstrip("/") for part in parts)).read_text("utf-8")
        except (OSError, ValueError):
            return None

    def groups(self) -> tuple[Group, ...]:
        return parse_groups(self.text("proc/self/cgroup"), self.text("proc/self/mountinfo"))

    def upward(self, group: Group) -> Iterator[str]:
        """The group's folder and those above it, up to where the tree is mounted."""
        parts = group.path.split("/") if group.path else []
        for length in range(len(parts), -1, -1):
            yield "/".join([group.mount.rstrip("/"), *parts[:length]])

    def pressure(self, groups: tuple[Group, ...]) -> Pressure | None:
        for group in groups:
            if group.version == 2:
                own = parse_pressure(self.text(next(self.upward(group)), "memory.pressure"))
                if own is not None:
                    return own
        return parse_pressure(self.text("proc/pressure/memory"))

    def machine(self, meminfo: dict[str, int], groups: tuple[Group, ...]) -> Machine:
        total, available = meminfo.get("MemTotal"), meminfo.get("MemAvailable")
        used = total - available if total is not None and available is not None else None
        caches = [meminfo[key] for key in ("Buffers", "Cached", "SReclaimable") if key in meminfo]
        # Shared memory is counted under Cached, but nothing gives it back.
        cached = sum(caches) - meminfo.get("Shmem", 0) if caches else None
        for group in groups:
            for folder in self.upward(group):
                limit = self._limit(group.version, folder)
                if limit is None:
                    continue
                held, files = self._held(group.version, folder)
                if held is not None:
                    room = max(0, limit - held)
                    available = room if available is None else min(available, room)
                if total is None or limit < total:
                    total, used, cached = limit, held, files
        return Machine(total, used, available, cached)

    def _limit(self, version: int, folder: str) -> int | None:
        # Above memory.high tasks are throttled and their pages reclaimed: as good as a wall.
        names = ("memory.max", "memory.high") if version == 2 else ("memory.limit_in_bytes",)
        limits = [parse_limit(self.text(folder, name)) for name in names]
        return min((limit for limit in limits if limit is not None), default=None)

    def _held(self, version: int, folder: str) -> tuple[int | None, int | None]:
        """What the group holds and cannot give back, and its file pages."""
        name = "memory.current" if version == 2 else "memory.usage_in_bytes"
        prefix = "" if version == 2 else "total_"
        current = parse_limit(self.text(folder, name))
        stat = parse_counters(self.text(folder, "memory.stat"))
        idle = stat.get(prefix + "inactive_file")
        if current is None or idle is None:
            return current, idle
        return max(0, current - idle), idle + stat.get(prefix + "active_file", 0)

    def swapped_out(self) -> int | None:
        """Bytes written to swap since the machine started."""
        pages = parse_counters(self.text("proc/vmstat")).get("pswpout")
        return None if pages is None else pages * os.sysconf("SC_PAGE_SIZE")

    def process(self) -> int | None:
        """The process's share of all memory (Pss), else its resident set."""
        share = parse_counters(self.text("proc/self/smaps_rollup")).get("Pss")
        if share is not None:
            return share
        words = (self.text("proc/self/statm") or "").split()
        if len(words) < 2 or not words[1].isdigit():
            return None
        return int(words[1]) * os.sysconf("SC_PAGE_SIZE")


def swap_used(meminfo: dict[str, int]) -> int | None:
    if "SwapTotal" not in meminfo or "SwapFree" not in meminfo:
        return None
    return meminfo["SwapTotal"] - meminfo["SwapFree"]
