"""Folders that exist either complete or not at all."""

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

LOCK_PAUSE = 0.1
"""Seconds between two tries for a lock: waiting inside the system could not be stopped."""


def build_folder(target: Path, fill: Callable[[Path], None], waiting: Callable[[], None]) -> None:
    """Makes `target` of what `fill` writes into the empty folder it is given.

    Of several processes one builds and the others wait, calling `waiting` over and over, which
    may raise to give up. A process that dies leaves its work to be removed by the next one; the
    lock is the system's and dies with it.
    Raises OSError, and what `fill` and `waiting` raise.
    """
    if target.is_dir():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.with_name(f".{target.name}.lock").open("ab") as lock:
        _acquire(lock, waiting)
        _remove_leftovers(target)
        if target.is_dir():
            return
        # A name of its own: what a dead process had started may still be writing to the old.
        work = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent))
        try:
            fill(work)
            _sync(work)
            work.rename(target)
        except BaseException:
            shutil.rmtree(work, ignore_errors=True)
            raise
        _sync_entry(target.parent)


def _acquire(lock: BinaryIO, waiting: Callable[[], None]) -> None:
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            waiting()
            time.sleep(LOCK_PAUSE)


def _remove_leftovers(target: Path) -> None:
    """Unfinished work on `target`: whoever holds the lock knows that nobody is at it."""
    for entry in target.parent.iterdir():
        if entry.name.startswith(f".{target.name}.") and entry.name.endswith(".part"):
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
