"""System checks for `manage.py check`.

- delayedq.E001  settings.DELAYEDQ has an unknown key or a wrong value
- delayedq.E002  USE_TZ is off
- delayedq.E003  the database's engine is not supported
- delayedq.E004  a schedule in DELAYEDQ["CRON"] is wrong
- delayedq.E005  a backend in TASKS has an unknown key or a wrong value in its OPTIONS, or wrong QUEUES (see
  `delayedq.backend`)
- delayedq.E006  a backend in TASKS uses delayedq, which is not in INSTALLED_APPS (see `delayedq.backend`)
- delayedq.E007  MySQL at another isolation level than READ COMMITTED
- delayedq.E008  DELAYEDQ["REDACT"], ["METADATA_FROM"] or ["AROUND_ATTEMPTS"] names what can't be imported
- delayedq.E009  a library that the settings or the URLs use is missing, or too old: a driver, or that of metrics or
  traces; it names the extra
- delayedq.E010  the version of the database is not supported (but for SQLite, it needs `check --database`)
- delayedq.E011  the database has AUTOCOMMIT = False
- delayedq.W001  SQLite without transaction_mode IMMEDIATE
- delayedq.W002  SQLite without WAL (needs `check --database`)
- delayedq.W003  PostgreSQL at another isolation level than READ COMMITTED
- delayedq.W004  MySQL whose packets are too small for a payload (needs `check --database`)
- delayedq.W007  the messages of a task are in another database than the models of its app
- delayedq.W008  a schedule in DELAYEDQ["CRON"] has six fields that look like those of Quartz, seconds first
- delayedq.W010  no backend in TASKS is delayedq's
- delayedq.W011  two tasks have the same path
- delayedq.W012  the return values of a task shall be kept for longer than history is
- delayedq.W013  a shared limit has the name of a queue or a task
- delayedq.W014  a module of an app defines tasks, and nothing imports it
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.conf import settings
from django.core.checks import Error, Warning, register  # noqa: A004
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, router
from django.urls import get_resolver

from delayedq.compat import InvalidTaskBackend, task_backends
from delayedq.conf import ExtraMissing, get_settings, missing_extras
from delayedq.cron.definitions import read
from delayedq.hooks import attempt_hooks, enqueue_hooks
from delayedq.limits.declared import limits_in
from delayedq.masking import redact
from delayedq.models import Message
from delayedq.store import store_for
from delayedq.store.requirements import too_old
from delayedq.tasks import registered
from delayedq.tasks.registry import doubled
from delayedq.tasks.unimported import unimported_modules

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from datetime import timedelta

    from django.core.checks import CheckMessage

    from delayedq.cron.definitions import Definition
    from delayedq.store.protocol import Flaw

#: Fields of an expression with seconds.
SIX = 6


@register
def check_settings(**_: Any) -> list[CheckMessage]:
    found: list[CheckMessage] = []
    try:
        get_settings()
    except ImproperlyConfigured as error:
        found.append(Error(str(error), id="delayedq.E001"))
    else:
        found += _named_in_settings()
    if not settings.USE_TZ:
        found.append(Error("delayedq needs USE_TZ = True: it schedules instants.", id="delayedq.E002"))
    return found


def _named_in_settings() -> list[CheckMessage]:
    """What the settings name by a path, and can't be imported."""
    found: list[CheckMessage] = []
    for name, load in (("REDACT", redact), ("METADATA_FROM", enqueue_hooks), ("AROUND_ATTEMPTS", attempt_hooks)):
        try:
            load()
        except ExtraMissing as error:
            found.append(Error(f"DELAYEDQ[{name!r}]: {error}", id="delayedq.E009"))
        except ImportError as error:
            found.append(Error(f"DELAYEDQ[{name!r}] can't be imported: {error}", id="delayedq.E008"))
    return found


