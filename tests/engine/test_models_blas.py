"""Finding an OpenBLAS that can stand in for the BLAS of MLX's wheel."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tui.engine import blas

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux preloads a BLAS")


def stand_in(path: Path, symbols: tuple[bytes, ...] = blas.SYMBOLS) -> Path:
    path.write_bytes(Path("/proc/self/exe").read_bytes()[:64] + b"".join(symbols))
    return path


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine whose only libraries are those in tmp_path."""
    monkeypatch.setattr(blas, "FOLDERS", (str(tmp_path),))
    monkeypatch.setattr(blas, "DEBIAN", tmp_path / "none")
    monkeypatch.setattr(blas, "_linker_cache", lambda: {})
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    return tmp_path


def test_the_one_with_threads_is_preferred(machine):
    stand_in(machine / "libopenblas.so.0")
    assert blas.find_openblas() == machine / "libopenblas.so.0"
    stand_in(machine / "libopenblasp.so.0")
    assert blas.find_openblas() == machine / "libopenblasp.so.0"


def test_what_cannot_stand_in_is_passed_over(machine):
    stand_in(machine / "libopenblasp.so.0", (b"\0cblas_sgemm64_\0",))
    foreign = bytearray(stand_in(machine / "libopenblas_pthreads.so.0").read_bytes())
    foreign[18] ^= 0xFF
    (machine / "libopenblas_pthreads.so.0").write_bytes(foreign)
    (machine / "libopenblaso.so.0").write_bytes(b"")
    assert blas.find_openblas() is None
    assert "LD_PRELOAD" not in blas.engine_environment()


def test_the_copy_in_numpys_wheel_is_refused():
    copies = [*Path(np.__file__).parents[1].glob("numpy.libs/*openblas*")]
    assert not any(blas._can_stand_in(copy) for copy in copies)


def test_what_is_preloaded_already_stays(machine, monkeypatch):
    library = stand_in(machine / "libopenblas.so.0")
    monkeypatch.setenv("LD_PRELOAD", "libjemalloc.so")
    assert blas.engine_environment()["LD_PRELOAD"] == f"{library}:libjemalloc.so"
    monkeypatch.setenv("LD_PRELOAD", "/mine/libopenblas.so")
    assert blas.engine_environment()["LD_PRELOAD"] == "/mine/libopenblas.so"


def test_the_child_uses_what_was_found():
    if blas.find_openblas() is None:
        pytest.skip(f"no OpenBLAS here: {blas.how_to_get()}")
    child = subprocess.run(
        [sys.executable, "-c", "from tui.engine import blas; print(blas.openblas_in_use())"],
        env=blas.engine_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert child.stdout[0].isdigit()
    assert child.stderr == ""
