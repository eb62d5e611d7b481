"""A database for benchmarks that run in this process."""

from __future__ import annotations

import argparse
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import quote

import django

from tests.server import USER, postgresql_socket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


def measured(measure: Callable[[int, int], None], description: str | None, messages: int, rounds: int) -> None:
    """Run `measure` in such a database, with the numbers of messages and rounds that the command line gives."""
    arguments = argparse.ArgumentParser(description=description)
    arguments.add_argument("--messages", type=int, default=messages)
    arguments.add_argument("--rounds", type=int, default=rounds)
    given = arguments.parse_args()
    with migrated():
        measure(given.messages, given.rounds)


@contextmanager
def migrated(settings: Mapping[str, str] | None = None) -> Iterator[str]:
    """The URL of a migrated database on a new server, with Django set up for it.

    PostgreSQL is that of the wheel, with its default configuration (fsync on) but for these settings.
    """
    with postgresql_socket(durable=True, settings=settings) as socket:
        url = f"postgres://{USER}@/postgres?host={quote(socket, safe='')}"
        os.environ |= {"DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": "tests.worker_settings"}
        django.setup()
        from django.core.management import call_command
        from django.db import connection

        call_command("migrate", verbosity=0)
        yield url
        connection.close()
