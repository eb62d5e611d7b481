"""System checks: what a deployment gets wrong, found by `manage.py check`.

- delayedq.E001  settings.DELAYEDQ has an unknown key or a wrong value
- delayedq.E002  USE_TZ is off
- delayedq.E003  the database's engine is not supported
- delayedq.E004  a schedule in DELAYEDQ["CRON"] is wrong
- delayedq.W001  SQLite without transaction_mode IMMEDIATE
- delayedq.W002  SQLite without WAL (needs `check --database`)
- delayedq.W003  MySQL at another isolation level than READ COMMITTED
- delayedq.W004  MySQL whose packets are too small for a payload (needs `check --database`)
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core.checks import Error, Warning, register  # noqa: A004
from django.core.exceptions import ImproperlyConfigured
from django.db import router

from delayedq.conf import get_settings
from delayedq.cron.definitions import read
from delayedq.models import Message
from delayedq.store import default_store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django.core.checks import CheckMessage


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
def check_cron(**_: Any) -> list[CheckMessage]:
    """The first thing that is wrong with each schedule."""
    found: list[CheckMessage] = []
    with suppress(ImproperlyConfigured):  # check_settings tells
        for name, given in get_settings().CRON.items():
            try:
                read(name, given)
            except ImproperlyConfigured as error:
                found.append(Error(str(error), id="delayedq.E004"))
    return found


@register
def check_store(**_: Any) -> list[CheckMessage]:
    return _flaws(connect=False)


@register("database")
def check_database(databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    if router.db_for_write(Message) not in (databases or ()):
        return []
    known = {message.id for message in _flaws(connect=False)}
    return [message for message in _flaws(connect=True) if message.id not in known]


def _flaws(*, connect: bool) -> list[CheckMessage]:
    try:
        flaws = default_store().flaws(connect=connect)
    except ImproperlyConfigured as error:
        return [Error(str(error), id="delayedq.E003")]
    return [Warning(flaw.problem, hint=flaw.hint, id=flaw.id) for flaw in flaws]
