"""Anything that one consumer after the other can do with a queue, against the reference; Hypothesis chooses what.

The sequences are the same in every run. DELAYEDQ_TEST_EXAMPLES=1000 tries so many others, at random.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from contextlib import suppress
from datetime import timedelta

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from delayedq import BatchedMessage, DelayedQueue
from delayedq.models import FinishedMessage, Message, Outcome
from delayedq.queue import CONFIRMATION
from tests.queue.given import Boom, boom
from tests.queue.reference import Ended, Reference
from tests.store.given import LEASE, NOW, at

EXAMPLES = os.environ.get("DELAYEDQ_TEST_EXAMPLES")
SETTINGS = settings(
    max_examples=int(EXAMPLES or 80),
    stateful_step_count=40,
    derandomize=EXAMPLES is None,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
MICROSECOND = timedelta(microseconds=1)
MOST = 3

NAMES = "ab"
KEYS = st.sampled_from([*NAMES, None])
PAYLOADS = st.integers(0, 2)
TIMES = st.sampled_from([None, at(0), at(-5), at(61)])
BATCHES = st.lists(st.tuples(KEYS, PAYLOADS, TIMES, st.booleans()), min_size=1, max_size=5)
DELAYS = st.sampled_from([None, timedelta(0), timedelta(seconds=5), timedelta(seconds=90)])
STATES = st.sampled_from([(), (7,), (None,), ({"since": NOW},)])


class QueueMachine(RuleBasedStateMachine):
    #: Pairs of an envelope and what the reference delivered: those that nobody settled, and those that somebody did.
    held = Bundle("held")
    settled = Bundle("settled")
    batches = Bundle("batches")
    readings = Bundle("readings")

    def __init__(self):
        super().__init__()
        self.reference = Reference(NOW, LEASE, MOST)
        self.queue = DelayedQueue("contacts", clock=lambda: self.reference.now, lease=LEASE, max_attempts=MOST)
        self.by_id = {}

    def teardown(self):
        Message.objects.all().delete()
        FinishedMessage.objects.all().delete()

    # Ways in

    @rule(key=KEYS, payload=PAYLOADS, when=TIMES)
    def offer_or_update(self, key, payload, when):
        assert self.queue.offer_or_update(key, payload, when) == self.reference.offer(key, payload, when)

    @rule(key=KEYS, payload=PAYLOADS, when=TIMES)
    def offer_if_not_exists(self, key, payload, when):
        expected = self.reference.offer(key, payload, when, can_update=False)
        assert self.queue.offer_if_not_exists(key, payload, when) == expected

    @rule(key=st.sampled_from(NAMES))
    def offer_the_same_again(self, key):
        if message := self.reference.find(key):
            self.offer_or_update(key, message.payload, message.asked_for)

    @initialize(messages=BATCHES)
    def begin(self, messages):
        self.offer_batch(messages)

    @rule(messages=BATCHES)
    def offer_batch(self, messages):
        replies = self.queue.offer_batch(BatchedMessage(place, *fields) for place, fields in enumerate(messages))
        assert [reply.input for reply in replies] == list(range(len(messages)))
        assert [reply.outcome for reply in replies] == self.reference.offer_batch(messages)

    # Ways out

    @rule(target=held)
    def try_poll(self):
        envelope = self.queue.try_poll()
        return multiple(*self.delivered([envelope] if envelope else [], self.reference.poll(1)))

    @rule(target=batches, limit=st.integers(-1, 4))
    def try_poll_many(self, limit):
        batch, expected = self.queue.try_poll_many(limit), self.reference.poll(limit)
        again = any(delivery.attempt > 1 for delivery in expected)
        assert batch.delivery_type == ("redelivery" if again else "first_delivery")
        return batch, self.delivered(batch.envelopes, expected)

    @rule(target=held, batch=consumes(batches))
    def take_out_of_a_batch(self, batch):
        return multiple(*batch[1])

    def delivered(self, envelopes, deliveries):
        """Both, in pairs, after a look at whether they are the same."""
        assert [
            (e.key, e.payload, e.state, e.scheduled_at, e.attempt, e.delivery_type, e.polled_at) for e in envelopes
        ] == [(d.key, d.payload, d.state, d.due, d.attempt, _type(d.attempt), self.reference.now) for d in deliveries]
        pairs = list(zip(envelopes, deliveries, strict=True))
        for envelope, delivery in pairs:
            self.is_known(envelope.message_id, delivery.message)
        return pairs

    def is_known(self, id_, message):
        """Under one id there is one message, all its life."""
        assert self.by_id.setdefault(id_, message) is message

    # Letting go, also by those who have lost what they held

    @rule(target=settled, pair=consumes(held))
    def acknowledge(self, pair):
        return self.settle("acknowledge", pair)

    @rule(target=settled, pair=consumes(held))
    def release(self, pair):
        return self.settle("release", pair)

    @rule(target=settled, pair=consumes(held))
    def fail(self, pair):
        return self.settle("fail", pair, "no such address")

    @rule(target=settled, pair=consumes(held), delay=DELAYS)
    def reject(self, pair, delay):
        return self.settle("reject", pair, delay)

    @rule(target=settled, pair=consumes(held), until=TIMES.filter(bool), state=STATES)
    def defer(self, pair, until, state):
        return self.settle("defer", pair, until, *state)

    @rule(target=settled, pair=consumes(held))
    def raise_in_a_block(self, pair):
        envelope, delivery = pair
        with suppress(Boom), envelope:
            boom()
        assert envelope.answer == self.reference.reject(delivery, errors=1)
        return pair

    @rule(pair=settled, verb=st.sampled_from(["acknowledge", "reject", "release"]))
    def settle_again(self, pair, verb):
        self.settle(verb, pair)

    @rule(pair=held | settled, seconds=st.sampled_from([1, 60, 90]))
    def extend(self, pair, seconds):
        self.settle("extend", pair, timedelta(seconds=seconds))

    def settle(self, verb, pair, *arguments):
        envelope, delivery = pair
        assert getattr(envelope, verb)(*arguments) == getattr(self.reference, verb)(delivery, *arguments)
        return pair

    @rule(batch=consumes(batches))
    def acknowledge_a_batch(self, batch):
        envelopes, pairs = batch
        assert envelopes.acknowledge() == [self.reference.acknowledge(delivery) for _, delivery in pairs]

    @rule(batch=consumes(batches), delay=DELAYS)
    def reject_a_batch(self, batch, delay):
        envelopes, pairs = batch
        assert envelopes.reject(delay) == [self.reference.reject(delivery, delay) for _, delivery in pairs]

    # Looking and dropping

    @rule(target=readings, key=st.sampled_from(NAMES))
    def read(self, key):
        reading, expected = self.queue.read(key), self.reference.read(key)
        if reading is None or expected is None:
            assert reading is expected
            return multiple()
        r, e = reading, expected
        assert (r.key, r.payload, r.state, r.attempts, r.scheduled_at) == (e.key, e.payload, e.state, e.attempt, e.due)
        self.is_known(reading.message_id, expected.message)
        return reading, expected

    @rule(pair=consumes(readings))
    def acknowledge_a_reading(self, pair):
        reading, expected = pair
        assert reading.acknowledge() == self.reference.acknowledge_reading(expected)

    @rule(key=st.sampled_from(NAMES))
    def drop_message(self, key):
        assert self.queue.drop_message(key) == self.reference.drop(key)

    @rule()
    def drop_all_messages(self):
        assert self.queue.drop_all_messages(CONFIRMATION) == self.reference.drop_all()

    # Time

    @rule(seconds=st.sampled_from([0.001, 5, 60, 61]))
    def pass_time(self, seconds):
        self.reference.now += timedelta(seconds=seconds)

    @precondition(lambda self: self.reference.edges())
    @rule(before=st.booleans())
    def pass_time_until_something_falls_due_or_a_lease_ends(self, before):
        self.reference.now = self.reference.edges()[0] - (MICROSECOND if before else timedelta(0))

    @precondition(lambda self: self.reference.live)
    @rule()
    def wait_for_everything_and_consume_it(self):
        self.reference.now = max([self.reference.now, *self.reference.edges()])
        while pairs := self.delivered(self.queue.try_poll_many(2).envelopes, self.reference.poll(2)):
            for pair in pairs:
                self.acknowledge(pair)
        assert not Message.objects.exists()

    # What holds at all times

    @invariant()
    def what_waits_is_the_same_in_the_same_order(self):
        waiting = [message.payload for message in self.reference.waiting()]
        assert list(self.queue.browse()) == waiting
        assert self.queue.count() == len(waiting)

    @invariant()
    def the_same_keys_are_contained(self):
        contained = {key for key in NAMES if self.queue.contains_message(key)}
        assert contained == {message.key for message in self.reference.live} - {None}

    @invariant()
    def the_history_is_the_same_and_nothing_is_lost(self):
        rows = list(self.queue.history().values_list("id", *Ended._fields))
        ended = [Ended(key, json.loads(payload), *fields, _count(errors)) for _, key, payload, *fields, errors in rows]
        assert Counter(ended) == Counter(self.reference.ended)

        ids = [*Message.objects.values_list("id", flat=True), *(row[0] for row in rows if row[3] != Outcome.SUPERSEDED)]
        assert len(set(ids)) == len(ids) == self.reference.created


def _type(attempt):
    return "first_delivery" if attempt == 1 else "redelivery"


def _count(errors):
    return len(json.loads(errors)) if errors else 0


def test_whatever_is_done_with_a_queue_it_does_what_the_reference_does(store):
    run_state_machine_as_test(QueueMachine, settings=SETTINGS)
