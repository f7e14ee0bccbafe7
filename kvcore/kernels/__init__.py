"""Attention straight on the packed codes, one file for each kind of processor."""

from functools import cache
from importlib import import_module
from types import ModuleType

import mlx.core as mx


@cache
def decode_kernel() -> ModuleType | None:
    """What computes attention of one query token here; None where MLX operations have to.

    The first call on a machine compiles for some seconds; later ones read the compiled code.
    """
    if mx.default_device().type != mx.DeviceType.cpu:
        return None
    try:
        return import_module("kvcore.kernels.cpu")
    except ImportError:
        return None
