"""What computes in this process, in words. Needs MLX and nothing of its models."""

import sys

import mlx.core as mx

from tui.engine import blas


def backend() -> str:
    """The processor, and on a CPU the library that multiplies its matrices."""
    if mx.metal.is_available():
        return f"Metal, {mx.device_info().get('device_name', 'GPU')}"
    if mx.cuda.is_available():
        return f"CUDA, {mx.device_info().get('device_name', 'GPU')}"
    if sys.platform == "darwin":
        return "CPU, Accelerate"
    openblas = blas.openblas_in_use()
    if openblas is not None:
        return f"CPU, OpenBLAS {openblas}"
    here = blas.find_openblas() is not None
    advice = "OpenBLAS is here, but not preloaded" if here else blas.how_to_get()
    return f"CPU, reference BLAS (slow: {advice})"
