"""Migrations that add columns or tables beside workers of the version before, which know nothing of them."""

from __future__ import annotations

import pytest

from delayedq.models import FinishedMessage
from tests.store.given import NOTHING_AMISS, at, claim_one, fail, live_keys, message, retry, settle, succeed

TABLES = ["delayedq_message", "delayedq_finishedmessage"]


@pytest.fixture
def migrate(connection):
    """Adds a column to both tables, as a migration does that keeps the version before working."""

    def alter(what):
        with connection.cursor() as cursor:
            for table in TABLES:
                cursor.execute(f"ALTER TABLE {table} {what}")

    yield lambda: alter("ADD COLUMN of_the_next_version varchar(20) NULL")
    alter("DROP COLUMN of_the_next_version")


def test_workers_of_the_version_before_go_on_beside_columns_of_the_next(store, migrate):
    for key in ("ends", "waits", "dies"):
        store.offer(message(key))
    before = [claim_one(store) for _ in range(3)]
    migrate()

    assert settle(store, succeed(before[0]), retry(before[1]), fail(before[2])) == NOTHING_AMISS
    assert {row.key: row.outcome for row in FinishedMessage.objects.all()} == {"ends": "succeeded", "dies": "failed"}

    store.offer(message("waits", scheduled_at=at(1)))
    claimed = claim_one(store, now=at(1))
    store.offer(message("waits", '{"args": [7]}', scheduled_at=at(2)))
    assert settle(store, succeed(claimed)).superseded
    assert settle(store, succeed(claim_one(store, now=at(2)))) == NOTHING_AMISS
    assert live_keys() == set()
