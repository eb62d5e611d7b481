"""History in partitions: made beside everything else, and dropped month by month without losing a row."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from importlib import import_module
from itertools import count

import pytest
from django.db import Error, OperationalError, connections, transaction
from django.db.migrations import AddField
from django.db.migrations.state import ProjectState
from django.db.models import CharField, Index, Q
from django.test.utils import CaptureQueriesContext

from delayedq.core.lifecycle import FinalOutcome
from delayedq.exceptions import CannotPartition
from delayedq.models import FinishedMessage, Message
from delayedq.store import operator_store, retention
from delayedq.store.online import AddIndexOnline, OnlineMigration
from delayedq.store.operator import Revival
from delayedq.store.postgresql import partitions as module
from delayedq.store.protocol import Finish, Lane, PartitionStep
from tests.partitioned import partitions, plain_afterwards
from tests.store.given import KIND, NOW, claim_one, elsewhere, message, settle

pytestmark = pytest.mark.parametrize("alias", ["postgresql"], indirect=True)

DAY = timedelta(days=1)
APRIL, MAY, JUNE = (datetime(2026, number, 1, tzinfo=UTC) for number in (4, 5, 6))
#: When all of April is older than MONTH; NOW is in March.
LATER, MONTH = datetime(2026, 6, 2, tzinfo=UTC), 31 * DAY


@pytest.fixture
def plain(connection):
    with plain_afterwards(connection):
        yield connection


@pytest.fixture
def partitioned(plain, store):
    assert [change.step for change in store.at(NOW).partition_history(None)] == CONVERSION
    return store


CONVERSION = [PartitionStep.BEGUN, PartitionStep.CHECKED, PartitionStep.PARTITIONED, *[PartitionStep.CREATED] * 2]


def ended(store, key, when, outcome=FinalOutcome.SUCCEEDED):
    store.at(when).offer(message(key, scheduled_at=when))
    settle(store, Finish(claim_one(store, now=when), outcome, started=None, finished=0.0), now=when)


def left():
    return set(FinishedMessage.objects.values_list("key", flat=True))


def where(connection):
    """By their keys, the partitions that hold the rows."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT key, tableoid::regclass::text FROM delayedq_finishedmessage")
        return {key: name.removeprefix("delayedq_finishedmessage_") for key, name in cursor.fetchall()}


def maintain_all(store, now, retention=None):
    found = []
    while change := store.at(now).maintain_partitions(retention):
        found.append((change.step.value, change.name.removeprefix("delayedq_finishedmessage_")))
    return found


def sent(connection, call):
    with CaptureQueriesContext(connection) as captured:
        call()
    return [query["sql"] for query in captured]


# The conversion


def test_rows_stay_and_new_ones_go_where_they_ended(store, plain):
    ended(store, "old", NOW)
    [*store.at(NOW).partition_history(None)]
    ended(store, "april", APRIL)
    ended(store, "may", JUNE - DAY)
    ended(store, "in ten years", NOW + 3650 * DAY)

    assert partitions(plain) == {"before", "202604", "202605", "rest"}
    assert where(plain) == {"old": "before", "april": "202604", "may": "202605", "in ten years": "rest"}
    assert [*store.at(NOW).partition_history(None)] == []


def test_the_table_has_the_same_columns_and_indexes(store, plain):
    table = FinishedMessage._meta.db_table
    before = store.database.constraints(table)
    [*store.at(NOW).partition_history(None)]

    assert before - store.database.constraints(table) == {"delayedq_finishedmessage_pkey"}
    with plain.cursor() as cursor:
        cursor.execute("SELECT relname FROM pg_index JOIN pg_class ON oid = indexrelid WHERE NOT indisvalid")
        assert cursor.fetchall() == []


class Killed(Exception):  # noqa: N818
    pass


def die_at(number):
    """Lose the connection before this statement."""
    numbers = count(1)

    def execute(execute, sql, parameters, many, context):
        if next(numbers) == number:
            context["connection"].connection.close()
            raise Killed
        return execute(sql, parameters, many, context)

    return execute


def test_whoever_is_killed_before_a_statement_leaves_what_the_next_one_completes(store, connection):
    for number in count(1, 2):  # no step has one statement alone
        with plain_afterwards(connection):
            ended(store, "old", NOW)
            try:
                with connection.execute_wrapper(die_at(number)):
                    [*store.at(NOW).partition_history(None)]
            except (Killed, Error):
                connection.close()
            else:
                break
            ended(store, "meanwhile", NOW)
            [*store.at(NOW).partition_history(None)]
            assert partitions(connection) == {"before", "202604", "202605", "rest"}
            assert left() == {"old", "meanwhile"}
    assert number > 40


