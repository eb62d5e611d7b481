"""What is wrong with a database, its workers and its messages, each with the cure, for `manage.py delayedq doctor`.

It connects as a worker would, and reads catalogues, statistics and what a verdict reads. It changes nothing.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from django.apps import apps
from django.db import Error, connections
from django.db.migrations.executor import MigrationExecutor
from django.utils.translation import gettext as _

from delayedq.operations.diagnosis import DATABASE, FINAL, MIGRATIONS, NO_TABLES, UNCHECKED, Diagnosis
from delayedq.operations.doctor_features import archives, lake, schedules, unknown_tasks
from delayedq.operations.doctor_postgresql import ON_POSTGRESQL, pooler, standby
from delayedq.operations.findings import Rule
from delayedq.operations.health import try_claim
from delayedq.operations.verdict import verdict
from delayedq.operations.wording import grouped
from delayedq.store.claim_plan import claim_plan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from delayedq.store.base import Store

#: A clock may differ from that of the database by so much.
SKEW = timedelta(seconds=2)
#: Seconds that a listener has to hear its own notification.
PROOF = 5.0


def diagnose(store: Store) -> list[Diagnosis]:
    """All that is wrong, what keeps messages from running first; of a database that no worker can use only that.

    A check that fails itself, say for want of a permission, is a diagnosis too.
    """
    found: list[Diagnosis] = []
    for check in CHECKS:
        try:
            found += list(check(store))
        except Exception as error:  # noqa: BLE001 - what a check meets is told, whatever it is
            found.append(_failed(store, check.__name__, error))
        if found and found[-1].condition in FINAL:
            break
    return found


def _failed(store: Store, name: str, error: Exception) -> Diagnosis:
    """Of a check: the database that does not answer, or else what could not be asked of it."""
    connections[store.alias].close()
    try:
        connections[store.alias].ensure_connection()
    except Error as answer:
        return refused(store, answer)
    said = str(error).strip() or type(error).__name__
    about = {"check": name.replace("_", " "), "error": said if isinstance(error, Error) else f"{error!r}"}
    sentence = _("This could not be checked: %(check)s. The answer was: %(error)s") % about
    return Diagnosis(UNCHECKED, sentence, _("Look at the rights of the user that DATABASES names; then ask again."))


def refused(store: Store, error: Error) -> Diagnosis:
    """That of a database which does not answer, or not to this user."""
    about = {"alias": repr(store.alias), "error": str(error).strip()}
    sentence = _("The database %(alias)s refuses what a worker does: %(error)s") % about
    return Diagnosis(DATABASE, sentence, _("Look at the server, the address in DATABASES, and the rights of its user."))


def migrations(store: Store) -> Iterator[Diagnosis]:
    executor = MigrationExecutor(connections[store.alias])
    leaves = [node for node in executor.loader.graph.leaf_nodes() if apps.get_app_config(node[0]).name.startswith(OURS)]
    if pending := [f"{migration.app_label}.{migration.name}" for migration, _ in executor.migration_plan(leaves)]:
        said = _("Migrations are pending: %(names)s.") % {"names": ", ".join(pending)}
        is_empty = "delayedq_message" not in connections[store.alias].introspection.table_names()
        yield Diagnosis(NO_TABLES if is_empty else MIGRATIONS, said, f"manage.py migrate --database {store.alias}")


def indexes(store: Store) -> Iterator[Diagnosis]:
    """Those of the models that are not there. Databases that have no partial index lack one on purpose."""
    connection = connections[store.alias]
    for model in apps.get_app_config("delayedq").get_models():
        options = model._meta  # noqa: SLF001
        wanted = {index.name for index in options.indexes if connection.features.supports_partial_indexes}
        for name in sorted(wanted - store.database.constraints(options.db_table)):
            about = {"name": name, "table": options.db_table}
            said = _("The index %(name)s of %(table)s is missing: statements read the whole table.") % about
            cure = _("Create it as manage.py sqlmigrate delayedq shows: %(name)s") % about
            yield Diagnosis("missing index", said, cure)


def claims(store: Store) -> Iterator[Diagnosis]:
    """Whether a worker could claim."""
    try:
        try_claim(store)
    except Error as error:
        connections[store.alias].close()
        yield refused(store, error)


def plan_of_the_claim(store: Store) -> Iterator[Diagnosis]:
    """A long table whose claims do not go by the due index, as the planner would carry them out now."""
    plan = claim_plan(store)
    if plan is None or plan.goes_by_its_index or not plan.is_long:
        return
    said = _("A claim does not use the index delayedq_due, but this: %(plan)s.") % {"plan": ", ".join(plan.steps)}
    cure = _(
        "Is the index there and valid? Else ANALYZE delayedq_message, and look for planner settings (enable_indexscan,"
        " random_page_cost) of the server, the database or the user."
    )
    yield Diagnosis("plan of the claim", said, cure)


def clocks(store: Store) -> Iterator[Diagnosis]:
    """Leases and due times use the database's clock; `schedule_in` adds to that of the host that calls it."""
    before = datetime.now(UTC)
    there = store.now()
    skew = max(before - there, there - datetime.now(UTC))
    if skew > SKEW:
        about = {"seconds": grouped(skew.total_seconds(), 1), "alias": repr(store.alias)}
        said = _("The clock of this host differs by %(seconds)s s from that of the database %(alias)s.") % about
        cure = _("Synchronise both by NTP: schedule_in() and latencies use the host's clock.")
        yield Diagnosis("clock skew", said, cure)


def listener(store: Store) -> Iterator[Diagnosis]:
    cure = _("Set DELAYEDQ['LISTENER_DSN'] to the address of PostgreSQL itself.")
    try:
        listening = store.listener()
    except Error as error:
        said = _("No listener can connect: %(error)s") % {"error": str(error).strip()}
        yield Diagnosis("deaf listener", said, cure)
        return
    try:
        listening.begin_proof()
        give_up_at = time.monotonic() + PROOF
        while not listening.proved and time.monotonic() < give_up_at:
            listening.heard()
            time.sleep(0.05)
        if not listening.proved:
            said = _(
                "A listener is deaf: it did not hear its own notification, as behind a pooler in transaction mode."
            )
            yield Diagnosis("deaf listener", said, cure)
    finally:
        listening.close()


def findings(store: Store) -> Iterator[Diagnosis]:
    """What the dashboard says: queues nobody serves, late and paused ones, lost leases, unknown tasks, workers."""
    for finding in verdict(store):
        if finding.rule is Rule.DATABASE:
            raise Error("; ".join(finding.evidence))
        if finding.rule is Rule.ARCHIVE:
            continue  # `archives` tells of it, each by a condition of its own
        cure = finding.action.command or finding.action.label if finding.action else ""
        yield Diagnosis(str(finding.rule), " ".join([finding.sentence, *finding.evidence]), cure)


OURS = "delayedq"
CHECKS: tuple[Callable[[Store], Iterator[Diagnosis]], ...] = (
    *(standby, migrations, indexes, claims, findings, unknown_tasks),
    *(plan_of_the_claim, clocks, pooler, listener, *ON_POSTGRESQL),
    *(schedules, archives, lake),
)
