"""The archive on a history in partitions: it reads and deletes as ever, and months that it has emptied are dropped."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.partitioned import partitions, plain_afterwards
from tests.pipeline.archives import archived
from tests.pipeline.given import DAY, NOW, history, ids


@pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
def test_what_moves_leaves_empty_months_which_are_dropped(store, connection, archiving, lake):
    with plain_afterwards(connection):
        [*store.at(NOW - timedelta(days=60)).partition_history(None)]
        history(90)

        [done] = archiving(here=None).run(NOW - DAY)

        assert (done.row_count, done.deleted) == (60, 60)
        assert archived(lake) == list(range(1, 61))
        assert ids() == set(range(61, 91))
        while store.at(NOW + 2 * DAY).maintain_partitions(None):
            pass
        assert "before" not in partitions(connection)
        assert ids() == set(range(61, 91))
