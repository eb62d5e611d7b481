"""What a process has no more of, whatever took it: every task that it runs then fails, and none of them is to blame."""

from __future__ import annotations

import mmap
import os

#: Descriptors and bytes that a task may take at once.
DESCRIPTORS, BYTES = 4, 16_000_000


def shortage() -> str | None:
    """What is not left, as a log line names it; None: there is enough. It takes some microseconds."""
    if not _has_descriptors():
        return "file descriptors"
    return None if _has_memory() else "memory"


def _has_descriptors() -> bool:
    taken: list[int] = []
    try:
        for _ in range(DESCRIPTORS):
            taken.append(os.open(os.devnull, os.O_RDONLY))  # noqa: PERF401 - those before the error are to be closed
    except OSError:
        return False
    finally:
        for one in taken:
            os.close(one)
    return True


def _has_memory() -> bool:
    """Whether the system grants it; no page of it is touched."""
    try:
        mmap.mmap(-1, BYTES).close()
    except (OSError, MemoryError):
        return False
    return True
