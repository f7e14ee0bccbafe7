"""Packed KV caches for mlx-lm models, and the watchdog that makes them smaller.

The names below load on first use, so that a process which only reads memory
(`kvcore.memory`, `kvcore.report`) never imports MLX.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvcore.builder import KVCacheBuilder
    from kvcore.config import KVCacheConfig

__all__ = ["KVCacheBuilder", "KVCacheConfig"]

_HOME = {"KVCacheBuilder": "kvcore.builder", "KVCacheConfig": "kvcore.config"}


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module 'kvcore' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