def test_a_conversion_that_was_left_half_done_refuses_no_row(store, plain):
    """Its constraint is removed before a row can miss it."""
    conversion = store.at(NOW).partition_history(None)
    assert next(conversion).step is PartitionStep.BEGUN
    conversion.close()
    assert maintain_all(store, NOW) == []
    with pytest.raises(Exception, match="delayedq_until_202604"), transaction.atomic("postgresql"):
        ended(store, "april", APRIL)

    with transaction.atomic("postgresql"):
        assert not FinishedMessage.objects.exists()  # a lock that the keeper of others does not wait for
        with pytest.raises(OperationalError, match="lock timeout"):
            elsewhere(maintain_all, store, APRIL - 2 * DAY)
    assert maintain_all(store, APRIL - 2 * DAY) == []
    ended(store, "april", APRIL)
    assert left() == {"april"}


def test_one_that_begins_again_after_weeks_takes_another_month(store, plain):
    next(store.at(NOW).partition_history(None))
    assert next(store.at(APRIL - DAY).partition_history(None)).step is PartitionStep.BEGUN_AGAIN

    [*store.at(APRIL - DAY).partition_history(None)]
    ended(store, "april", APRIL)
    assert where(plain) == {"april": "before"}
    assert partitions(plain) == {"before", "202605", "rest"}


def test_rows_of_a_clock_that_was_wrong_are_told_and_nothing_is_left(store, plain):
    ended(store, "in ten years", NOW + 3650 * DAY)

    with pytest.raises(CannotPartition, match="2026-04-01 or later"):
        [*store.at(NOW).partition_history(None)]
    assert module.state_of(store.database).rule is None


@pytest.mark.parametrize(
    ("make", "named"),
    [
        ("CREATE VIEW ours AS SELECT id FROM delayedq_finishedmessage", "the view ours"),
        (
            "CREATE TABLE ours (id bigint CONSTRAINT our_key REFERENCES delayedq_finishedmessage)",
            "the foreign key our_key",
        ),
        ("CREATE UNIQUE INDEX ours ON delayedq_finishedmessage (key)", "the unique index ours"),
    ],
)
def test_what_would_still_mean_the_old_table_is_named(store, plain, make, named):
    with plain.cursor() as cursor:
        cursor.execute(make)
        with pytest.raises(CannotPartition, match=named):
            [*store.at(NOW).partition_history(None)]
        cursor.execute(
            "DROP TABLE IF EXISTS ours"
            if "TABLE" in make
            else f"DROP {make.split()[1]} IF EXISTS ours"
            if "VIEW" in make
            else "DROP INDEX ours"
        )


def test_a_conversion_that_is_refused_when_it_has_begun_leaves_no_constraint(store, plain):
    conversion = store.at(NOW).partition_history(None)
    assert [next(conversion).step for _ in range(2)] == [PartitionStep.BEGUN, PartitionStep.CHECKED]
    with plain.cursor() as cursor:
        cursor.execute("CREATE VIEW ours AS SELECT id FROM delayedq_finishedmessage")
        try:
            with pytest.raises(CannotPartition):
                next(conversion)
        finally:
            cursor.execute("DROP VIEW ours")
    assert module.state_of(store.database).rule is None
    ended(store, "april", APRIL)  # which the constraint would have refused


def test_who_may_read_and_write_the_table_still_may(store, plain):
    with plain.cursor() as cursor:
        cursor.execute(
            "CREATE ROLE reader; GRANT SELECT ON delayedq_finishedmessage TO reader;"
            "GRANT UPDATE (queue), REFERENCES (key) ON delayedq_finishedmessage TO reader"
        )
        try:
            [*store.at(NOW).partition_history(None)]
            for part in ("", "_before", "_rest", "_202604"):  # as pg_dump reads them, too
                table = f"delayedq_finishedmessage{part}"
                cursor.execute(f"SELECT has_table_privilege('reader', '{table}', 'SELECT')")
                assert cursor.fetchone() == (True,)
                cursor.execute(
                    "SELECT array_agg(attname::text) FROM pg_attribute, unnest('{UPDATE,REFERENCES}'::text[]) AS may"
                    f" WHERE attrelid = '{table}'::regclass AND attnum > 0"
                    " AND has_column_privilege('reader', attrelid, attnum, may)"
                )
                assert set(cursor.fetchone()[0]) == {"queue", "key"}
        finally:
            cursor.execute("DROP OWNED BY reader; DROP ROLE reader")


