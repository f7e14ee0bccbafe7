"""One reading of the machine's memory; a field that is not known is None."""

from dataclasses import dataclass
from typing import Literal

Level = Literal["normal", "warn", "critical"]


@dataclass(frozen=True, kw_only=True)
class MemorySample:
    """All sizes in bytes, `time` in seconds since the epoch."""

    time: float
    total: int | None = None
    """What this process may use: the machine's memory, or its cgroup's limit where that is less."""
    used: int | None = None
    available: int | None = None
    compressed: int | None = None
    cached: int | None = None
    swap_used: int | None = None
    swap_out_per_second: int | None = None
    level: Level | None = None
    level_source: str | None = None
    """Where the level comes from, in words: "PSI full avg10 0.3 %", "kern.memorystatus_vm_pressure_level"."""
    process: int | None = None
    mlx_active: int | None = None
    mlx_cache: int | None = None
    mlx_peak: int | None = None
    gpu_used: int | None = None
    gpu_limit: int | None = None
