"""What follows a message is stored by the transaction that ends it or gives it back, or not at all."""

from __future__ import annotations

import pytest
from django.db import transaction

from delayedq.models import Message
from delayedq.store.protocol import ClaimRequest
from tests.store.given import (
    LANE,
    LEASE,
    NOW,
    at,
    claim_one,
    fail,
    live_keys,
    message,
    outcomes,
    retry,
    settle,
    succeed,
)


def following(number=1):
    return tuple(message(f"next-{n}", scheduled_at=at(60)) for n in range(number))


@pytest.mark.parametrize("end", [succeed, fail, retry])
def test_what_follows_is_stored_with_the_end(store, end):
    store.offer(message())
    settle(store, end(claim_one(store), follow_ups=following(2)))
    assert set(Message.objects.filter(key__isnull=False).values_list("key", flat=True)) == {"next-0", "next-1"}


def test_in_one_call_with_a_claim_too(store):
    store.offer_many([message(), message("other")])
    one = claim_one(store)
    answer = store.at(NOW).settle_and_claim(
        [succeed(one, follow_ups=following())], ClaimRequest([LANE], 5, LEASE, "first")
    )
    assert [claimed.key for claimed in answer.claimed] == ["other"]
    assert Message.objects.filter(key="next-0").exists()


def test_a_rollback_takes_both(store, alias):
    store.offer(message("a"))
    claimed = claim_one(store)
    with transaction.atomic(using=alias):
        settle(store, succeed(claimed, follow_ups=following()))
        transaction.set_rollback(True, using=alias)
    assert live_keys() == {"a"}
    assert not outcomes()


def test_a_stale_end_is_followed_by_nothing(store):
    store.offer(message("a"))
    late = claim_one(store)
    claim_one(store, now=at(3600))
    assert settle(store, succeed(late, follow_ups=following()), now=at(3600)).lost
    assert live_keys() == {"a"}


def test_a_message_that_was_replaced_while_it_ran_is_followed_by_nothing(store):
    store.offer(message("a"))
    claimed = claim_one(store)
    store.offer(message("a", '{"x": 2}'))
    assert settle(store, succeed(claimed, follow_ups=following())).superseded
    assert live_keys() == {"a"}


def test_what_cannot_be_stored_ends_nothing(store):
    store.offer(message("a"))
    claimed = claim_one(store)
    with pytest.raises(ValueError, match="A key has 1 to 200 characters"):
        settle(store, succeed(claimed, follow_ups=(message("x" * 201),)))
    assert live_keys() == {"a"}
