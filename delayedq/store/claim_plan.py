"""Explain how a database finds what a claim takes: the plan of the statement that a worker sends.

MySQL and MariaDB are told the index by the statement itself, and refuse it where that is missing.
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import connections, transaction

from delayedq.store.protocol import ClaimRequest, Lane

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django.db.backends.base.base import BaseDatabaseWrapper

    from delayedq.store.base import Store

TABLE, DUE = "delayedq_message", "delayedq_due"
#: Of a shorter table PostgreSQL may well read all: it takes no longer.
LONG = 2**20
#: Of a claim that is rolled back.
LEASE = timedelta(seconds=10)
WORKER = "delayedq doctor"
LENGTH = "SELECT pg_relation_size('delayedq_message'::regclass)"


class ClaimPlan(NamedTuple):
    """`steps`: how the live table is read, in the words of the database. `is_long`: so that it matters."""

    steps: list[str]
    goes_by_its_index: bool
    is_long: bool


def claim_plan(store: Store) -> ClaimPlan | None:
    """Claim what is first in line, ask how it was found, and undo it. None: this database is told how.

    Raises django.db.Error.
    """
    connection = connections[store.alias]
    explain = _EXPLAIN.get(connection.vendor)
    if explain is None:
        return None
    sent: list[tuple[str, Any]] = []

    def remember(execute: Callable[..., Any], sql: str, parameters: Any, many: bool, context: Any) -> Any:
        sent.append((sql, parameters))
        return execute(sql, parameters, many, context)

    lanes = store.lanes()[:1] or [Lane(WORKER, 0)]
    with transaction.atomic(using=store.alias):
        with connection.execute_wrapper(remember):
            store.claim(ClaimRequest(lanes, 1, LEASE, WORKER))
        found = [explain(connection, *one) for one in sent if TABLE in one[0] and "scheduled_at >=" in one[0]]
        transaction.set_rollback(True, using=store.alias)
    return found[-1] if found else None


def _postgresql(connection: BaseDatabaseWrapper, sql: str, parameters: Any) -> ClaimPlan:
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (FORMAT JSON) {sql}", parameters)
        (answer,) = cursor.fetchone()
        cursor.execute(LENGTH)
        (length,) = cursor.fetchone()
    plan = (json.loads(answer) if isinstance(answer, str) else answer)[0]["Plan"]
    nodes = list(_nodes(plan))
    read = [node for node in nodes if node.get("Relation Name") == TABLE and node["Node Type"] != "ModifyTable"]
    indexes = {node["Index Name"] for node in nodes if "Index Name" in node}
    steps = [f"{node['Node Type']} {node.get('Index Name', TABLE)}" for node in read]
    scanned = any(node["Node Type"].endswith("Seq Scan") for node in read)
    return ClaimPlan(steps, DUE in indexes and not scanned, length >= LONG)


def _nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for below in node.get("Plans", ()):
        yield from _nodes(below)


def _sqlite(connection: BaseDatabaseWrapper, sql: str, parameters: Any) -> ClaimPlan:
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN QUERY PLAN {sql}", parameters)
        steps = [row[-1] for row in cursor.fetchall() if TABLE in row[-1]]
    return ClaimPlan(steps, any(f"INDEX {DUE}" in step for step in steps), is_long=True)


_EXPLAIN = {"postgresql": _postgresql, "sqlite": _sqlite}
