"""What tests of the archive share."""

from __future__ import annotations

import pytest

from delayedq.pipeline.models import ArchiveBatch
from tests.pipeline.given import DAY, NOW

#: Where what is tested does not depend on the database.
ONE_DATABASE = pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
ONE_STORE = pytest.mark.parametrize("alias", ["sqlite"], indirect=True)


END_CONNECTIONS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


class Killed(BaseException):
    """Nothing catches it, as nothing catches SIGKILL."""


def archived(lake):
    """The ids in the lake, each as often as it is there."""
    return sorted(row.id for row in lake.history().select("id").collect())


def die_at(state):
    def tell(batch):
        if batch.state == state:
            raise Killed

    return tell


def forget_lease():
    ArchiveBatch.objects.update(leased_until=NOW - DAY)
