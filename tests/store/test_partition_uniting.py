"""The way back: a history in partitions becomes one table again, with all of its rows, and as it was before."""

from __future__ import annotations

from itertools import count

import pytest
from django.db import Error

from delayedq.exceptions import CannotPartition
from delayedq.models import FinishedMessage
from delayedq.store.postgresql import partitions as module
from delayedq.store.protocol import PartitionStep
from tests.partitioned import partitions
from tests.store.given import NOW, elsewhere
from tests.store.test_partition_months import die_when
from tests.store.test_partitions import (
    APRIL,
    CONVERSION,
    DAY,
    MAY,
    Killed,
    ended,
    left,
    maintain_all,
    plain,  # noqa: F401
)

pytestmark = pytest.mark.parametrize("alias", ["postgresql"], indirect=True)

TABLE = FinishedMessage._meta.db_table
ROWS = {"march", "april", "in ten years"}
GRANTED = "SELECT has_table_privilege('reader', %s, 'SELECT'), has_column_privilege('writer', %s, 'key', 'UPDATE')"


def given(store):
    """A history in partitions, most of whose rows, and of the room that it takes, are in April."""
    store.database.write(f"TRUNCATE {TABLE}")  # other tests have left room in it
    ended(store, "march", NOW)
    [*store.at(NOW).partition_history(None)]
    for number in range(300):
        ended(store, f"april {number}", APRIL)
    ended(store, "april", APRIL)
    ended(store, "in ten years", NOW + 3650 * DAY)


def columns(connection):
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {TABLE} LIMIT 0")
        return [(column.name, column.type_code) for column in cursor.description]


def test_it_is_the_table_that_it_was(store, plain):  # noqa: F811
    before = store.database.constraints(TABLE), columns(plain)
    given(store)
    assert store.rows_to_unite() == 2
    assert store.unite_history().step is PartitionStep.UNITED

    assert partitions(plain) == set()
    assert left() >= ROWS
    assert (store.database.constraints(TABLE), columns(plain)) == before
    with plain.cursor() as cursor:
        cursor.execute("SELECT relname FROM pg_class WHERE relname LIKE 'delayedq_finishedmessage_2%'")
        assert cursor.fetchall() == []
    assert (store.rows_to_unite(), store.unite_history(), maintain_all(store, NOW)) == (None, None, [])


def test_it_may_be_partitioned_once_more(store, plain):  # noqa: F811
    """The first partition, which is the table as it was, has most of its rows."""
    ended(store, "march", NOW)
    [*store.at(NOW).partition_history(None)]
    store.unite_history()
    assert [change.step for change in store.at(NOW).partition_history(None)] == CONVERSION
    assert left() == {"march"}


def test_whoever_is_killed_before_a_statement_has_done_all_or_nothing(store, plain):  # noqa: F811
    given(store)
    for number in count(1):
        numbers = count(1)
        try:
            with plain.execute_wrapper(die_when(lambda _, n=number, numbers=numbers: next(numbers) == n)):
                store.unite_history()
        except (Killed, Error):
            plain.close()
        else:
            break
        assert left() >= ROWS
    assert number > 20
    assert partitions(plain) == set()


def test_a_month_that_a_keeper_was_about_to_make_is_not_refused_afterwards(store, plain):  # noqa: F811
    """The rest is the largest partition here, and becomes the table."""
    store.database.write(f"TRUNCATE {TABLE}")
    [*store.at(NOW).partition_history(None)]
    for number in range(300):
        ended(store, f"in ten years {number}", NOW + 3650 * DAY)
    assert module._keep_out(store.database, APRIL + 365 * DAY)
    store.unite_history()
    assert module.state_of(store.database).rule is None
    ended(store, "in a year", APRIL + 365 * DAY)


def test_who_may_read_and_write_it_still_may_and_who_may_not_any_more_may_not(store, plain):  # noqa: F811
    with plain.cursor() as cursor:
        cursor.execute(
            f"CREATE ROLE reader; CREATE ROLE writer; GRANT SELECT ON {TABLE} TO reader;"
            f"GRANT UPDATE (key) ON {TABLE} TO writer"
        )
        try:
            [*store.at(NOW).partition_history(None)]
            cursor.execute(f"REVOKE SELECT ON {TABLE} FROM reader")
            store.unite_history()
            cursor.execute(GRANTED, [TABLE, TABLE])
            assert cursor.fetchone() == (False, True)
        finally:
            cursor.execute("DROP OWNED BY reader, writer; DROP ROLE reader, writer")


def test_a_keeper_that_begins_a_month_meanwhile_finds_that_there_is_none_to_make(store, plain, monkeypatch):  # noqa: F811
    given(store)
    keep_out, united = module._keep_out, []

    def late(database, since):
        if not united:
            united.append(elsewhere(store.unite_history))
        return keep_out(database, since)

    monkeypatch.setattr(module, "_keep_out", late)
    assert maintain_all(store, MAY) == []
    assert united[0].step is PartitionStep.UNITED
    assert partitions(plain) == set()
    assert left() >= ROWS


def test_a_view_of_yours_is_named(store, plain):  # noqa: F811
    given(store)
    with plain.cursor() as cursor:
        cursor.execute(f"CREATE VIEW ours AS SELECT id FROM {TABLE}")
        with pytest.raises(CannotPartition, match="the view ours"):
            store.unite_history()
        cursor.execute("DROP VIEW ours")
    assert partitions(plain) >= {"before", "rest"}
