"""PostgreSQL with another isolation level in OPTIONS: the queue's own statements do not fail for it."""

from __future__ import annotations

import pytest
from django.core.checks import run_checks
from django.db import connections, transaction
from psycopg import IsolationLevel

from delayedq.models import FinishedMessage
from delayedq.store.protocol import OnConflict
from tests.store.given import LEASE, NOW, claim, live_keys, message, settle_at_last, succeed, together

pytestmark = [
    pytest.mark.parametrize("alias", ["postgresql"], indirect=True),
    pytest.mark.parametrize(
        "level", [IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE], ids=lambda one: one.name
    ),
]


@pytest.fixture(autouse=True)
def _options(alias, level):
    """Each connection that is opened from now on has this level: for Django's transactions, and as its own default."""
    settings = connections[alias].settings_dict
    before, connection = settings["OPTIONS"], connections[alias]
    words = level.name.lower().replace("_", r"\ ")
    settings["OPTIONS"] = {**before, "isolation_level": level, "options": f"-c default_transaction_isolation={words}"}
    connection.close()
    yield
    connection.close()
    settings["OPTIONS"] = before


def test_batches_and_consumers_at_once_meet_no_serialization_failure(store, alias, level):
    names = [f"{number}" for number in range(20)]

    def offer():
        for turn in range(10):
            mixed = [(message(name, f"{turn}"), OnConflict.REPLACE) for name in names]
            mixed[::2] = [(message(name, f"{turn}"), OnConflict.PRESERVE_TIME) for name in names[::2]]
            store.at(NOW).offer_each(mixed)
            store.at(NOW).offer(message("0", f"one {turn}"))

    def consume():
        for _ in range(10):
            claimed = claim(store, 7)
            store.at(NOW).renew([(one.id, one.token) for one in claimed], LEASE)
            settle_at_last(store, *map(succeed, claimed))
            store.at(NOW).scan()

    together(offer, offer, consume, consume)
    assert live_keys() <= set(names)
    assert connections[alias].connection is None or connections[alias].connection.isolation_level in {None, level}


def test_the_level_of_the_users_own_transactions_stays(store, alias, level):
    store.at(NOW).offer_many([message("a"), message("b")])
    (claimed,) = claim(store, 1)
    settle_at_last(store, succeed(claimed))
    assert FinishedMessage.objects.count() == 1
    with connections[alias].cursor() as cursor, store.database.atomic():
        cursor.execute("SHOW transaction_isolation")
        assert cursor.fetchone() == ("read committed",)
    with transaction.atomic(using=alias), connections[alias].cursor() as cursor:
        cursor.execute("SHOW transaction_isolation")
        assert cursor.fetchone()[0].upper().replace(" ", "_") == level.name


def test_the_check_says_what_is_left_to_the_user(alias, level):
    assert [one.id for one in run_checks(databases=[alias]) if one.id.startswith("delayedq")] == ["delayedq.W003"]
