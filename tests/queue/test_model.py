"""Anything that one consumer after the other can do with a queue, against the reference; Hypothesis chooses what.

The sequences are the same in every run. DELAYEDQ_TEST_EXAMPLES=1000 tries 1000 others, at random.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from contextlib import suppress
from datetime import timedelta

import pytest
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

pytestmark = pytest.mark.slow

EXAMPLES = os.environ.get("DELAYEDQ_TEST_EXAMPLES")
SETTINGS = settings(
    max_examples=int(EXAMPLES or 25),
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
BATCHES = st.lists(st.tuples(KEYS, PAYLOADS, TIMES, st.booleans()), min_size=2, max_size=5)
DELAY = timedelta(seconds=5)
ACTS = [
    ("acknowledge",),
    ("release",),
    ("fail", "no such address"),
    ("reject",),
    ("reject", DELAY),
    ("defer", at(0)),
    ("defer", at(61)),
    ("defer", at(0), {"page": 7, "since": NOW}),
    ("defer", at(0), None),
    ("extend", timedelta(seconds=1)),
    ("extend", timedelta(seconds=90)),
]
ACTS_ON_BATCHES = [("acknowledge",), ("reject",), ("reject", DELAY)]


def has_keys(machine):
    return any(machine.reference.find(key) for key in NAMES)


class QueueMachine(RuleBasedStateMachine):
    #: Pairs of an envelope that was not settled yet and what the reference delivered.
    held = Bundle("held")
    batches = Bundle("batches")
    readings = Bundle("readings")

    def __init__(self):
        super().__init__()
        self.reference = Reference(NOW, LEASE, MOST)
        self.queue = DelayedQueue("contacts", clock=lambda: self.reference.now, lease=LEASE, max_attempts=MOST)
        self.by_id = {}

    def teardown(self):
        try:
            if sys.exception() is None:
                self.wait_for_everything_and_consume_it()
        finally:  # what is left would be found by the next example
            Message.objects.all().delete()
            FinishedMessage.objects.all().delete()

    def wait_for_everything_and_consume_it(self):
        self.reference.now = max([self.reference.now, *self.reference.edges()])
        while pairs := self.delivered(self.queue.try_poll_many(2).envelopes, self.reference.poll(2)):
            for pair in pairs:
                self.settle(pair, "acknowledge")
        assert not Message.objects.exists()
        self.the_history_is_the_same_and_nothing_is_lost()

    # Ways in

    @rule(key=KEYS, payload=PAYLOADS, when=TIMES, can_update=st.booleans())
    def offer(self, key, payload, when, can_update):
        offer = self.queue.offer_or_update if can_update else self.queue.offer_if_not_exists
        assert offer(key, payload, when) == self.reference.offer(key, payload, when, can_update=can_update)

    @precondition(has_keys)
    @rule(key=st.sampled_from(NAMES))
    def offer_the_same_again(self, key):
        if message := self.reference.find(key):
            self.offer(key, message.payload, message.asked_for, can_update=True)

    @initialize(target=held, messages=BATCHES)
    def begin(self, messages):
        """Start with a polled message: most examples leave out some rules, maybe those that poll."""
        self.offer_batch(messages)
        return self.poll_all()

    @rule(messages=BATCHES)
    def offer_batch(self, messages):
        replies = self.queue.offer_batch(BatchedMessage(place, *fields) for place, fields in enumerate(messages))
        assert [reply.input for reply in replies] == list(range(len(messages)))
        assert [reply.outcome for reply in replies] == self.reference.offer_batch(messages)

    # Ways out

    @precondition(lambda self: self.reference.due())
    @rule(target=held, limit=st.integers(1, 3))
    def poll(self, limit):
        if limit > 1:
            found = self.queue.try_poll_many(limit).envelopes
        else:
            found = [envelope for envelope in [self.queue.try_poll()] if envelope]
        return multiple(*self.delivered(found, self.reference.poll(limit)))

    def poll_all(self):
        return self.poll(max(2, len(self.reference.live)))

    @rule(target=batches, limit=st.integers(-1, 4))
    def poll_a_batch(self, limit):
        batch, expected = self.queue.try_poll_many(limit), self.reference.poll(limit)
        again = any(delivery.attempt > 1 for delivery in expected)
        assert batch.delivery_type == ("redelivery" if again else "first_delivery")
        return batch, self.delivered(batch.envelopes, expected)

    def delivered(self, envelopes, deliveries):
        """Both, in pairs, after a scan at whether they are the same."""
        assert [
            (e.key, e.payload, e.state, e.scheduled_at, e.attempt, e.delivery_type, e.polled_at) for e in envelopes
        ] == [(d.key, d.payload, d.state, d.due, d.attempt, _type(d.attempt), self.reference.now) for d in deliveries]
        pairs = list(zip(envelopes, deliveries, strict=True))
        for envelope, delivery in pairs:
            self.is_known(envelope.message_id, delivery.message)
        return pairs

    @precondition(lambda self: not self.reference.due())
    @rule()
    def poll_nothing(self):
        assert self.queue.try_poll() is None

    def is_known(self, id_, message):
        """Under one id there is one message, all its life."""
        assert self.by_id.setdefault(id_, message) is message

    # Settling, also after the lease was lost

    @rule(target=held, pair=consumes(held), acts=st.lists(st.sampled_from(ACTS), min_size=1, max_size=2))
    def let_go(self, pair, acts):
        """The first that ends the delivery decides, and the second is told so."""
        for verb, *arguments in acts:
            self.settle(pair, verb, *arguments)
        return self.still_held(pair)

    @rule(target=held, pair=consumes(held), verb=st.sampled_from(["acknowledge", "release", "reject", "extend"]))
    def let_go_late(self, pair, verb):
        """About when the lease ends; what was not polled by another consumer meanwhile is still theirs."""
        self.move(max(self.reference.now, pair[1].message.held_until))
        self.settle(pair, verb, *([DELAY] if verb == "extend" else []))
        return self.still_held(pair)

    @rule(target=held, pair=consumes(held), act=st.sampled_from(ACTS))
    def let_go_of_what_another_holds(self, pair, act):
        """Unless it was lost before, or has been delivered too often."""
        self.move(max(self.reference.now, pair[1].message.held_until))
        others = self.poll_all()
        return multiple(*others.values, *self.let_go(pair, [act]).values)

    @rule(target=held, pair=consumes(held), payload=PAYLOADS, when=TIMES, act=st.sampled_from(ACTS))
    def let_go_of_what_was_offered_anew(self, pair, payload, when, act):
        self.offer(pair[1].key, payload, when, can_update=True)
        return multiple(*self.let_go(pair, [act]).values, *self.poll_all().values)

    @rule(target=held, pair=consumes(held), state=st.sampled_from([{"page": 7, "since": NOW}, None]))
    def save_a_state_and_later_leave_it_as_it_is(self, pair, state):
        self.settle(pair, "defer", at(0), state)
        for polled in self.poll_all().values:
            self.settle(polled, "defer", at(0))
        return self.poll_all()

    @rule(pair=consumes(held))
    def raise_in_a_block(self, pair):
        envelope, delivery = pair
        with suppress(Boom), envelope:
            boom()
        assert envelope.answer == self.reference.reject(delivery, errors=1)

    def settle(self, pair, verb, *arguments):
        envelope, delivery = pair
        assert getattr(envelope, verb)(*arguments) == getattr(self.reference, verb)(delivery, *arguments)

    def still_held(self, pair):
        return multiple(*[pair] if pair[1].answer is None else [])

    @rule(batch=consumes(batches), act=st.sampled_from(ACTS_ON_BATCHES))
    def let_go_of_a_batch(self, batch, act):
        (verb, *arguments), (envelopes, pairs) = act, batch
        expected = [getattr(self.reference, verb)(delivery, *arguments) for _, delivery in pairs]
        assert getattr(envelopes, verb)(*arguments) == expected

    # Looking and dropping

    @precondition(has_keys)
    @rule(target=readings, key=st.sampled_from(NAMES))
    def read(self, key):
        reading, expected = self.queue.read(key), self.reference.read(key)
        assert self.queue.contains_message(key) == (expected is not None)
        return multiple(*[(reading, expected)] if expected else [])

    @rule(pair=consumes(readings))
    def acknowledge_a_reading(self, pair):
        reading, expected = pair
        assert reading.acknowledge() == self.reference.acknowledge_reading(expected)

    @precondition(lambda self: len(self.reference.live) > 2)
    @rule(key=st.sampled_from(NAMES))
    def drop_message(self, key):
        assert self.queue.drop_message(key) == self.reference.drop(key)

    @precondition(lambda self: len(self.reference.live) > 4)
    @rule()
    def drop_all_messages(self):
        assert self.queue.drop_all_messages(CONFIRMATION) == self.reference.drop_all()

    # Time

    @rule(seconds=st.sampled_from([0.001, 5, 61]))
    def pass_time(self, seconds):
        self.move(self.reference.now + timedelta(seconds=seconds))

    @precondition(lambda self: self.reference.edges())
    @rule(before=st.booleans())
    def pass_time_until_something_falls_due_or_a_lease_ends(self, before):
        self.move(self.reference.edges()[0] - (MICROSECOND if before else timedelta(0)))

    def move(self, moment):
        self.reference.now = moment

    # What holds at all times

    @invariant()
    def what_waits_is_the_same_in_the_same_order(self):
        waiting = [message.payload for message in self.reference.waiting()]
        assert list(self.queue.browse()) == waiting
        assert self.queue.count() == len(waiting)

    @invariant()
    def what_is_read_is_the_same(self):
        for key in NAMES:
            reading, expected = self.queue.read(key), self.reference.read(key)
            assert (reading is None) == (expected is None)
            if reading and expected:
                assert _read(reading) == (expected.payload, expected.state, expected.attempt, expected.due)
                self.is_known(reading.message_id, expected.message)

    @invariant()
    def the_history_is_the_same_and_nothing_is_lost(self):
        rows = list(self.queue.history().values_list("id", *Ended._fields))
        ended = [Ended(key, json.loads(payload), *fields, _count(errors)) for _, key, payload, *fields, errors in rows]
        assert Counter(ended) == Counter(self.reference.ended)

        ids = [*Message.objects.values_list("id", flat=True), *(row[0] for row in rows if row[3] != Outcome.SUPERSEDED)]
        assert len(set(ids)) == len(ids) == self.reference.created


def _read(reading):
    return reading.payload, reading.state, reading.attempts, reading.scheduled_at


def _type(attempt):
    return "first_delivery" if attempt == 1 else "redelivery"


def _count(errors):
    return len(json.loads(errors)) if errors else 0


def late(machine, pair):
    machine.move(pair[1].message.held_until)


def taken_over(machine, pair):
    late(machine, pair)
    machine.poll_all()


def offered_anew(machine, pair):
    machine.offer(pair[1].key, 2, at(0), can_update=True)


def offered_anew_and_late(machine, pair):
    offered_anew(machine, pair)
    late(machine, pair)


def offered_again(machine, pair):
    machine.offer_the_same_again(pair[1].key)


def dropped(machine, pair):
    machine.drop_message(pair[1].key)


@pytest.mark.parametrize("happened", [late, taken_over, offered_anew, offered_anew_and_late, offered_again, dropped])
def test_each_way_to_let_go_does_what_the_reference_does_whatever_happened_before(store, happened):
    for act in ACTS:
        machine = QueueMachine()
        (pair, *_) = machine.begin([("a", 0, at(-5), True), ("b", 1, at(0), True)]).values
        machine.settle(pair, "defer", at(-5), {"page": 7})
        (pair, *_) = machine.poll_all().values
        happened(machine, pair)
        machine.let_go(pair, [act])
        machine.pass_time(2)
        machine.what_waits_is_the_same_in_the_same_order()
        machine.what_is_read_is_the_same()
        machine.teardown()


def test_whatever_is_done_with_a_queue_it_does_what_the_reference_does(store):
    run_state_machine_as_test(QueueMachine, settings=SETTINGS)
