"""`manage.py delayedq partition`: what it does and says."""

from __future__ import annotations

from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from tests.partitioned import partitions, plain_afterwards


def partition(*flags):
    out = StringIO()
    call_command("delayedq", "partition", *flags, stdout=out)
    return out.getvalue().splitlines()


@pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
def test_it_says_each_step_and_the_second_time_that_nothing_is_due(alias, connection):
    with plain_afterwards(connection):
        begun, checked, done, *made = partition()

        assert begun.startswith("delayedq_finishedmessage: its rows are being checked")
        assert checked == "delayedq_finishedmessage: its rows were checked."
        assert done.startswith("delayedq_finishedmessage is partitioned")
        assert len(made) == len(partitions(connection) - {"before", "rest"}) > 0
        assert partition() == ["The history is partitioned, and no partition is due to be made or dropped."]
        assert partition("--json") == ["[]"]


@pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
def test_the_way_back_is_asked_for_and_says_when_there_is_none(alias, connection):
    with plain_afterwards(connection):
        partition()
        with pytest.raises(CommandError, match="add --yes"):
            partition("--undo")
        assert partitions(connection) != set()
        assert partition("--undo", "--yes") == ["delayedq_finishedmessage is one table again."]
        assert partitions(connection) == set()
        assert partition("--undo") == ["The history is not in partitions."]


@pytest.mark.parametrize("alias", ["sqlite", "mariadb"], indirect=True)
def test_other_databases_have_none(alias):
    with pytest.raises(CommandError, match="is not PostgreSQL"):
        partition()
