"""`veloxquant-tui methods`: the ways to pack a cache, what each costs and is for."""

import subprocess
import sys
from collections.abc import Sequence

from tui.arguments import Parser
from tui.engine.blas import engine_environment


def main(argv: Sequence[str]) -> int:
    parser = Parser("methods", "The ways to pack a cache: bits, real bits, calibration, purpose.")
    parser.add_argument(
        "--measure",
        action="store_true",
        help="encode isotropic vectors with each, at all its bits: bytes, MSE, cosine; minutes",
    )
    parser.add_argument("--json", action="store_true", help="all figures, as JSON")
    args = parser.read(argv)
    flags = [f"--{name}" for name in ("measure", "json") if getattr(args, name)]
    # A child, since a BLAS can only be chosen before a process starts.
    command = [sys.executable, "-m", "kvcore.bench.methods", *flags]
    return subprocess.run(command, env=engine_environment(), check=False).returncode
