"""Which BLAS multiplies MLX's matrices on a Linux CPU, and how to put a fast one in its place.

MLX's Linux wheel links a reference BLAS; an OpenBLAS that is preloaded takes its place and is
about twenty times faster at prefill. The engine is a child process, so it is started with the
library preloaded where one is found. Knows nothing of MLX, so any process may ask.
"""

import ctypes
import mmap
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

# The builds with threads first. OpenBLAS for 64-bit indices has other names, and the copies in
# the wheels of numpy and scipy have other symbols: neither can stand in.
NAMES = (
    "libopenblasp.so.0",
    "libopenblas_pthreads.so.0",
    "libopenblas.so.0",
    "libopenblaso.so.0",
    "libopenblas.so",
)
SYMBOLS = (b"\0cblas_sgemm\0", b"\0sgemm_\0", b"\0openblas_get_config\0")
FOLDERS = ("/usr/lib64", "/usr/lib", "/usr/local/lib", "/opt/OpenBLAS/lib")
DEBIAN = Path("/usr/lib")
"""Where folders named for the machine, as x86_64-linux-gnu, hold the libraries."""

PACKAGES = {
    "debian": "apt install libopenblas0-pthread",
    "ubuntu": "apt install libopenblas0-pthread",
    "fedora": "dnf install openblas-threads",
    "rhel": "dnf install openblas-threads",
    "arch": "pacman -S openblas",
    "suse": "zypper install libopenblas_pthreads0",
}


def find_openblas() -> Path | None:
    """An OpenBLAS of this machine that can be preloaded; None where there is none."""
    if sys.platform != "linux":
        return None
    return next((path for path in _candidates() if _can_stand_in(path)), None)


def engine_environment() -> dict[str, str]:
    """This process's environment, with OpenBLAS preloaded where one is found."""
    environment = dict(os.environ)
    preloaded = environment.get("LD_PRELOAD", "")
    library = None if "openblas" in preloaded else find_openblas()
    if library is not None:
        environment["LD_PRELOAD"] = f"{library}:{preloaded}" if preloaded else str(library)
    return environment


def openblas_in_use() -> str | None:
    """The version of the OpenBLAS that this process's matrices go to; None if to another BLAS.

    A preloaded library is the only one whose symbols are visible to the whole process, and it
    comes before the one that MLX was linked with.
    """
    if sys.platform != "linux":
        return None
    process = ctypes.CDLL(None)
    try:
        get_config = process.openblas_get_config
        _ = process.cblas_sgemm
    except AttributeError:
        return None
    get_config.restype = ctypes.c_char_p
    config = get_config().decode("ascii", "replace")
    version = re.search(r"\d+\.\d+(\.\d+)?", config)
    return version.group() if version else "of unknown version"


def how_to_get() -> str:
    """The command that installs OpenBLAS on this machine, as far as its name is known."""
    try:
        release = Path("/etc/os-release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        release = ""
    families = re.findall(r"^ID(?:_LIKE)?=(.*)$", release, re.MULTILINE)
    for family in " ".join(families).replace('"', "").replace("'", "").split():
        for name, command in PACKAGES.items():
            if family.startswith(name) or family.endswith(name):
                return command
    return "install OpenBLAS (libopenblas.so.0) with this system's package manager"


def _candidates() -> list[Path]:
    folders = [Path(folder) for folder in FOLDERS]
    folders += sorted(DEBIAN.glob("*-linux-gnu*/openblas-pthread"))
    folders += sorted(DEBIAN.glob("*-linux-gnu*"))
    known = _linker_cache()
    return [
        path
        for name in NAMES
        for path in (*known.get(name, ()), *(folder / name for folder in folders))
        if path.is_file()
    ]


def _linker_cache() -> dict[str, list[Path]]:
    """Library name to paths, as the dynamic linker knows them."""
    # /sbin is not on everybody's PATH.
    ldconfig = shutil.which("ldconfig", path=os.environ.get("PATH", "") + ":/sbin:/usr/sbin")
    if ldconfig is None:
        return {}
    try:
        listing = subprocess.run(
            [ldconfig, "-p"], capture_output=True, text=True, errors="replace", timeout=10
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    known: dict[str, list[Path]] = {}
    for name, path in re.findall(r"^\s*(\S+) \(.*\) => (.+)$", listing, re.MULTILINE):
        known.setdefault(name, []).append(Path(path))
    return known


def _can_stand_in(path: Path) -> bool:
    """Whether the library is for this interpreter's machine and has the functions MLX calls."""
    try:
        with Path("/proc/self/exe").open("rb") as own:
            own_header = own.read(20)
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size < len(own_header):
                return False
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                # Bytes 4-5 are word size and byte order, 18-19 the machine.
                same_machine = content[:6] == own_header[:6] and content[18:20] == own_header[18:20]
                return same_machine and all(content.find(symbol) >= 0 for symbol in SYMBOLS)
    except (OSError, ValueError):
        return False
