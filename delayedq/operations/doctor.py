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

from delayedq.operations.diagnosis import Diagnosis
from delayedq.operations.doctor_features import archives, schedules
from delayedq.operations.findings import Rule
from delayedq.operations.health import try_claim
from delayedq.operations.verdict import verdict
from delayedq.store.postgresql.inspection import Inspection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from delayedq.store.base import Store
    from delayedq.store.postgresql.inspection import TableState

#: A clock may differ from that of the database by so much.
SKEW = timedelta(seconds=2)
#: A transaction that is older than this many seconds pins vacuum.
PINNED = 300.0
#: Seconds that a listener has to hear its own notification.
PROOF = 5.0
#: Of at least so many updates, at least this part should be heap-only.
UPDATES, HEAP_ONLY = 1_000, 0.5
#: So many dead rows, and so many times the live ones, wait for vacuum.
DEAD, DEAD_TIMES = 20_000, 5
#: Half of each page of the live table is left free for claims.
FILLFACTOR = 50


def diagnose(store: Store) -> list[Diagnosis]:
    """All that is wrong, what keeps messages from running first; of a database that does not answer only that."""
    found: list[Diagnosis] = []
    for check in CHECKS:
        try:
            found += check(store)
        except Error as error:
            connections[store.alias].close()
            cure = "Look at the server, the address in DATABASES, and the rights of its user."
            said = f"The database {store.alias!r} refuses what a worker does: {str(error).strip()}"
            return [*found, Diagnosis("database", said, cure)]
    return found


def migrations(store: Store) -> Iterator[Diagnosis]:
    executor = MigrationExecutor(connections[store.alias])
    leaves = [node for node in executor.loader.graph.leaf_nodes() if apps.get_app_config(node[0]).name.startswith(OURS)]
    if pending := [f"{migration.app_label}.{migration.name}" for migration, _ in executor.migration_plan(leaves)]:
        said = f"Migrations are pending: {', '.join(pending)}."
        yield Diagnosis("migrations", said, f"manage.py migrate --database {store.alias}")


def indexes(store: Store) -> Iterator[Diagnosis]:
    """Those of the models that are not there. Databases that have no partial index lack one on purpose."""
    connection = connections[store.alias]
    for model in apps.get_app_config("delayedq").get_models():
        options = model._meta  # noqa: SLF001
        wanted = {index.name for index in options.indexes if connection.features.supports_partial_indexes}
        for name in sorted(wanted - store.database.constraints(options.db_table)):
            said = f"The index {name} of {options.db_table} is missing: statements read the whole table."
            yield Diagnosis("missing index", said, f"Create it as manage.py sqlmigrate delayedq shows: {name}")


def claims(store: Store) -> Iterator[Diagnosis]:
    """Raises django.db.Error if a worker could not claim."""
    try_claim(store)
    yield from ()


def clocks(store: Store) -> Iterator[Diagnosis]:
    """Leases and due times use the database's clock; `schedule_in` adds to that of the host that calls it."""
    before = datetime.now(UTC)
    there = store.now()
    skew = max(before - there, there - datetime.now(UTC))
    if skew > SKEW:
        said = (
            f"The clock of this host differs by {skew.total_seconds():.1f} s from that of the database {store.alias!r}."
        )
        yield Diagnosis(
            "clock skew", said, "Synchronise both by NTP: schedule_in() and latencies use the host's clock."
        )


def listener(store: Store) -> Iterator[Diagnosis]:
    listening = store.listener()
    try:
        listening.begin_proof()
        give_up_at = time.monotonic() + PROOF
        while not listening.proved and time.monotonic() < give_up_at:
            listening.heard()
            time.sleep(0.05)
        if not listening.proved:
            said = "A listener is deaf: it did not hear its own notification, as behind a pooler in transaction mode."
            cure = "Set DELAYEDQ['LISTENER_DSN'] to the address of PostgreSQL itself."
            yield Diagnosis("deaf listener", said, cure)
    finally:
        listening.close()


def findings(store: Store) -> Iterator[Diagnosis]:
    """What the dashboard says: queues nobody serves, late and paused ones, lost leases, unknown tasks, workers."""
    for finding in verdict(store):
        if finding.rule is Rule.DATABASE:
            raise Error("; ".join(finding.evidence))
        cure = finding.action.command or finding.action.label if finding.action else ""
        yield Diagnosis(str(finding.rule), " ".join([finding.sentence, *finding.evidence]), cure)


def postgresql(store: Store) -> Iterator[Diagnosis]:
    if connections[store.alias].vendor != "postgresql":
        return
    inspection = Inspection(store.database)
    for one in inspection.pinning(PINNED):
        said = (
            f"A transaction of {one.user} (pid {one.pid}, {one.state}) is {one.seconds:,.0f} s old: it keeps dead rows."
        )
        cure = f"SELECT pg_terminate_backend({one.pid}); set idle_in_transaction_session_timeout."
        yield Diagnosis("pinned vacuum", said, cure)
    for name in inspection.invalid_indexes():
        said = f"The index {name} is invalid: it is written, and no statement uses it."
        yield Diagnosis("invalid index", said, f"REINDEX INDEX CONCURRENTLY {name}")
    yield from _table(inspection.table())


def _table(table: TableState) -> Iterator[Diagnosis]:
    fillfactor = int(table.option("fillfactor") or 100)
    if fillfactor > FILLFACTOR:
        said = f"delayedq_message has a fillfactor of {fillfactor}: claims find no room for a heap-only update."
        yield Diagnosis("fillfactor", said, "In SQL: ALTER TABLE delayedq_message SET (fillfactor = 45)")
    if not table.autovacuum or table.option("autovacuum_enabled") in {"false", "off", "0"}:
        said = "Autovacuum is off for delayedq_message: dead rows stay, and each scan reads them."
        cure = "In SQL: ALTER TABLE delayedq_message RESET (autovacuum_enabled); and autovacuum = on in the server."
        yield Diagnosis("autovacuum", said, cure)
    if table.updated >= UPDATES and table.heap_only < HEAP_ONLY * table.updated:
        said = f"Only {table.heap_only / table.updated:.0%} of the updates of delayedq_message are heap-only."
        cure = "Look for an index of yours on a column that claims write, and at the fillfactor."
        yield Diagnosis("heap-only updates", said, cure)
    if table.dead > max(DEAD, DEAD_TIMES * table.live):
        said = f"delayedq_message has {table.dead:,} dead rows beside {table.live:,}: autovacuum falls behind."
        yield Diagnosis("dead rows", said, "VACUUM delayedq_message; end what pins it; look at autovacuum_max_workers.")


OURS = "delayedq"
CHECKS: tuple[Callable[[Store], Iterator[Diagnosis]], ...] = (
    *(migrations, indexes, claims, findings),
    *(clocks, listener, postgresql),
    *(schedules, archives),
)
