"""Linux's files, as they were recorded, and trees of control groups made of them."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcore.memory import linux
from kvcore.memory.linux import Files, Group, Pressure, level_of

GIB = 1 << 30

MEMINFO = """\
MemTotal:       24683656 kB
MemFree:        23988652 kB
MemAvailable:   24271204 kB
Buffers:            2484 kB
Cached:           399796 kB
SwapCached:            0 kB
SwapTotal:       2097148 kB
SwapFree:        1048572 kB
Zswap:             20480 kB
Zswapped:          61440 kB
Shmem:              8924 kB
SReclaimable:     195080 kB
HugePages_Total:       0
"""

PRESSURE = """\
some avg10=12.50 avg60=3.10 avg300=0.80 total=812345
full avg10=0.75 avg60=0.20 avg300=0.05 total=212345
"""

V1_CGROUP = """\
9:name=systemd:/user.slice
4:memory:/jobs/one
2:cpuacct:/
0::/
"""
V1_MOUNTS = """\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
34 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
V2_CGROUP = "0::/user.slice/user-1000.slice/session.scope\n"
V2_MOUNTS = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"

V1_STAT = """\
cache 9416704
rss 6021120
inactive_file 12288
active_file 266240
hierarchical_memory_limit 9223372036854771712
total_inactive_file 104857600
total_active_file 66097152
"""
V2_STAT = """\
anon 6021120
file 170954752
inactive_file 104857600
active_file 66097152
"""


def write(root: Path, files: dict[str, str]) -> Files:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Files(root)


def machine_of(files: Files) -> linux.Machine:
    return files.machine(linux.parse_counters(files.text("proc/meminfo")), files.groups())


def v1(root: Path, limits: dict[str, tuple[str, str]]) -> Files:
    """`limits`: folder below the memory controller to its limit and its use."""
    tree = {
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": V1_CGROUP,
        "proc/self/mountinfo": V1_MOUNTS,
    }
    for folder, (limit, usage) in limits.items():
        base = f"sys/fs/cgroup/memory/{folder}"
        tree[f"{base}/memory.limit_in_bytes"] = limit + "\n"
        tree[f"{base}/memory.usage_in_bytes"] = usage + "\n"
        tree[f"{base}/memory.stat"] = V1_STAT
    return write(root, tree)


def test_pressure_is_read_from_the_kernels_words():
    assert linux.parse_pressure(PRESSURE) == Pressure(some=12.5, full=0.75)


@pytest.mark.parametrize("text", [None, "", "some avg10=0.00", "some avg10=x\nfull avg10=0.0"])
def test_pressure_that_is_not_all_there_is_unknown(text):
    assert linux.parse_pressure(text) is None


def test_meminfo_comes_in_bytes_and_bare_numbers_as_they_are():
    counters = linux.parse_counters(MEMINFO)
    assert counters["MemTotal"] == 24683656 * 1024
    assert counters["HugePages_Total"] == 0
    assert linux.parse_counters("pswpout 17\n") == {"pswpout": 17}


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("524288000\n", 524288000),
        ("max\n", None),
        ("9223372036854771712\n", None),
        ("9223372036854710272\n", None),
        ("0\n", 0),
        ("", None),
        ("-1", None),
        (None, None),
    ],
)
def test_limits(text, limit):
    assert linux.parse_limit(text) == limit


def test_groups_of_both_versions_are_found_by_their_mounts():
    assert linux.parse_groups(V1_CGROUP, V1_MOUNTS) == (
        Group(1, "/sys/fs/cgroup/memory", "jobs/one"),
        Group(2, "/sys/fs/cgroup/unified", ""),
    )
    assert linux.parse_groups(V2_CGROUP, V2_MOUNTS) == (
        Group(2, "/sys/fs/cgroup", "user.slice/user-1000.slice/session.scope"),
    )


def test_a_container_sees_its_own_part_of_the_tree_only():
    mounts = "9 8 0:32 /docker/abc /sys/fs/cgroup/mem\\040ory ro - cgroup cgroup rw,memory\n"
    (inside,) = linux.parse_groups("4:memory:/docker/abc/job\n", mounts)
    assert inside == Group(1, "/sys/fs/cgroup/mem ory", "job")
    (outside,) = linux.parse_groups("4:memory:/docker/abcd\n", mounts)
    assert outside.path == ""
    (above,) = linux.parse_groups("0::/../other\n", V2_MOUNTS)
    assert above.path == ""


def test_without_limits_the_machine_is_the_bound(tmp_path):
    machine = machine_of(v1(tmp_path, {"jobs/one": ("9223372036854771712", "171966464")}))
    assert machine.total == 24683656 * 1024
    assert machine.available == 24271204 * 1024
    assert machine.used == (24683656 - 24271204) * 1024
    assert machine.cached == (2484 + 399796 + 195080 - 8924) * 1024


