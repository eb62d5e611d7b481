"""A queue as its documentation tells it: pure, in memory, for one thread, at a time that the test sets.

It shares nothing with delayedq. A lease is no token but the delivery that a message points at; a message that ends
becomes a line in a list. Every verb answers in the words of the queue.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from datetime import timedelta

KEPT = object()  #: The state of a message that is deferred without another.


@dataclass(eq=False)
class Message:
    key: str | None
    payload: object
    due: object
    rank: tuple  #: Of those that are due together, the lowest goes first.
    asked_for: object = None
    generation: int = 0
    attempts: int = 0
    errors: int = 0
    state: object = None
    is_saved: bool = False  #: Also None is a state once it was saved.
    holder: Delivery | None = None
    held_until: object = None
    is_live: bool = True

    def __post_init__(self):
        self.asked_for = self.due

    def moves(self, policy, due):
        """Whether an offer moves it. The time of one that runs is that of its attempt, and not of the next run."""
        runs = self.holder is not None and self.attempts > 0
        return {
            "replace": True,
            "preserve_time": runs,
            "earliest": runs or due < self.due,
            "latest": runs or due > self.due,
        }[policy]

    def is_same(self, payload, due):
        """`due` None: at its time."""
        return (self.payload, self.asked_for, self.is_saved) == (payload, due or self.asked_for, False)

    def replace(self, payload, due):
        """It starts over, at its time if `due` is None; the lease stays as it is."""
        self.payload = payload
        if due is not None:
            self.due = self.asked_for = due
        self.attempts, self.errors, self.state, self.is_saved = 0, 0, None, False
        self.generation += 1


@dataclass(eq=False)
class Delivery:
    """A message as it was handed out."""

    message: Message
    answer: str | None = None

    def __post_init__(self):
        message = self.message
        self.key, self.payload, self.state, self.due = message.key, message.payload, message.state, message.due
        self.attempt, self.errors, self.generation = message.attempts, message.errors, message.generation


class Ended(NamedTuple):
    key: str | None
    payload: object
    outcome: str
    attempts: int
    errors: int


@dataclass
class Reference:
    now: object
    lease: timedelta
    max_attempts: int
    live: list[Message] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)
    created: int = 0
    turns: count = field(default_factory=count)

    # Ways in

    def offer(self, key, payload, due, *, can_update=True, policy="replace", place=()):
        """`policy`: one of those of `OnConflict` that replace."""
        due = self.now if due is None else due
        message = self.find(key)
        if message is None:
            self.live.append(Message(key, payload, due, (next(self.turns), *place)))
            self.created += 1
            return "created"
        moved_to = due if message.moves(policy, due) else None
        if not can_update or message.is_same(payload, moved_to):
            return "ignored"
        message.replace(payload, moved_to)
        return "updated"

    def offer_batch(self, batch):
        """One after the other. If only some may update, they are stored by key, the unkeyed ones first."""
        mixed = len({can_update for *_, can_update in batch}) > 1
        turn = next(self.turns)
        self.turns, turns = iter([turn] * len(batch)), self.turns
        outcomes = [
            self.offer(key, payload, due, can_update=can_update, place=(key or "" if mixed else "", place))
            for place, (key, payload, due, can_update) in enumerate(batch)
        ]
        self.turns = turns
        return outcomes

    # Ways out

    def poll(self, limit):
        while claimed := self.due()[: max(limit, 0)]:
            if deliveries := [delivery for message in claimed if (delivery := self._deliver(message))]:
                return deliveries
        return []

    def _deliver(self, message):
        """None if it was delivered as often as it may be."""
        if message.attempts == self.max_attempts:
            message.errors += 1
            return self._end(message, "failed")
        message.attempts += 1
        message.holder, message.held_until = Delivery(message), self.now + self.lease
        return message.holder

    def acknowledge(self, delivery):
        return self._settle(delivery, lambda message: self._end(message, "succeeded"))

    def fail(self, delivery, reason):
        return self._settle(delivery, lambda message: self._end(message, "failed"), errors=1)

    def reject(self, delivery, delay=None, *, errors=0):
        def give_back(message):
            if message.attempts == self.max_attempts:
                self._end(message, "failed")
            elif delay is not None:
                message.due = self.now + delay

        return self._settle(delivery, give_back, errors=1 if delivery.attempt == self.max_attempts else errors)

    def release(self, delivery):
        def take_back_the_attempt(message):
            message.attempts -= 1

        return self._settle(delivery, take_back_the_attempt, was_attempted=False)

    def defer(self, delivery, until, state=KEPT):
        def put_off(message):
            message.due = until
            if state is not KEPT:
                message.state, message.is_saved = state, True

        return self._settle(delivery, put_off)

    def discard(self, delivery):
        return self._settle(delivery, self._erase, was_attempted=False)

    def put_back(self, delivery):
        """What the lease keeper does with a message whose worker has died before it started it."""
        message = delivery.message
        if message.holder is not delivery:
            return False
        message.holder, message.attempts = None, max(message.attempts - 1, 0)
        return True

    def extend(self, delivery, lease):
        message = delivery.message
        if message.holder is not delivery:
            return False
        message.held_until = max(message.held_until, self.now + lease)
        return True

    def _settle(self, delivery, act, *, errors=0, was_attempted=True):
        if delivery.answer is None:
            delivery.answer = self._settle_first(delivery, act, errors, was_attempted)
        return delivery.answer

    def _settle_first(self, delivery, act, errors, was_attempted):
        message = delivery.message
        if message.holder is not delivery:
            return "lease_lost"
        message.holder = None
        if message.generation == delivery.generation:
            message.errors += errors
            act(message)
            return "acknowledged"
        if was_attempted:
            attempts, errors = delivery.attempt, delivery.errors + errors
            self.ended.append(Ended(delivery.key, delivery.payload, "superseded", attempts, errors))
        return "superseded"

    def _end(self, message, outcome):
        self._erase(message)
        self.ended.append(Ended(message.key, message.payload, outcome, message.attempts, message.errors))

    def _erase(self, message):
        self.live.remove(message)
        message.is_live, message.holder = False, None

    # Looking and dropping

    def find(self, key):
        return next((message for message in self.live if key is not None and message.key == key), None)

    def waiting(self):
        free = [message for message in self.live if message.holder is None or message.held_until <= self.now]
        return sorted(free, key=lambda message: (message.due, message.rank))

    def due(self):
        return [message for message in self.waiting() if message.due <= self.now]

    def read(self, key):
        message = self.find(key)
        return None if message is None else Delivery(message)

    def acknowledge_reading(self, reading):
        if reading.answer is None:
            reading.answer = self._acknowledge_unheld(reading)
        return reading.answer

    def _acknowledge_unheld(self, reading):
        message = reading.message
        if message.is_live and message.generation != reading.generation:
            return "superseded"
        if message not in self.waiting():
            return "lease_lost"
        self._end(message, "succeeded")
        return "acknowledged"

    def drop(self, key):
        message = self.find(key)
        if message is not None:
            self._end(message, "cancelled")
        return message is not None

    def drop_all(self):
        dropped = list(self.live)
        for message in dropped:
            self._end(message, "cancelled")
        return len(dropped)

    # What operators do

    def move(self, key, due):
        """Only what waits."""
        message = self.find(key)
        if message not in self.waiting():
            return False
        message.due, message.holder = due, None
        return True

    def cancel(self, key):
        message = self.find(key)
        if message not in self.waiting():
            return False
        self._end(message, "cancelled")
        return True

    def revive(self, ended, message, due=None):
        """Only if no other has its key; `due` None: it goes on as it was."""
        if ended not in self.ended or self.find(ended.key) is not None:
            return False
        self.ended.remove(ended)
        message.is_live, message.generation, message.attempts = True, 0, ended.attempts
        if due is not None:
            message.due, message.asked_for, message.attempts, message.errors = due, due, 0, 0
        self.live.append(message)
        return True

    def edges(self):
        """The moments to come at which a message falls due or a lease ends."""
        moments = {message.due for message in self.live}
        moments |= {message.held_until for message in self.live if message.holder is not None}
        return sorted(moment for moment in moments if moment > self.now)
