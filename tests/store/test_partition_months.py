"""Months of a history in partitions that are made while the rest has many rows: nobody waits until those were read."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import count

import pytest
from django.db import Error, IntegrityError, OperationalError, transaction

from delayedq.store.postgresql import partitions as module
from tests.partitioned import partitions
from tests.store.given import elsewhere
from tests.store.test_partitions import (
    DAY,
    JUNE,
    MAY,
    Killed,
    ended,
    maintain_all,
    partitioned,  # noqa: F401
    plain,  # noqa: F401
    sent,
    where,
)

pytestmark = pytest.mark.parametrize("alias", ["postgresql"], indirect=True)

MADE = [("created", "202606"), ("created", "202607"), ("dropped", "before")]
FILL = """
INSERT INTO delayedq_finishedmessage_rest (id, finished_at, scheduled_at, scheduled_at_initially, created_at, priority,
    attempts, max_attempts, outcome, queue, kind, payload)
SELECT -n, '2036-01-01', now(), now(), now(), 0, 1, 1, 'failed', 'mail', 'k', '' FROM generate_series(1, 20000) AS n
"""
FETCHED = "SELECT pg_stat_get_xact_blocks_fetched('delayedq_finishedmessage_rest'::regclass)"


@pytest.fixture
def filled(partitioned, connection):  # noqa: F811
    with connection.cursor() as cursor:
        cursor.execute(FILL)
    return partitioned


def rule_of(store):
    return module.state_of(store.database).rule


def fetched_by(connection, beginning, read):
    """Around statements that begin so: the blocks of the rest that they fetch are added to `read`."""

    def execute(execute, sql, parameters, many, context):
        if beginning not in sql:
            return execute(sql, parameters, many, context)
        with connection.cursor() as cursor:
            before = cursor.connection.execute(FETCHED).fetchone()[0]
            done = execute(sql, parameters, many, context)
            read.append(cursor.connection.execute(FETCHED).fetchone()[0] - before)
        return done

    return connection.execute_wrapper(execute)


def test_the_rest_is_read_before_the_lock_and_not_under_it(filled, connection):
    checked, attached = [], []
    with fetched_by(connection, "VALIDATE", checked), fetched_by(connection, "ATTACH PARTITION", attached):
        assert maintain_all(filled, MAY) == MADE

    assert len(checked) == len(attached) == 2
    assert min(checked) > 100
    assert max(attached) < 20
    assert rule_of(filled) is None


def die_when(is_time):
    """Lose the connection before a statement of which that is true, and before all that follow."""
    dead = []

    def execute(execute, sql, parameters, many, context):
        if dead or is_time(sql):
            dead.append(sql)
            context["connection"].connection.close()
            raise Killed
        return execute(sql, parameters, many, context)

    return execute


def test_whoever_is_killed_before_a_statement_leaves_what_the_next_one_completes(filled, connection):
    store = filled
    for number in count(1):
        numbers = count(1)
        try:
            with connection.execute_wrapper(die_when(lambda _, n=number, numbers=numbers: next(numbers) == n)):
                done = [store.at(MAY).maintain_partitions(None)]
        except (Killed, Error):
            connection.close()
        else:
            break
        maintain_all(store, MAY)
        assert partitions(connection) == {"202604", "202605", "202606", "202607", "rest"}
        assert rule_of(store) is None
        with connection.cursor() as cursor:
            cursor.execute("DROP TABLE delayedq_finishedmessage_202606, delayedq_finishedmessage_202607")
    assert number > 20
    assert done[0].name.endswith("202606")


def begun(store, connection):
    """Somebody is killed before the rest is checked."""
    with pytest.raises(Killed), connection.execute_wrapper(die_when(lambda sql: "VALIDATE" in sql)):
        maintain_all(store, MAY)
    connection.close()
    assert rule_of(store) == "delayedq_without_202606"


def test_a_month_that_was_left_half_made_refuses_no_row(filled, connection, monkeypatch):
    """Its constraint is removed before a row can miss it, also if the month can't be made then."""
    begun(filled, connection)
    with pytest.raises(IntegrityError, match="delayedq_without_202606"), transaction.atomic("postgresql"):
        ended(filled, "june", JUNE)
    monkeypatch.setattr(module, "READ_LOCKED", 0)
    maintain_all(filled, JUNE - 2 * DAY)

    assert rule_of(filled) is None
    ended(filled, "june", JUNE)
    assert where(connection)["june"] == "rest"


def test_a_constraint_of_a_month_that_was_made_otherwise_is_removed(filled, connection):
    begun(filled, connection)
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE TABLE delayedq_finishedmessage_202606 PARTITION OF delayedq_finishedmessage"
            " FOR VALUES FROM ('2026-06-01 00:00+0') TO ('2026-07-01 00:00+0')"
        )
    maintain_all(filled, MAY)
    assert rule_of(filled) is None


def test_a_rest_that_takes_too_long_is_left_to_the_command(filled, connection):
    def execute(execute, sql, parameters, many, context):
        if "VALIDATE" in sql:
            raise OperationalError("canceling statement due to statement timeout")
        return execute(sql, parameters, many, context)

    with connection.execute_wrapper(execute):
        assert filled.at(MAY).maintain_partitions(None).name.endswith("before")  # what is old goes all the same
        with pytest.raises(OperationalError):
            filled.at(MAY).maintain_partitions(None)
    assert rule_of(filled) is None

    limits = [one for one in sent(connection, lambda: maintain_all(filled, MAY)) if "statement_timeout" in one]
    assert module.CHECK_SHORT in limits
    limits = [one for one in sent(connection, lambda: [*filled.at(JUNE).partition_history(None)]) if "timeout" in one]
    assert module.NO_TIMEOUT in limits


def test_of_two_that_make_a_month_at_once_one_does(filled, connection, monkeypatch):
    check, others = module._check_rest, []

    def late(database, since, **options):
        if not others:
            others.append(1)
            others.append(elsewhere(maintain_all, filled, MAY))
        return check(database, since, **options)

    monkeypatch.setattr(module, "_check_rest", late)
    assert maintain_all(filled, MAY) == []
    assert others == [1, MADE]
    assert rule_of(filled) is None


def test_a_month_that_has_begun_is_made_only_if_the_rest_is_read_in_no_time(filled, connection, monkeypatch):
    """Its rows may come at any moment, so no constraint can keep them out."""
    store = filled
    now = datetime(2026, 6, 15, tzinfo=UTC)
    monkeypatch.setattr(module, "READ_LOCKED", 0)
    assert [name for step, name in maintain_all(store, now) if step == "created"] == ["202607", "202608"]
    ended(store, "june", now)
    monkeypatch.setattr(module, "READ_LOCKED", 2**30)
    assert maintain_all(store, now) == [("created", "202606")]
    assert where(connection)["june"] == "202606"
