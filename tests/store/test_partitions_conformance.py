"""What the store does with its history, on one that is in partitions: the same answers as of a plain table."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connections

from delayedq.store import store_for
from tests.partitioned import partitions, plain_afterwards
from tests.store.given import NOW
from tests.store.test_conformance_edits import *  # noqa: F403
from tests.store.test_conformance_keyset_scan import *  # noqa: F403
from tests.store.test_conformance_lineage import *  # noqa: F403
from tests.store.test_conformance_settle import *  # noqa: F403

del test_keyset_scans_are_merged_as_far_as_the_shortest_came  # noqa: F821 - of no database

pytestmark = pytest.mark.parametrize("alias", ["postgresql"], indirect=True)


@pytest.fixture(scope="module", autouse=True)
def partitioned(postgresql, django_db_blocker):
    """The messages of these tests end in months that have a partition of their own, or before."""
    with django_db_blocker.unblock(), plain_afterwards(connections["postgresql"]):
        [*store_for("postgresql").at(NOW - timedelta(days=60)).partition_history(None)]
        assert partitions(connections["postgresql"]) == {"before", "202602", "202603", "rest"}
        yield
