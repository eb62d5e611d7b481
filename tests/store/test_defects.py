"""Defects that other queues have had, each as the scene in which it shows. SCENARIOS.md knows them by their numbers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from django.db import IntegrityError
from django.utils import timezone

from delayedq.models import Message
from delayedq.store.claim_tokens import new_token
from delayedq.store.protocol import OfferOutcome, OnConflict
from tests.store.given import LEASE, NOW, claim, claim_one, live, message, outcomes, settle, succeed, together

MILLISECOND = timedelta(milliseconds=1)


def test_d4_an_offer_whose_message_ends_just_before_its_statement_creates_it_anew(store, connection):
    store.at(NOW).offer(message("a", "1"))
    claimed, statements = claim_one(store), []

    def end_it_first(execute, sql, params, many, context):
        statements.append(sql)
        if len(statements) == 1:
            together(partial(settle, store, succeed(claimed)))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(end_it_first):
        assert store.at(NOW).offer(message("a", "2")).outcome == OfferOutcome.CREATED
    assert len([sql for sql in statements if "delayedq_message" in sql]) == 1
    assert (live("a").payload, outcomes()) == ("2", ["succeeded"])


@pytest.mark.parametrize("policy", OnConflict)
@pytest.mark.parametrize("missing", ["priority", "max_attempts"])
def test_d5_a_row_that_can_not_be_stored_is_an_error_and_no_duplicate(store, policy, missing):
    bad = message("a", **{missing: None})
    with pytest.raises(IntegrityError):
        store.at(NOW).offer(bad, policy)
    with pytest.raises(IntegrityError):
        store.at(NOW).offer_many([message("b"), bad], policy)
    assert not Message.objects.exists()


def test_d19_no_two_claims_share_a_token(store):
    """Drawn from 24 bits, half of all sets of 4,800 tokens have two that are the same."""
    tokens = {new_token() for _ in range(100_000)}
    assert (len(tokens), max(tokens).bit_length()) == (100_000, 63)

    store.at(NOW).offer(message("a"))
    assert claim_one(store).token == live("a").lease_token


def test_d20_a_lease_whose_holder_is_gone_ends_without_any_cleanup(store):
    store.at(NOW).offer(message("a"))
    claim_one(store)

    assert claim(store, now=NOW + LEASE - MILLISECOND) == []
    assert claim_one(store, now=NOW + LEASE).attempt == 2


def test_d22_the_clock_of_the_store_is_that_of_the_world(store):
    last = None
    for _ in range(20):
        before = timezone.now()
        now = store.now()
        assert before - MILLISECOND <= now <= timezone.now() + MILLISECOND
        assert last is None or now >= last
        last = now


def test_d22_a_lease_on_the_clock_of_the_store_lasts_as_long_as_was_asked(store):
    lease = timedelta(seconds=30)
    before = timezone.now()
    store.offer(message("a", scheduled_at=None))
    claim_one(store, now=None, lease=lease)

    assert before - MILLISECOND <= live("a").leased_until - lease <= timezone.now() + MILLISECOND


@pytest.mark.parametrize("alias", ["mariadb"], indirect=True)
@pytest.mark.parametrize("second", [0, 0.5, 14.75, 29.5, 30, 45.25, 59.875])
def test_d22_so_it_does_whenever_in_a_minute_it_began(store, connection, second):
    """Only here can the clock of a server be set, for one connection."""
    moment = datetime(2026, 12, 31, 23, 59, tzinfo=UTC) + timedelta(seconds=second)
    try:
        with connection.cursor() as cursor:
            cursor.execute("SET SESSION timestamp = %s", [moment.timestamp()])
        assert store.now() == moment
        store.offer(message("a", scheduled_at=None))
        claim_one(store, now=None, lease=timedelta(seconds=30))
    finally:
        connection.close()
    assert (live("a").scheduled_at, live("a").leased_until) == (moment, moment + timedelta(seconds=30))


#: Makes the database evaluate a subquery once per row of an outer one, if it can: PostgreSQL 18 then takes ten rows for
#: `WHERE id IN (SELECT ... LIMIT 7 FOR UPDATE SKIP LOCKED)`.
NESTED = {
    "postgresql": [f"SET enable_{way} = off" for way in ("hashjoin", "mergejoin", "material", "hashagg", "sort")],
    "mysql": ["SET SESSION optimizer_switch = 'semijoin=off,materialization=off,subquery_cache=off'"],
    "sqlite": [],
}


@pytest.mark.parametrize("limit", [1, 7])
def test_d32_a_claim_takes_no_more_than_asked_however_the_database_goes_about_it(store, connection, limit):
    store.at(NOW).offer_many([message(f"{number}") for number in range(100)])
    try:
        with connection.cursor() as cursor:
            for statement in NESTED[connection.vendor]:
                cursor.execute(statement)
        assert len(claim(store, limit)) == limit
    finally:
        connection.close()
    assert Message.objects.filter(attempt=1).count() == limit
