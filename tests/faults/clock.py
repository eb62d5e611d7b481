"""A clock that is wrong, for programs that are started with it: built from `wrong_clock.c`, which needs gcc."""

from __future__ import annotations

import struct
import subprocess
import tempfile
from pathlib import Path
from typing import Self

SOURCE = Path(__file__).with_name("wrong_clock.c")


def build(library: Path) -> None:
    subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-o", str(library), str(SOURCE), "-ldl"], check=True)


class Clock:
    """The time of day of all processes that have its `variables`: right until it is put ahead; a context manager."""

    def __enter__(self) -> Self:
        self._directory = tempfile.TemporaryDirectory(prefix="delayedq-clock-")
        directory = Path(self._directory.name)
        directory.chmod(0o755)  # the server runs as a user of its own
        self._file = directory / "wrong_by"
        library = directory / "clock.so"
        build(library)
        self.variables = {"LD_PRELOAD": str(library), "WRONG_BY_FILE": str(self._file)}
        self.put(0)
        return self

    def __exit__(self, *_: object) -> None:
        self._directory.cleanup()

    def put(self, ahead: int) -> None:
        """From now on it is ahead by so many seconds, for all of them at once."""
        with self._file.open("r+b" if self._file.exists() else "w+b") as file:
            file.write(struct.pack("l", ahead))
