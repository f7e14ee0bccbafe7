"""macOS: system calls through ctypes, without root, and what their buffers mean.

Each fact is two functions: one makes the call and gives the bytes, one reads the bytes. Only the
first needs a Mac. Layouts: <mach/vm_statistics.h>, <sys/sysctl.h> and <sys/resource.h> of xnu.
"""

import ctypes
import os
import struct
from dataclasses import dataclass
from functools import cache

from kvcore.memory.sample import Level

LEVEL = "kern.memorystatus_vm_pressure_level"
_LEVELS: dict[int, Level] = {1: "normal", 2: "warn", 4: "critical"}

_HOST_VM_INFO64 = 4
_RUSAGE_INFO_V4 = 4
_RUSAGE_V4_NBYTES = 296
_FOOTPRINT_OFFSET = 72
"""ri_phys_footprint: after the 16 bytes of ri_uuid and seven 64-bit counters."""


class VMStatistics64(ctypes.Structure):
    """struct vm_statistics64. It grew: 38 ints, 40 with swapped_count, 62 with the tag storage."""

    _fields_ = (
        ("free_count", ctypes.c_uint32),
        ("active_count", ctypes.c_uint32),
        ("inactive_count", ctypes.c_uint32),
        ("wire_count", ctypes.c_uint32),
        ("zero_fill_count", ctypes.c_uint64),
        ("reactivations", ctypes.c_uint64),
        ("pageins", ctypes.c_uint64),
        ("pageouts", ctypes.c_uint64),
        ("faults", ctypes.c_uint64),
        ("cow_faults", ctypes.c_uint64),
        ("lookups", ctypes.c_uint64),
        ("hits", ctypes.c_uint64),
        ("purges", ctypes.c_uint64),
        ("purgeable_count", ctypes.c_uint32),
        ("speculative_count", ctypes.c_uint32),
        ("decompressions", ctypes.c_uint64),
        ("compressions", ctypes.c_uint64),
        ("swapins", ctypes.c_uint64),
        ("swapouts", ctypes.c_uint64),
        ("compressor_page_count", ctypes.c_uint32),
        ("throttled_count", ctypes.c_uint32),
        ("external_page_count", ctypes.c_uint32),
        ("internal_page_count", ctypes.c_uint32),
        ("total_uncompressed_pages_in_compressor", ctypes.c_uint64),
        ("swapped_count", ctypes.c_uint64),
        ("tag_storage", ctypes.c_uint64 * 11),
    )


@dataclass(frozen=True)
class Pages:
    """Bytes, as Activity Monitor groups them: used is App + Wired + Compressed."""

    used: int
    compressed: int
    cached: int
    swapped_out: int
    """Since the machine started."""


def read_integer(buffer: bytes | None) -> int | None:
    """A sysctl's value, of 32 or 64 bits."""
    if buffer is None or len(buffer) not in (4, 8):
        return None
    return int.from_bytes(buffer, "little")


def read_level(buffer: bytes | None) -> Level | None:
    value = read_integer(buffer)
    return None if value is None else _LEVELS.get(value)


def read_swap_used(buffer: bytes | None) -> int | None:
    """xsu_used of struct xsw_usage: total, available and used in 64 bits each."""
    if buffer is None or len(buffer) < 24:
        return None
    return struct.unpack_from("<Q", buffer, 16)[0]


def read_pages(buffer: bytes | None, count: int, page_size: int | None) -> Pages | None:
    """Page counts from a buffer of which the kernel filled `count` ints; None if that is too few
    to hold all the fields needed."""
    filled = count * 4
    last = VMStatistics64.internal_page_count
    if buffer is None or page_size is None or min(filled, len(buffer)) < last.offset + last.size:
        return None
    statistics = VMStatistics64.from_buffer_copy(
        buffer[:filled].ljust(ctypes.sizeof(VMStatistics64), b"\0")
    )
    purgeable = statistics.purgeable_count
    compressed = statistics.compressor_page_count
    app = max(0, statistics.internal_page_count - purgeable)
    return Pages(
        used=(app + statistics.wire_count + compressed) * page_size,
        compressed=compressed * page_size,
        cached=(statistics.external_page_count + purgeable) * page_size,
        swapped_out=statistics.swapouts * page_size,
    )


def read_footprint(buffer: bytes | None) -> int | None:
    """ri_phys_footprint of struct rusage_info_v4: what Activity Monitor shows for a process,
    Metal's buffers included."""
    if buffer is None or len(buffer) < _FOOTPRINT_OFFSET + 8:
        return None
    return struct.unpack_from("<Q", buffer, _FOOTPRINT_OFFSET)[0]


def read_gpu_limit(buffer: bytes | None) -> int | None:
    """iogpu.wired_limit_mb in bytes; 0 means the system's own choice, which it does not tell."""
    megabytes = read_integer(buffer)
    return megabytes * 1024 * 1024 if megabytes else None


@cache
def _system() -> ctypes.CDLL:
    return ctypes.CDLL("/usr/lib/libSystem.B.dylib")


@cache
def _host() -> ctypes.c_uint32:
    # Every call hands out one more reference to the port, so it is made once.
    host_self = _system().mach_host_self
    host_self.restype = ctypes.c_uint32
    return ctypes.c_uint32(host_self())


def call_sysctl(name: str) -> bytes | None:
    """The value's bytes; some names are hidden from a listing and can still be read by name."""
    buffer = ctypes.create_string_buffer(64)
    size = ctypes.c_size_t(len(buffer))
    try:
        failed = _system().sysctlbyname(
            name.encode(), buffer, ctypes.byref(size), None, ctypes.c_size_t(0)
        )
    except (OSError, AttributeError):
        return None
    return None if failed else buffer.raw[: size.value]


def call_vm_statistics() -> tuple[bytes | None, int]:
    """The buffer and how many ints of it the kernel filled.

    Larger than any known layout, so that a kernel with a longer one does not refuse. The kernel
    gives programs at most a few fresh answers a second and repeats the last in between.
    """
    buffer = (ctypes.c_int32 * 128)()
    count = ctypes.c_uint32(len(buffer))
    try:
        failed = _system().host_statistics64(_host(), _HOST_VM_INFO64, buffer, ctypes.byref(count))
    except (OSError, AttributeError):
        return None, 0
    return (None, 0) if failed else (bytes(buffer), count.value)


def call_rusage() -> bytes | None:
    buffer = ctypes.create_string_buffer(_RUSAGE_V4_NBYTES)
    try:
        failed = _system().proc_pid_rusage(os.getpid(), _RUSAGE_INFO_V4, buffer)
    except (OSError, AttributeError):
        return None
    return None if failed else buffer.raw