def test_version_1_limit_of_a_group_above_binds(tmp_path):
    limits = {
        "jobs/one": ("9223372036854771712", "314572800"),
        "jobs": ("524288000", "314572800"),
        "": ("9223372036854771712", "424288000"),
    }
    machine = machine_of(v1(tmp_path, limits))
    assert machine.total == 524288000
    assert machine.used == 314572800 - 104857600
    assert machine.available == 524288000 - (314572800 - 104857600)
    assert machine.cached == 104857600 + 66097152


def test_version_2_takes_the_tightest_of_max_and_high_up_to_the_root(tmp_path):
    base = "sys/fs/cgroup/user.slice"
    files = write(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": V2_CGROUP,
            "proc/self/mountinfo": V2_MOUNTS,
            f"{base}/memory.max": f"{8 * GIB}\n",
            f"{base}/memory.high": "max\n",
            f"{base}/memory.current": f"{7 * GIB}\n",
            f"{base}/memory.stat": "inactive_file 0\nactive_file 0\n",
            f"{base}/user-1000.slice/session.scope/memory.max": "max\n",
            f"{base}/user-1000.slice/session.scope/memory.high": f"{4 * GIB}\n",
            f"{base}/user-1000.slice/session.scope/memory.current": f"{GIB}\n",
            f"{base}/user-1000.slice/session.scope/memory.stat": V2_STAT,
        },
    )
    machine = machine_of(files)
    assert machine.total == 4 * GIB
    assert machine.used == GIB - 104857600
    # The group above has a larger limit, but less is left in it.
    assert machine.available == GIB


def test_a_limit_above_the_machines_memory_changes_nothing_but_its_room(tmp_path):
    machine = machine_of(v1(tmp_path, {"jobs/one": (str(64 * GIB), str(63 * GIB))}))
    assert machine.total == 24683656 * 1024
    assert machine.available == GIB + 104857600


def test_pressure_of_the_own_group_comes_first(tmp_path):
    own = "sys/fs/cgroup/user.slice/user-1000.slice/session.scope/memory.pressure"
    files = write(
        tmp_path,
        {
            "proc/self/cgroup": V2_CGROUP,
            "proc/self/mountinfo": V2_MOUNTS,
            "proc/pressure/memory": PRESSURE,
            own: PRESSURE.replace("12.50", "44.00"),
        },
    )
    assert files.pressure(files.groups()) == Pressure(44.0, 0.75)
    (tmp_path / own).unlink()
    assert files.pressure(files.groups()) == Pressure(12.5, 0.75)
    (tmp_path / "proc/pressure/memory").unlink()
    assert files.pressure(files.groups()) is None


def test_process_is_its_share_else_its_resident_set(tmp_path):
    page = linux.os.sysconf("SC_PAGE_SIZE")
    files = write(
        tmp_path,
        {
            "proc/self/smaps_rollup": "0-1 ---p 0 0 0 [rollup]\nRss: 1712 kB\nPss:  340 kB\n",
            "proc/self/statm": "2712 1428 900 12 0 300 0\n",
        },
    )
    assert files.process() == 340 * 1024
    (tmp_path / "proc/self/smaps_rollup").unlink()
    assert files.process() == 1428 * page
    (tmp_path / "proc/self/statm").write_text("")
    assert files.process() is None


@pytest.mark.parametrize(
    ("pressure", "available", "swap_out", "level", "source"),
    [
        (Pressure(0, 0.3), 50, None, "normal", "PSI full avg10 0.3 %"),
        (Pressure(9.9, 0.99), 10, 5000, "normal", "PSI full avg10 1.0 %"),
        (Pressure(10, 0), 50, 0, "warn", "PSI some avg10 10.0 %"),
        (Pressure(12, 1.0), 50, 0, "warn", "PSI full avg10 1.0 %"),
        (Pressure(0, 0), 9, 0, "warn", "9.0 % available"),
        (Pressure(0, 0), 9, 4096, "critical", "9.0 % available, swapping out"),
        (Pressure(0, 0), 2.9, 0, "critical", "2.9 % available"),
        (Pressure(30, 10), 50, 0, "critical", "PSI full avg10 10.0 %"),
        (None, 50, 0, "normal", "50.0 % available, no PSI"),
        (None, 5, None, "warn", "5.0 % available"),
        (Pressure(0, 0), None, 4096, "normal", "PSI full avg10 0.0 %"),
        (None, None, 4096, None, None),
    ],
)
def test_levels(pressure, available, swap_out, level, source):
    total = None if available is None else 100 * GIB
    held = None if available is None else round(available * GIB)
    assert level_of(pressure, held, total, swap_out) == (level, source)


@given(st.text(), st.text())
def test_no_text_at_all_makes_a_parser_fail(one, other):
    linux.parse_pressure(one)
    linux.parse_counters(one)
    linux.parse_limit(one)
    linux.parse_groups(one, other)