@register
def check_urls(**_: Any) -> list[CheckMessage]:
    """What modules lack that the URLs import."""
    _import_urls()
    return [Error(problem, id="delayedq.E009") for problem in missing_extras]


def _import_urls() -> None:
    with suppress(Exception):  # Django's own check of the URLs tells what it is
        get_resolver().url_patterns  # noqa: B018 - it imports them


@register
def check_modules(**_: Any) -> list[CheckMessage]:
    """Tasks that sites may enqueue and no worker knows: it imports the tasks.py of each app, and what that imports."""
    _import_urls()
    return [
        Warning(
            f"{name} defines tasks, and nothing imports it: workers do not know them.",
            hint="Move them into the tasks.py of their app, or import the module in its AppConfig.ready().",
            id="delayedq.W014",
        )
        for name in unimported_modules()
    ]


@register
def check_cron(**_: Any) -> list[CheckMessage]:
    """The first error of each schedule."""
    found: list[CheckMessage] = []
    with suppress(ImproperlyConfigured):  # check_settings reports it
        if _named_in_settings():  # likewise
            return found
        for name, given in get_settings().CRON.items():
            try:
                definition = read(name, given)
            except ExtraMissing:  # check_store reports it
                return found
            except ImproperlyConfigured as error:
                found.append(Error(str(error), id="delayedq.E004"))
            else:
                found += _seconds_first(name, definition)
    return found


def _seconds_first(name: str, definition: Definition) -> list[CheckMessage]:
    """Six fields that run each second of a minute or an hour are mostly meant to have the seconds first."""
    expression = getattr(definition.schedule, "expression", "")
    fields = expression.split()
    if len(fields) != SIX or fields[-1] != "*" or fields[0] == "*":
        return []
    problem = f"DELAYEDQ['CRON'][{name!r}]['cron']: {expression!r} runs in every second of the minutes that it matches."
    hint = f"The second is the last field here, not the first as in Quartz: {' '.join([*fields[1:], fields[0]])!r}?"
    return [Warning(problem, hint=hint, id="delayedq.W008")]


@register
def check_store(**_: Any) -> list[CheckMessage]:
    return _flaws(connect=False)


@register
def check_tasks(**_: Any) -> list[CheckMessage]:
    """Without TASKS, tasks of delayedq can't be enqueued, and Django runs its own ones at once."""
    try:
        backends = [task_backends[alias] for alias in task_backends]
    except InvalidTaskBackend:  # whatever it is, it is not forgotten
        return []
    if any(hasattr(backend, "schedule") for backend in backends):  # ours, and those of `delayedq.testing`
        return []
    problem = "No backend in TASKS is delayedq's: tasks are not enqueued to it, and run_workers has nothing to serve."
    hint = (
        'Set TASKS = {"default": {"BACKEND": "delayedq.backend.DelayedQBackend"}}. If you use bare queues only, '
        'SILENCED_SYSTEM_CHECKS = ["delayedq.W010"].'
    )
    return [Warning(problem, hint=hint, id="delayedq.W010")]


@register
def check_paths(**_: Any) -> list[CheckMessage]:
    """Messages have only the path of their task: of two functions with the same one, one never runs."""
    return [
        Warning(
            f"Two tasks have the path {path!r}: {before} and {after}. Workers run the second only.",
            hint="Rename one of them, or remove the path from the aliases of one.",
            id="delayedq.W011",
        )
        for path, (before, after) in doubled.items()
        if path in registered
    ]


@register
def check_limits(**_: Any) -> list[CheckMessage]:
    """A shared limit that is called like a queue or a task would limit that, too: both are found by their name."""
    taken = {task.module_path: f"the task {task.name}" for task in registered.values()}
    taken |= {task.queue_name: f"a queue, that of the task {task.name}" for task in registered.values()}
    names = {one.name: task for task in registered.values() for one in limits_in(task.limit) if one.name in taken}
    return [
        Warning(
            f"{task.module_path}: the shared limit {name!r} has the name of {taken[name]}, which it limits, too.",
            hint="Give the shared limit another name. To limit a queue or a task, name it in DELAYEDQ['LIMITS'].",
            id="delayedq.W013",
        )
        for name, task in names.items()
    ]