def test_default_privileges_give_nobody_what_was_taken_from_them(store, plain):
    with plain.cursor() as cursor:
        cursor.execute("CREATE ROLE reader; ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO reader")
        try:
            [*store.at(NOW).partition_history(None)]
            for part in ("", "_rest", "_202604"):
                cursor.execute(f"SELECT has_table_privilege('reader', 'delayedq_finishedmessage{part}', 'SELECT')")
                assert cursor.fetchone() == (False,)
        finally:
            cursor.execute("DROP OWNED BY reader; DROP ROLE reader")


# What retention drops


def test_a_month_goes_without_a_row_deleted_and_what_must_stay_of_it_stays(partitioned, connection, monkeypatch):
    store = partitioned
    monkeypatch.setattr(retention, "_NEEDED", [])
    retention.keep_history(lambda: Message.objects.keyed(KIND, "batch").values_list("scheduled_at", flat=True))
    store.at(NOW).offer(message("batch", scheduled_at=APRIL + 5 * DAY))
    ended(store, "march", NOW + DAY)
    for key, when in (("needed", APRIL + DAY), ("april", APRIL + 9 * DAY), ("may", MAY)):
        settle_other(store, key, when)
    settle_other(store, "dead", APRIL + 9 * DAY, FinalOutcome.FAILED)

    statements = sent(connection, lambda: maintain_all(store, LATER, MONTH))

    assert not [one for one in statements if re.match(r"\s*DELETE", one)]
    assert where(connection) == {"march": "rest", "needed": "rest", "dead": "rest", "may": "202605"}
    assert partitions(connection) == {"202605", "202606", "202607", "202608", "rest"}


def settle_other(store, key, when, outcome=FinalOutcome.SUCCEEDED):
    """As `ended`, where another message waits."""
    store.at(when).offer(message(key, queue=key, scheduled_at=when))
    claimed = claim_one(store, now=when, lanes=(Lane(key, 0),))
    settle(store, Finish(claimed, outcome, started=None, finished=0.0), now=when)


def test_pruning_deletes_rows_of_what_could_not_be_dropped_alone(partitioned):
    store = partitioned
    for key, when in (("march", NOW), ("april", APRIL), ("may", MAY)):
        ended(store, key, when)

    assert store.at(LATER - DAY / 2).prune(MONTH, 100) == 1
    assert left() == {"april", "may"}
    assert store.at(LATER).prune(MONTH, 100) == 1
    assert left() == {"may"}


def test_a_month_with_more_to_keep_than_may_be_moved_is_left_to_pruning(partitioned, connection, monkeypatch):
    monkeypatch.setattr(module, "MOST", 1)
    store = partitioned
    for key in ("a", "b"):
        ended(store, key, APRIL, FinalOutcome.FAILED)
    ended(store, "done", APRIL)

    assert ("dropped", "202604") not in maintain_all(store, LATER + DAY, MONTH)
    assert store.at(LATER + DAY).prune(MONTH, 100) == 1
    assert where(connection) == {"a": "202604", "b": "202604"}


def test_a_row_that_ends_between_the_look_and_the_drop_is_not_lost(partitioned, connection, monkeypatch):
    """It waits for the drop, and then goes into the rest."""
    store, waiting = partitioned, []
    ended(store, "april", APRIL)
    needed = module._needed

    def late(store, part):
        found = needed(store, part)
        if part.name.endswith("before"):
            return found
        with pytest.raises(OperationalError, match="lock timeout"):
            elsewhere(impatient, store, "late")
        waiting.append(1)
        return found

    monkeypatch.setattr(module, "_needed", late)
    assert ("dropped", "202604") in maintain_all(store, LATER, MONTH)
    assert waiting
    ended(store, "late", APRIL + DAY)
    assert where(connection) == {"late": "rest"}


def impatient(store, key):
    with transaction.atomic("postgresql"), connections["postgresql"].cursor() as cursor:
        cursor.execute("SET LOCAL lock_timeout = '50ms'")
        ended(store, key, APRIL + DAY)


def test_a_month_that_somebody_reads_is_dropped_later(partitioned, connection):
    store = partitioned
    ended(store, "april", APRIL)
    with transaction.atomic("postgresql"):
        assert FinishedMessage.objects.count() == 1
        with pytest.raises(OperationalError, match="lock timeout"):
            elsewhere(maintain_all, store, LATER, MONTH)
        assert left() == {"april"}

    assert ("dropped", "202604") in maintain_all(store, LATER, MONTH)


def test_empty_months_go_whatever_retention_says_and_others_stay(partitioned, connection):
    store = partitioned
    ended(store, "may", MAY)

    created = [("created", f"20260{number}") for number in (6, 7, 8)]
    assert maintain_all(store, LATER) == [*created, ("dropped", "before"), ("dropped", "202604")]
    assert where(connection) == {"may": "202605"}


