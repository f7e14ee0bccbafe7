"""Folders that exist either complete or not at all."""

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK_PAUSE = 0.1
"""Seconds between two tries for the lock: waiting inside the system could not be stopped."""

_UNFINISHED = ".part"


def build_folder(target: Path, fill: Callable[[Path], None], waiting: Callable[[], None]) -> None:
    """Makes `target` of what `fill` writes into the empty folder it is given.

    Of several processes one builds and the others wait, calling `waiting` over and over, which
    may raise to give up.
    Raises OSError, and what `fill` and `waiting` raise.
    """
    if target.is_dir():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    while True:
        with _lock(target.parent) as held:
            if held:
                _remove_unfinished(target.parent)
                if not target.is_dir():
                    _build(target, fill)
                return
        waiting()
        time.sleep(LOCK_PAUSE)


def remove_leftovers(parent: Path) -> None:
    """Removes what processes that died in the middle of building left in `parent`."""
    if parent.is_dir():
        with _lock(parent) as held:
            if held:
                _remove_unfinished(parent)


@contextmanager
def _lock(parent: Path) -> Iterator[bool]:
    """Whether this process holds the right to build in `parent`; the system takes it back from
    a process that dies."""
    with (parent / ".lock").open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def _build(target: Path, fill: Callable[[Path], None]) -> None:
    # A name of its own: a download that a dead process had started may go on for a while.
    work = Path(tempfile.mkdtemp(prefix=f"{target.name}.", suffix=_UNFINISHED, dir=target.parent))
    try:
        fill(work)
        _sync(work)
        work.rename(target)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    _sync_entry(target.parent)


def _remove_unfinished(parent: Path) -> None:
    """Who holds the lock knows that nobody is at work on these."""
    for entry in parent.glob(f"*{_UNFINISHED}"):
        shutil.rmtree(entry, ignore_errors=True)


def _sync(folder: Path) -> None:
    """Have everything in `folder` on the disk before a name says that it is complete."""
    for path, _, names in os.walk(folder):
        for name in names:
            _sync_entry(Path(path, name))
        _sync_entry(Path(path))


def _sync_entry(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
