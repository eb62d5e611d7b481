"""Temporary directories that are deleted even if the process that made them was killed: by the next one."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

#: A file in each directory, which its process keeps locked: the system frees it when that ends, however it ends.
_LOCK = ".lock"
#: How what is in it begins, and how much that is at most.
_OURS, _LONGEST = b"delayedq ", 400
#: No step takes as long: a week.
LEFT_FOR = 7 * 24 * 3_600


@contextmanager
def temporary_directory(prefix: str, place: str | None = None) -> Iterator[Path]:
    """A directory that only its owner may read, gone after the block. place: where it is made (as `tempfile` does).

    Those of the same prefix whose processes have been killed are deleted first. Of a place that several hosts share,
    where locks may be those of each host alone, what another host has made stays for LEFT_FOR seconds.
    """
    place = tempfile.gettempdir() if place is None else place
    for left in Path(place).glob(f"{prefix}*"):
        with suppress(OSError):  # it is in use, or gone
            _delete_left(left)
    directory, lock = _made(prefix, place)
    try:
        yield directory
    finally:
        os.close(lock)
        shutil.rmtree(directory, ignore_errors=True)


def _made(prefix: str, place: str) -> tuple[Path, int]:
    """Another process may find it before it is locked, but not with the mark of a process that has ended."""
    directory = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
    lock = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    with suppress(OSError):  # where files can't be locked, nobody deletes it
        _lock(lock)
    os.pwrite(lock, _mark(), 0)
    return directory, lock


def _delete_left(directory: Path) -> None:
    """Raises OSError if its process runs, and for what is no directory of ours. What has no mark of ours stays."""
    if not hasattr(os, "getuid") or directory.is_symlink() or directory.stat().st_uid != os.getuid():
        return
    lock = os.open(directory / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
    try:
        _lock(lock, wait=False)
        mark = os.pread(lock, _LONGEST, 0)
        is_old = time.time() - os.fstat(lock).st_mtime > LEFT_FOR
        if mark == _mark() or (is_old and mark.startswith(_OURS)):
            shutil.rmtree(directory, ignore_errors=True)
    finally:
        os.close(lock)


def _mark() -> bytes:
    """What tells this host from others, also from one of the same name: when it was started."""
    try:
        started = Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()
    except OSError:  # not Linux
        started = b""
    return (_OURS + socket.gethostname().encode() + b" " + started)[:_LONGEST]


def _lock(file: int, *, wait: bool = True) -> None:
    """Raises OSError if another process has locked it and we do not wait, and where files can't be locked."""
    try:
        import fcntl
    except ImportError:  # Windows
        raise OSError("No file can be locked here.") from None
    fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
