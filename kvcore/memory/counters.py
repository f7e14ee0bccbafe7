"""What MLX holds, by its own counters. The only place that asks it; it never imports MLX."""

import sys
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Counters:
    """Bytes; the names are MemorySample's."""

    mlx_active: int | None = None
    mlx_cache: int | None = None
    mlx_peak: int | None = None
    gpu_used: int | None = None
    gpu_limit: int | None = None


def read_counters() -> Counters:
    """All None in a process that has not loaded MLX."""
    mx = sys.modules.get("mlx.core")
    if mx is None:
        return Counters()
    info = _call(mx, "device_info")
    device: dict[str, Any] = info if isinstance(info, dict) else {}
    # CUDA: the card's own memory, live. Metal: the share of unified memory that the GPU can hold.
    free, total = _size(device.get("free_memory")), _size(device.get("total_memory"))
    metal = _size(device.get("max_recommended_working_set_size"))
    return Counters(
        mlx_active=_size(_call(mx, "get_active_memory")),
        mlx_cache=_size(_call(mx, "get_cache_memory")),
        mlx_peak=_size(_call(mx, "get_peak_memory")),
        gpu_used=total - free if total is not None and free is not None else None,
        gpu_limit=metal if metal is not None else total,
    )


def _call(mx: Any, name: str) -> object:
    # MLX may be half imported on another thread, or its driver may have failed.
    try:
        return getattr(mx, name)()
    except (AttributeError, RuntimeError, ValueError):
        return None


def _size(value: object) -> int | None:
    return int(value) if isinstance(value, int | float) else None
