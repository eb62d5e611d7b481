"""What the tests of operations share."""

from __future__ import annotations

import pytest
from django.db import connections

#: This connection's own counts are written first: else they would come after the reset.
FORGET = ("SELECT pg_stat_force_next_flush()", "SELECT 1", "SELECT pg_stat_reset()")


@pytest.fixture
def no_statistics_of_other_tests(request):
    """The doctor judges what PostgreSQL has counted since its statistics were reset; so other tests count for it."""
    if "store" not in request.fixturenames:
        return
    store = request.getfixturevalue("store")
    if store.alias == "postgresql":
        with connections[store.alias].cursor() as cursor:
            for statement in FORGET:
                cursor.execute(statement)
