"""Tries out MLX in the environment that an engine gets, in a process that may die of it.

python -m tui.engine.probe prints a Probe as JSON.
"""

import os
import shutil
import subprocess
import sys

import msgspec

from tui.engine.blas import engine_environment

SECONDS = 120.0
"""The first compilation on a machine takes its time."""


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """`failed` is a sentence where MLX does not work at all; then nothing else is known."""

    backend: str | None = None
    slow: bool = False
    """On a CPU, with MLX's own BLAS."""
    compiles: bool = False
    """Whether mx.compile fuses operations; without a compiler on a CPU it silently does not."""
    compile_failed: str | None = None
    """What the compiler said."""
    kernel: str | None = None
    """The module that attends on packed codes; None where MLX operations do."""
    failed: str | None = None


def probe() -> Probe:
    """What MLX can do here, found out by a child."""
    try:
        child = subprocess.run(
            [sys.executable, "-m", "tui.engine.probe"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=engine_environment(),
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired:
        return Probe(failed=f"MLX did not answer within {SECONDS:.0f} s")
    if child.returncode == 0:
        return msgspec.json.decode(child.stdout, type=Probe)
    words = child.stderr.decode(errors="replace").strip().splitlines()
    return Probe(failed=words[-1] if words else f"MLX ended with {child.returncode}")


def _try_out() -> Probe:
    import mlx.core as mx

    from kvcore.kernels import decode_kernel
    from tui.engine.backend import backend

    ones = mx.ones((8, 8))
    mx.eval(ones @ ones)
    name = backend()
    compiles = not name.startswith("CPU") or shutil.which("g++") is not None
    compile_failed = None
    try:
        # A constant of this run's own: what was compiled before is found again on the disk.
        mx.eval(mx.compile(lambda x: mx.exp(x) * os.getpid())(ones))
    except RuntimeError as error:
        compiles, compile_failed = False, str(error).splitlines()[0]
    kernel = decode_kernel()
    return Probe(
        backend=name,
        slow="slow" in name,
        compiles=compiles,
        compile_failed=compile_failed,
        kernel=None if kernel is None else kernel.__name__,
    )


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(_try_out()))
