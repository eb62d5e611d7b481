"""Threads with connections of their own, all at once: nothing is lost, nothing is done twice, nothing deadlocks."""

from __future__ import annotations

import time
from collections import Counter
from functools import partial
from threading import Event, Lock

import pytest
from django.db import transaction

from delayedq.models import FinishedMessage, Message
from delayedq.store.protocol import ClaimRequest, OfferOutcome, OnConflict
from tests.store.given import (
    KIND,
    LANE,
    LEASE,
    NOW,
    at,
    claim,
    claim_one,
    keys,
    live,
    live_keys,
    message,
    retry,
    settle,
    settle_at_last,
    succeed,
    together,
)

CREATED, UPDATED, IGNORED = OfferOutcome.CREATED, OfferOutcome.UPDATED, OfferOutcome.IGNORED


def offer_each(store, offers, on_conflict=OnConflict.REPLACE):
    return [store.at(NOW).offer(offer, on_conflict).outcome for offer in offers]


# Offers against offers


@pytest.mark.parametrize("policy", OnConflict)
def test_a_key_offered_by_ten_at_once_is_created_once(store, policy):
    for turn in range(5):
        offers = [message(f"{turn}", f"{number}") for number in range(10)]
        outcomes = Counter(
            together(*(partial(lambda o: store.at(NOW).offer(o, policy).outcome, offer) for offer in offers))
        )

        assert outcomes[CREATED] == 1
        assert outcomes[IGNORED if policy is OnConflict.KEEP else UPDATED] == 9


def test_a_hundred_updates_by_ten_leave_one_message_with_one_of_the_payloads(store):
    store.at(NOW).offer(message("a", "first"))
    batches = [[message("a", f"{thread}-{turn}") for turn in range(10)] for thread in range(10)]
    outcomes = together(*(partial(offer_each, store, batch) for batch in batches))

    assert {outcome for batch in outcomes for outcome in batch} == {UPDATED}
    assert live("a").payload in {batch[-1].payload for batch in batches}
    assert live("a").generation == 100


def test_a_batch_racing_single_offers_of_its_keys_stores_every_key_once(store):
    for turn in range(5):
        names = [f"{turn}-{number}" for number in range(20)]
        batch, *singles = together(
            lambda names=names: [offered.outcome for offered in store.at(NOW).offer_many(map(message, names))],
            *(partial(offer_each, store, [message(name, "2")]) for name in names[::2]),
        )
        assert live_keys() >= set(names)
        created = Counter(outcome for outcomes in (batch, *singles) for outcome in outcomes)[CREATED]
        assert created == len(names)
        assert Message.objects.filter(key__startswith=f"{turn}-").count() == len(names)


def test_batches_with_the_same_keys_in_opposite_orders_do_not_deadlock(store):
    names = [f"{number}" for number in range(200)]

    def offer_often(order, payload):
        for turn in range(5):
            store.at(NOW).offer_many([message(name, f"{payload}{turn}") for name in order])

    together(partial(offer_often, names, "a"), partial(offer_often, names[::-1], "b"))
    assert live_keys() == set(names)
    assert len(set(Message.objects.values_list("payload", flat=True))) == 1