def test_an_empty_month_goes_behind_one_that_has_a_row(partitioned, connection):
    store = partitioned
    ended(store, "april", APRIL, FinalOutcome.FAILED)
    ended(store, "june", JUNE)
    dropped = [part for step, part in maintain_all(store, LATER) if step == "dropped"]
    assert dropped == ["before", "202605"]
    assert where(connection) == {"april": "202604", "june": "202606"}


def test_rows_that_came_before_their_month_had_a_partition_move_into_it(partitioned, connection, monkeypatch):
    store, july = partitioned, datetime(2026, 7, 1, tzinfo=UTC)
    for key, when in (("june", JUNE), ("july", july), ("july too", july)):
        ended(store, key, when)
    monkeypatch.setattr(module, "MOST", 1)

    assert maintain_all(store, MAY) == [("created", "202606"), ("dropped", "before")]
    assert where(connection) == {"june": "202606", "july": "rest", "july too": "rest"}


# What others do to it


def test_a_dead_letter_is_revived_and_relabelled_in_its_partition(partitioned):
    store, operator = partitioned, operator_store("postgresql")
    for key in ("a", "b"):
        ended(store, key, APRIL, FinalOutcome.FAILED)
    a, b = (FinishedMessage.objects.get(key=key).pk for key in ("a", "b"))

    assert operator.revive([Revival(a, APRIL)], "failed") == {a}
    assert operator.relabel([b], "failed", "cancelled") == {b}
    assert store.in_history([a, b]) == {b}


# Later migrations


def apply(connection, *operations, back=False):
    """A later migration of the history, or the way back from it; returns the state of the models after it."""
    state = import_module("delayedq.migrations.0001_initial").Migration("0001", "delayedq").mutate_state(ProjectState())
    migrations = []
    for number, operation in enumerate(operations):
        one = type("Later", (OnlineMigration,), {"operations": (operation,), "atomic": operation.atomic is not False})
        migrations.append((one(f"{number}", "delayedq"), state))
        with connection.schema_editor(atomic=migrations[-1][0].atomic) as editor:
            state = migrations[-1][0].apply(state, editor)
    return migrations


COLUMN = AddField("finishedmessage", "later", CharField(max_length=20, null=True))
INDEX = AddIndexOnline(
    "finishedmessage", Index(fields=["later", "id"], condition=Q(later__gt=""), name="delayedq_later")
)


def test_later_migrations_change_all_partitions_and_those_to_come(partitioned, connection):
    store = partitioned
    migrations = apply(connection, COLUMN, INDEX)
    maintain_all(store, MAY)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*), bool_and(indisvalid) FROM pg_index JOIN pg_inherits ON inhrelid = indexrelid"
            " WHERE inhparent = 'delayedq_later'::regclass"
        )
        assert cursor.fetchone() == (5, True)
        cursor.execute("SELECT indisvalid FROM pg_index WHERE indexrelid = 'delayedq_later'::regclass")
        assert cursor.fetchone() == (True,)

    for migration, before in reversed(migrations):
        with connection.schema_editor(atomic=migration.atomic) as editor:
            migration.unapply(before, editor)
    assert "delayedq_later" not in store.database.constraints(FinishedMessage._meta.db_table)
    ended(store, "june", JUNE)
    assert where(connection) == {"june": "202606"}


def test_an_index_that_was_not_built_to_the_end_is_built_again(partitioned, connection):
    apply(connection, COLUMN)
    with connection.cursor() as cursor:
        cursor.execute("CREATE INDEX delayedq_later ON ONLY delayedq_finishedmessage (id)")
        cursor.execute("CREATE INDEX delayedq_later_rest ON delayedq_finishedmessage_rest (id)")
        cursor.execute("ALTER TABLE delayedq_finishedmessage DROP COLUMN later")
    apply(connection, COLUMN, INDEX)

    with connection.cursor() as cursor:
        cursor.execute("SELECT indisvalid FROM pg_index WHERE indexrelid = 'delayedq_later'::regclass")
        assert cursor.fetchone() == (True,)


# What it costs


def test_who_has_no_partitions_pays_nothing_for_them(store, connection):
    ended(store, "old", NOW)
    assert len(sent(connection, lambda: store.at(NOW).maintain_partitions(DAY))) == 1
    pruned = sent(connection, lambda: store.at(NOW + 9 * DAY).prune(DAY, 9))
    assert len(pruned) == 5  # open flows, BEGIN, the wait for locks, the deletion, COMMIT
