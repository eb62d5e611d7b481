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
    """Another process may find it before it is locked, and delete it: then a further one is made."""
    while True:
        directory = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
        with suppress(FileNotFoundError):
            lock = _opened(directory)
            with suppress(OSError):  # where files can't be locked, nobody deletes it
                _lock(lock)
            if _is_there(directory, lock):
                os.pwrite(lock, _host(), 0)
                return directory, lock
            os.close(lock)


def _delete_left(directory: Path) -> None:
    """Raises OSError if its process runs, and for what is no directory of ours."""
    if not hasattr(os, "getuid") or directory.lstat().st_uid != os.getuid():
        return
    lock = _opened(directory)
    try:
        _lock(lock, wait=False)
        if os.pread(lock, 300, 0) == _host() or time.time() - os.fstat(lock).st_mtime > LEFT_FOR:
            shutil.rmtree(directory, ignore_errors=True)
    finally:
        os.close(lock)


def _host() -> bytes:
    return socket.gethostname().encode()[:300]


def _opened(directory: Path) -> int:
    return os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)


def _lock(file: int, *, wait: bool = True) -> None:
    """Raises OSError if another process has locked it and we do not wait, and where files can't be locked."""
    try:
        import fcntl
    except ImportError:  # Windows
        raise OSError("No file can be locked here.") from None
    fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)


def _is_there(directory: Path, lock: int) -> bool:
    try:
        return os.path.samestat((directory / _LOCK).stat(), os.fstat(lock))
    except FileNotFoundError:
        return False