@pytest.mark.parametrize(("size", "run", "turns"), [(100, 1, 2), (1_500, 50, 1)], ids=["one by one", "in runs"])
def test_batches_of_mixed_policies_with_the_same_keys_in_opposite_orders_do_not_deadlock(store, size, run, turns):
    """Each batch replaces or keeps the keys that another one creates. `run` keys in a row share a policy, and with it
    a statement; which runs have which policy differs between the batches.
    """
    names = [f"{number:04}" for number in range(size)]

    def offer_often(thread):
        order = names if thread % 2 else names[::-1]
        for turn in range(turns):
            offers = [message(name, f"{thread}-{turn}") for name in order]
            policies = [OnConflict.REPLACE if (int(name) // run + thread) % 2 else OnConflict.KEEP for name in order]
            store.at(NOW).offer_each(list(zip(offers, policies, strict=True)))

    together(*(partial(offer_often, thread) for thread in range(4)))
    assert live_keys() == set(names)


# Claims against claims


def test_eight_claimers_never_get_more_than_they_ask_for_and_nothing_twice(store):
    store.at(NOW).offer_many([message(f"{number}", priority=number % 2) for number in range(600)])
    lanes = [LANE, LANE._replace(priority=1)]

    def claim_all(worker):
        batches = []
        while batch := claim(store, 7, lanes=lanes, worker=worker):
            batches.append(batch)
        return batches

    batches = [batch for batches in together(*(partial(claim_all, f"w{n}") for n in range(8))) for batch in batches]
    assert max(map(len, batches)) <= 7
    claimed = Counter(message.key for batch in batches for message in batch)
    assert (len(claimed), set(claimed.values())) == (600, {1})
    assert set(Message.objects.values_list("attempt", flat=True)) == {1}


def test_an_expired_message_goes_to_one_of_those_who_want_it(store):
    for turn in range(10):
        store.at(NOW).offer(message(f"{turn}"))
        claim_one(store)
        claims = together(*(partial(claim, store, now=at(61), worker=f"w{n}") for n in range(4)))

        assert sum(map(len, claims)) == 1
        settle(store, *(succeed(claimed) for batch in claims for claimed in batch))


def test_a_late_end_and_a_new_claim_never_both_win(store):
    for turn in range(20):
        store.at(NOW).offer(message(f"{turn}"))
        late = claim_one(store)
        (lost, _), claimed = together(
            partial(settle_at_last, store, succeed(late), now=at(61)),
            partial(claim, store, now=at(61), worker="second"),
        )
        assert (lost == {late.id}) == bool(claimed)
        settle(store, *map(succeed, claimed))
        assert FinishedMessage.objects.filter(key=f"{turn}").count() == 1


# Producers and consumers


class Consumers:
    """Threads that settle and claim until `wanted` messages were seen, or one thread has failed."""

    def __init__(self, store, wanted):
        self.store, self.wanted, self.seen, self.lock = store, wanted, [], Lock()

    def consume(self, worker):
        held = []
        while len(self.seen) < self.wanted:
            held = self.settle_and_claim(held, worker)
        settle_at_last(self.store, *map(succeed, held))

    def settle_and_claim(self, held, worker):
        claimed, settled = self.store.at(NOW).settle_and_claim(
            [*map(succeed, held)], ClaimRequest([LANE], 9, LEASE, worker)
        )
        with self.lock:
            self.seen += keys(claimed)
            if settled.lost or settled.superseded:
                self.wanted = 0
        assert (settled.lost, settled.superseded) == (set(), set())
        return [one for one in held if one.id in settled.busy] + claimed

    def threads(self, number):
        return [partial(self.consume, f"w{index}") for index in range(number)]


def test_each_key_that_four_producers_offer_is_consumed_exactly_once(store):
    names = [f"{number}" for number in range(200)]
    outcomes = together(*[partial(offer_each, store, [message(name) for name in names]) for _ in range(4)])
    consumers = Consumers(store, len(names))
    together(*consumers.threads(4))

    assert Counter(outcome for batch in outcomes for outcome in batch) == {CREATED: 200, IGNORED: 600}
    assert Counter(consumers.seen) == dict.fromkeys(names, 1)
    assert (Message.objects.count(), FinishedMessage.objects.succeeded().count()) == (0, 200)


def test_ten_consumers_beside_four_producers_end_every_message_exactly_once(store):
    consumers = Consumers(store, 400)
    producers = [partial(offer_each, store, [message(f"{p}-{n}") for n in range(100)]) for p in range(4)]
    together(*producers, *consumers.threads(10))

    assert set(Counter(consumers.seen).values()) == {1}
    assert (Message.objects.count(), FinishedMessage.objects.succeeded().count()) == (0, 400)


# Offers against ends


def test_an_offer_that_meets_the_end_of_its_key_returns_and_its_message_runs(store):
    stop = Event()

    def consume():
        while not stop.is_set():
            settle_at_last(store, *map(succeed, claim(store, worker="consumer")))

    def produce():
        try:
            return [store.at(NOW).offer(message("a", f"{number}")) for number in range(300)]
        finally:
            stop.set()

    offers, _ = together(produce, consume)
    assert {offered.outcome for offered in offers} <= {CREATED, UPDATED}
    settle(store, *map(succeed, claim(store)))
    assert not Message.objects.exists()
    assert FinishedMessage.objects.filter(payload="299", outcome="succeeded").count() == 1
    created = sum(offered.outcome == CREATED for offered in offers)
    assert created == FinishedMessage.objects.succeeded().count()


def test_a_message_unscheduled_while_it_is_offered_again_is_either_live_or_history(store):
    for turn in range(20):
        store.at(NOW).offer(message("a", f"{turn}"))
        offered, unscheduled = together(
            lambda turn=turn: store.at(NOW).offer(message("a", f"{turn}!")), lambda: store.at(NOW).unschedule(KIND, "a")
        )
        assert unscheduled
        assert live_keys() == ({"a"} if offered.outcome == CREATED else set())
        store.at(NOW).unschedule(KIND, "a")


@pytest.mark.parametrize(
    "drop",
    [
        lambda store: store.unschedule("mail", "a"),
        lambda store: store.drop("mail"),
        lambda store: store.drop("mail", recorded=False),
        lambda store: store.drop("mail", "a", recorded=False),
    ],
    ids=["unscheduled", "with its queue", "with its queue, unrecorded", "unrecorded"],
)
def test_a_key_that_the_transaction_which_ends_it_offers_again_is_dropped(store, alias, drop):
    """It is live at all times: who drops it waits for that transaction, and finds what it has offered."""
    store.at(NOW).offer(message("a", "1", kind="mail"))
    running = claim_one(store)

    def end_and_offer_again():
        settle(store, succeed(running))
        store.at(NOW).offer(message("a", "2", kind="mail"))

    assert dropped_during(alias, end_and_offer_again, lambda: None, lambda: drop(store.at(NOW))) == 1
    assert not Message.objects.exists()


@pytest.mark.parametrize("recorded", [True, False])
def test_a_message_that_is_moved_while_its_queue_is_dropped_is_dropped_too(store, alias, recorded):
    offers = [message(key, scheduled_at=at(due), kind="mail") for key, due in (("a", 10), ("b", 20))]
    store.at(NOW).offer_many(offers)

    def replace(offer, **values):
        store.at(NOW).offer(offer._replace(payload="2", **values))

    first, second = (partial(replace, offers[0]), partial(replace, offers[1], scheduled_at=at(5)))
    assert dropped_during(alias, first, second, lambda: store.at(NOW).drop("mail", recorded=recorded)) == 2
    assert not Message.objects.exists()


def dropped_during(alias, before, meanwhile, drop):
    """What `drop` answers, which waits for a transaction that does one thing before, and another while it waits."""
    locked, dropping = Event(), Event()

    def act():
        with transaction.atomic(using=alias):
            before()
            locked.set()
            assert dropping.wait(30)
            time.sleep(0.2)
            meanwhile()

    def drop_it():
        assert locked.wait(30)
        dropping.set()
        return drop()

    return together(act, drop_it)[1]


def ends_against(store, act):
    """End batches of messages, in the order of their ids, while `act` works on the same claims."""
    for turn in range(5):
        names = [f"{number:04}" for number in reversed(range(1000))]
        store.at(NOW).offer_many([message(name, f"{turn}") for name in names])
        claims = claim(store, 1000)
        together(partial(settle_at_last, store, *map(succeed, claims)), partial(act, claims))
        settle(store, *map(succeed, claim(store, 1000)))
    assert not Message.objects.exists()


def test_ending_a_batch_does_not_deadlock_with_offers_of_its_keys_in_another_order(store):
    ends_against(store, lambda claims: store.at(NOW).offer_many([message(c.key, "new") for c in reversed(claims)]))


def test_ending_a_batch_does_not_deadlock_with_the_renewal_of_its_leases_in_another_order(store):
    ends_against(store, lambda claims: store.at(NOW).renew([(c.id, c.token) for c in reversed(claims)], LEASE))
    assert FinishedMessage.objects.succeeded().count() == 5000


def test_giving_a_batch_back_does_not_deadlock_with_offers_of_its_keys_in_another_order(store):
    names = [f"{number:04}" for number in reversed(range(1000))]
    for turn in range(5):
        store.at(NOW).offer_many([message(name, f"{turn}") for name in names])
        claims = claim(store, 1000)
        offers = [message(name, f"{turn} new") for name in names]
        together(
            partial(settle_at_last, store, *(retry(claimed, delay=0.0) for claimed in claims)),
            partial(store.at(NOW).offer_many, offers),
        )
    assert set(Message.objects.values_list("payload", "lease_token")) == {("4 new", None)}
