"""One reading of the machine's memory; a field that is not known is None."""

from dataclasses import dataclass
from typing import Literal

Level = Literal["normal", "warn", "critical"]


@dataclass(frozen=True, kw_only=True)
class MemorySample:
    """All sizes in bytes, `time` in seconds since the epoch."""

    time: float
    monotonic: float | None = None
    """The same moment on a clock that nobody sets; what intervals are measured by."""
    total: int | None = None
    """What this process may use: the machine's memory, or its cgroup's limit where that is less."""
    used: int | None = None
    available: int | None = None
    compressed: int | None = None
    cached: int | None = None
    """File pages and the like, given back at once when somebody needs the memory."""
    swap_used: int | None = None
    swap_out_per_second: int | None = None
    level: Level | None = None
    level_source: str | None = None
    """Where the level comes from, in words: "PSI full avg10 0.3 %"."""
    warn_below: int | None = None
    """`available` at which the level turns to warn; None where the kernel alone decides."""
    process: int | None = None
    mlx_active: int | None = None
    mlx_cache: int | None = None
    """Freed buffers that MLX keeps for reuse: its pool, not the KV cache."""
    mlx_peak: int | None = None
    gpu_used: int | None = None
    """What all programs hold on a GPU with memory of its own; None on unified memory."""
    gpu_limit: int | None = None
