"""System checks: what a deployment gets wrong, found by `manage.py check`.

- delayedq.E001  settings.DELAYEDQ has an unknown key or a wrong value
- delayedq.E002  USE_TZ is off
- delayedq.E003  the database's engine is not supported
- delayedq.W001  SQLite without transaction_mode IMMEDIATE
- delayedq.W002  SQLite without WAL (needs `check --database`)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core.checks import Error, Warning, register  # noqa: A004
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, router

from delayedq.conf import get_settings
from delayedq.models import Message

if TYPE_CHECKING:
    from django.core.checks import CheckMessage

_SQLITE_HINT = (
    'Set OPTIONS = {"transaction_mode": "IMMEDIATE", "timeout": 20, '
    '"init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;"}.'
)


@register
def check_settings(**_: Any) -> list[CheckMessage]:
    found: list[CheckMessage] = []
    try:
        get_settings()
    except ImproperlyConfigured as error:
        found.append(Error(str(error), id="delayedq.E001"))
    if not settings.USE_TZ:
        found.append(Error("delayedq needs USE_TZ = True: it schedules instants.", id="delayedq.E002"))
    return found


@register
def check_engine(**_: Any) -> list[CheckMessage]:
    connection = connections[router.db_for_write(Message)]
    if connection.vendor not in {"postgresql", "sqlite"}:
        return [Error(f"delayedq has no store for {connection.vendor}.", id="delayedq.E003")]
    options = connection.settings_dict.get("OPTIONS", {})
    if connection.vendor == "sqlite" and options.get("transaction_mode") != "IMMEDIATE":
        problem = "On SQLite, transactions that read before they write may fail with 'database is locked'."
        return [Warning(problem, hint=_SQLITE_HINT, id="delayedq.W001")]
    return []


@register("database")
def check_wal(databases: list[str] | None = None, **_: Any) -> list[CheckMessage]:
    alias = router.db_for_write(Message)
    connection = connections[alias]
    if alias not in (databases or []) or connection.vendor != "sqlite" or connection.is_in_memory_db():  # type: ignore[attr-defined]
        return []
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA journal_mode")
        mode = cursor.fetchone()[0]
    if mode == "wal":
        return []
    return [Warning(f"SQLite's journal is {mode}: readers and workers block each other.", hint=_SQLITE_HINT, id="delayedq.W002")]
