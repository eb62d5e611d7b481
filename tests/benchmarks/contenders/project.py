"""The Django project of the contenders that are Django apps."""

from __future__ import annotations

import os

import django
from django.conf import settings
from django.core.management import call_command

QUIET = {"version": 1, "disable_existing_loggers": False, "loggers": {"django.tasks": {"level": "ERROR"}}}
#: BENCHMARK_LOGGING=default: what Django does if the settings have no LOGGING.
LOGGING = {} if os.environ.get("BENCHMARK_LOGGING") == "default" else QUIET


def configure(
    *apps: str, backend: str, options: dict | None = None, database: dict | None = None, **more: object
) -> None:
    """Configure Django for `apps`, with one task backend and persistent connections, as each of these peers recommends.

    `database`: OPTIONS of the PostgreSQL backend that the app documents.
    """
    settings.configure(
        SECRET_KEY="for benchmarks only",
        USE_TZ=True,
        DEBUG="BENCHMARK_DEBUG" in os.environ,
        LOGGING=LOGGING,
        INSTALLED_APPS=["django.contrib.contenttypes", *apps],
        DATABASES={"default": _database(database or {})},
        TASKS={"default": {"BACKEND": backend, "QUEUES": [], "OPTIONS": options or {}}},
        **more,
    )
    django.setup()


def _database(postgresql: dict) -> dict:
    if path := os.environ.get("BENCHMARK_SQLITE"):
        options = {
            "transaction_mode": "IMMEDIATE",
            "timeout": 30,
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
        }
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": path, "OPTIONS": options}
    if socket := os.environ.get("BENCHMARK_MARIADB"):
        return {"ENGINE": "django.db.backends.mysql", "NAME": "test", "USER": "root", "HOST": socket}
    return {
        "ENGINE": "django.db.backends.postgresql",
        "HOST": os.environ["PGHOST"],
        "USER": os.environ["PGUSER"],
        "NAME": os.environ["PGDATABASE"],
        "CONN_MAX_AGE": None,
        "OPTIONS": postgresql,
    }


def migrate() -> None:
    call_command("migrate", verbosity=0)
