"""`manage.py migrate`: one process at a time on a database, and what another one has applied is not applied again.

Django plans a run and then carries it out, so two that begin at once would create the same tables, record the
same migrations, and add the same permissions. The second one waits here, after its plan was made and before anything
of it is done; then what was applied meanwhile is left out. This holds for the whole run, whatever apps are in it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

from django.apps import AppConfig, apps
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError
from django.db import connections, router
from django.db.migrations.operations import SeparateDatabaseAndState
from django.db.migrations.recorder import MigrationRecorder
from django.db.models.signals import post_migrate, pre_migrate
from django.dispatch import receiver

from delayedq.store import store_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from contextlib import ExitStack

    from django.core.management.base import OutputWrapper
    from django.db.migrations import Migration

    from delayedq.store.database import Database

#: Seconds: between two looks whether the other process is done, and until this one gives up.
LOOK, PATIENCE = 0.2, 3600.0

#: Whether a migration of a plan is to be unapplied stands beside it.
type Plan = Sequence[tuple[Migration, bool]]


class Run(NamedTuple):
    """A run of this process: its lock, and what it leaves out."""

    plan: Plan
    lock: ExitStack
    left_out: Sequence[Migration]


#: By alias. One that failed keeps its lock until this process ends, or migrates again.
_running: dict[str, Run] = {}


def database_at(alias: str) -> Database | None:
    """None for one that has nothing of delayedq: Django carries out all migrations there too, without their effects."""
    try:
        return store_for(alias).database if router.allow_migrate(alias, "delayedq") else None
    except ImproperlyConfigured:  # of another engine
        return None


@receiver(pre_migrate)
def wait_for_others(using: str, plan: Plan, stdout: OutputWrapper | None = None, verbosity: int = 1, **_: Any) -> None:
    """For the first app of a run. Raises CommandError if another process migrates for an hour."""
    if (database := database_at(using)) is None:
        return
    if (run := _running.get(using)) is not None:
        if run.plan is plan:
            return
        _running.pop(using).lock.close()  # that one has failed
    out = stdout if verbosity else None
    _running[using] = Run(plan, _locked(database, out), [])
    post_migrate.connect(let_go)  # now, and so after the receivers of all apps
    left_out = leave_out(plan, MigrationRecorder(connections[using]).applied_migrations())
    _running[using] = _running[using]._replace(left_out=left_out)
    if left_out and out:
        out.write(f"  Another process has done this meanwhile: {', '.join(map(str, left_out))}")


def _locked(database: Database, out: OutputWrapper | None) -> ExitStack:
    until = time.monotonic() + PATIENCE
    told = False
    while (lock := database.migration_lock()) is None:
        if time.monotonic() > until:
            raise CommandError(
                f"Another process has been migrating the database {database.alias!r} for an hour, or has failed to and"
                " still runs."
            )
        if out and not told:
            out.write("Another process migrates this database: waiting for it.")
            out.flush()
        told = True
        time.sleep(LOOK)
    return lock


def leave_out(plan: Plan, applied: Iterable[tuple[str, str]]) -> list[Migration]:
    """Have the migrations that are done already change the state of the models alone; returns them."""
    known = set(applied)
    done = [one for one, backwards in plan if ((one.app_label, one.name) in known) is not backwards]
    for migration in done:
        migration.operations = [SeparateDatabaseAndState(state_operations=migration.operations)]  # type: ignore[misc]  # its own
    return done


def let_go(app_config: AppConfig, using: str, **_: Any) -> None:
    """After the last app of a run."""
    last = [one for one in apps.get_app_configs() if one.models_module is not None][-1]
    if using not in _running or app_config is not last:
        return
    run = _running.pop(using)
    try:
        _record_once(using, run.left_out)
    finally:
        run.lock.close()
        if not _running:
            post_migrate.disconnect(let_go)


def _record_once(using: str, migrations: Iterable[Migration]) -> None:
    """Django records also what was left out: the first record stays."""
    records = MigrationRecorder(connections[using]).migration_qs
    for one in migrations:
        ids = [*records.filter(app=one.app_label, name=one.name).order_by("pk").values_list("pk", flat=True)]
        records.filter(pk__in=ids[1:]).delete()
