"""An index that a migration adds to a history in partitions, while lease keepers make and drop months of it."""

from __future__ import annotations

from importlib import import_module
from itertools import count

import pytest
from django.db import Error
from django.db.migrations.state import ProjectState

from delayedq.models import FinishedMessage
from delayedq.store.online import OnlineMigration
from tests.partitioned import partitions
from tests.store.given import elsewhere
from tests.store.test_partition_months import die_when
from tests.store.test_partitions import (
    COLUMN,
    INDEX,
    LATER,
    MONTH,
    Killed,
    apply,
    maintain_all,
    partitioned,  # noqa: F401
    plain,  # noqa: F401
)

pytestmark = pytest.mark.parametrize("alias", ["postgresql"], indirect=True)

VALID = """
SELECT bool_and(indisvalid), count(*) FROM pg_index
WHERE indexrelid = 'delayedq_later'::regclass
    OR indexrelid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = 'delayedq_later'::regclass)
"""


@pytest.fixture
def with_column(partitioned, connection):  # noqa: F811
    apply(connection, COLUMN)
    return partitioned


def add_index(connection):
    state = import_module("delayedq.migrations.0001_initial").Migration("0001", "delayedq").mutate_state(ProjectState())
    COLUMN.state_forwards("delayedq", state)
    migration = type("Later", (OnlineMigration,), {"operations": (INDEX,), "atomic": False})("2", "delayedq")
    with connection.schema_editor(atomic=False) as editor:
        migration.apply(state, editor)


def all_are_valid(connection):
    """The index, and those of all partitions, as its parts."""
    with connection.cursor() as cursor:
        cursor.execute(VALID)
        is_valid, number = cursor.fetchone()
    return is_valid and number == 1 + len(partitions(connection))


def test_no_month_is_made_or_dropped_while_it_is_built(with_column, connection):
    meanwhile = []

    def execute(execute, sql, parameters, many, context):
        if "CREATE INDEX" in str(sql):
            meanwhile.append(elsewhere(maintain_all, with_column, LATER, MONTH))
        return execute(sql, parameters, many, context)

    with connection.execute_wrapper(execute):
        add_index(connection)
    assert meanwhile == [[]] * 5
    assert all_are_valid(connection)

    assert {"created", "dropped"} == {step for step, _ in maintain_all(with_column, LATER, MONTH)}
    assert all_are_valid(connection)


def test_whoever_is_killed_before_a_statement_leaves_what_the_next_one_completes(with_column, connection):
    for number in count(1, 2):
        numbers = count(1)
        try:
            with connection.execute_wrapper(die_when(lambda _, n=number, numbers=numbers: next(numbers) == n)):
                add_index(connection)
        except (Killed, Error):
            connection.close()
        else:
            break
        maintain_all(with_column, LATER, MONTH)
        add_index(connection)
        assert all_are_valid(connection)
    assert number > 20
    assert "delayedq_later" in with_column.database.constraints(FinishedMessage._meta.db_table)