@register
def check_retention(**_: Any) -> list[CheckMessage]:
    """Return values go with their history, at the latest. One warning for all tasks of one duration."""
    found: dict[timedelta, CheckMessage] = {}
    with suppress(ImproperlyConfigured):  # check_settings reports it
        retention = get_settings().RETENTION
        for task in registered.values():
            kept = task.result_retention
            if retention is None or kept is None or kept <= retention:
                continue
            problem = f"{task.name}: result_retention is {kept}, but history is deleted after RETENTION, {retention}."
            hint = "Make DELAYEDQ['RETENTION'] as long, or None."
            found.setdefault(kept, Warning(problem, hint=hint, id="delayedq.W012"))
    return list(found.values())


@register("database")
def check_database(databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    known = _flaws(connect=False)
    return [message for message in _flaws(connect=True, among=databases or ()) if message not in known]


@register
def check_databases(**_: Any) -> list[CheckMessage]:
    """An enqueue commits with the caller's transaction only if that is on the same database."""
    found: dict[str, CheckMessage] = {}
    for task in registered.values():
        app = apps.get_containing_app_config(task.func.__module__)
        if app is None or app.label in found:
            continue
        try:
            store = getattr(task.get_backend(), "store", None)
        except ImproperlyConfigured:  # check_store reports it
            continue
        if store is None:
            continue
        written = {router.db_for_write(model) for model in app.get_models()}
        if written and store.alias not in written:
            problem = (
                f"Messages of the tasks of {app.label!r} are stored in {store.alias!r}, its models in "
                f"{', '.join(sorted(map(repr, written)))}: an enqueue does not commit with changes of these models."
            )
            hint = 'Set DATABASE in the OPTIONS of the backend in TASKS, or route "delayedq" to the same database.'
            found[app.label] = Warning(problem, hint=hint, id="delayedq.W007")
    return list(found.values())


def _flaws(*, connect: bool, among: Collection[str] | None = None) -> list[CheckMessage]:
    """Of the databases of all backends; without backends, of that of the bare queues. among: only of these."""
    found: list[CheckMessage] = []
    for alias in dict.fromkeys(_aliases()):
        if among is not None and alias not in among:
            continue
        try:
            found += _flaws_of(alias, connect=connect)
        except ExtraMissing as error:
            found.append(Error(str(error), id="delayedq.E009"))
        except ImproperlyConfigured as error:
            found.append(Error(str(error), id="delayedq.E003"))
    return found


def _flaws_of(alias: str, *, connect: bool) -> list[CheckMessage]:
    store = store_for(alias)
    if not connections[alias].settings_dict["AUTOCOMMIT"]:
        said = f"DATABASES[{alias!r}] has AUTOCOMMIT = False: nothing that delayedq writes would be committed."
        return [Error(said, hint="Remove it; use transaction.atomic() where you need it.", id="delayedq.E011")]
    knows_version = connect or connections[alias].vendor == "sqlite"
    if knows_version and (problem := too_old(alias)):
        return [Error(problem, hint="Upgrade the database.", id="delayedq.E010")]
    return [_message(flaw) for flaw in store.flaws(connect=connect)]


def _aliases() -> list[str]:
    routed = router.db_for_write(Message)
    with suppress(InvalidTaskBackend):
        options = [getattr(task_backends[name], "defaults", None) for name in task_backends]
        if aliases := [one.DATABASE or routed for one in options if one is not None]:
            return aliases
    return [routed]


def _message(flaw: Flaw) -> CheckMessage:
    of_kind = Error if flaw.id.startswith("delayedq.E") else Warning
    return of_kind(flaw.problem, hint=flaw.hint, id=flaw.id)
