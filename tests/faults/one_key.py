"""What the calls about one key may answer and leave behind, one after the other: by the reference of the queue."""

from __future__ import annotations

from collections import Counter
from itertools import count
from typing import NamedTuple

from tests.queue.reference import Reference

#: No message is tried so often.
ATTEMPTS = 10**6
#: What an end is called here, and how the reference does it.
ENDS = {
    "finish": lambda reference, one, _: reference.acknowledge(one),
    "fail": lambda reference, one, _: reference.fail(one, ""),
    "retry": lambda reference, one, delay: reference.reject(one, delay),
    "give back": lambda reference, one, _: reference.release(one),
    "discard": lambda reference, one, _: reference.discard(one),
}
#: They leave alone what changes while they look at it.
EDITS = {"stop", "shift", "undo shift", "cancel", "undo cancel", "redrive"}
ANSWERS = {"acknowledged": "done", "superseded": "superseded", "lease_lost": "lost"}


class Left(NamedTuple):
    """What the database has of a key: its live message, and how others have ended."""

    live: tuple | None
    ended: Counter


class OneKey:
    """The reference, and what calls know of its messages: their ids, the tokens of their leases, and past edits."""

    def __init__(self, lease):
        self.reference = Reference(None, lease, ATTEMPTS)
        self._deliveries, self._edits, self._graves, self._serial = {}, {}, {}, count()

    def does(self, record, moment):
        """Whether it answers what the record has, at this moment; what is unknown may have any answer."""
        self.reference.now = moment
        before, ends = self.reference.find(record.key), len(self.reference.ended)
        answer = getattr(self, f"_{record.verb.replace(' ', '_')}")(record, **record.given)
        if before is not None and not before.is_live and len(self.reference.ended) > ends:
            self._graves[before.number] = (self.reference.ended[-1], before)
        return record.is_unknown or answer is None or answer == record.answer

    def _live(self, record, id_):
        """The live message, if it is the one of this id, which may not be known yet."""
        message = self.reference.find(record.key)
        if message is None:
            return None
        if message.number is None:
            message.number = id_
        return message if message.number == id_ else None

    # Ways in and out

    def _offer(self, record, payload, due, policy, **_):
        can_update = policy != "keep"
        policy = policy if can_update else "replace"
        outcome = self.reference.offer(record.key, payload, due, can_update=can_update, policy=policy)
        message = self.reference.find(record.key)
        if outcome == "created":
            message.number, message.serial = None, next(self._serial)
        if record.is_unknown or (outcome, None) == record.answer == ("ignored", None):
            return None
        return outcome, record.answer[1] if self._live(record, record.answer[1]) else None

    def _drop(self, record, **_):
        return self.reference.drop(record.key)

    def _claim(self, record, token):
        delivery = next(iter(self.reference.poll(1)), None)
        if delivery is None:
            return False
        delivery.token = token
        self._deliveries[token] = delivery
        if record.is_unknown:
            return None
        known = delivery.payload, delivery.attempt, delivery.generation, delivery.due
        one = record.answer
        is_same = known == (one.payload, one.attempt, one.generation, one.scheduled_at)
        return one if self._live(record, one.id) and is_same else False

    def _claim_nothing(self, record, **_):
        return not self.reference.due()

    def _end(self, record, claimed, delay=None, **_):
        delivery = self._deliveries[claimed.token]
        delivery.answer = None
        return ANSWERS[ENDS[record.verb](self.reference, delivery, delay)]

    _finish = _fail = _retry = _give_back = _discard = _end

    def _renew(self, record, claimed, lease):
        return "done" if self.reference.extend(self._deliveries[claimed.token], lease) else "lost"

    def _release(self, record, claimed):
        return "done" if self.reference.put_back(self._deliveries[claimed.token]) else "lost"

    # Operators

    def _stop(self, record, seen):
        message = self._live(record, seen.id)
        if message is None or not self._is_as_seen(message, seen) or message in self.reference.waiting():
            return False
        return self.reference.drop(record.key)

    def _is_as_seen(self, message, seen):
        return (message.generation, message.attempts, message.due) == (seen.generation, seen.attempt, seen.scheduled_at)

    def _shift(self, record, edit, id_, by):
        message = self._live(record, id_)
        if message is None:
            return False
        before = message.due
        if not self.reference.move(record.key, before + by):
            return False
        self._edits[edit] = (message.serial, message.generation, message.attempts, message.due, before)
        return True

    def _undo_shift(self, record, edit, id_):
        message = self._live(record, id_)
        if message is None or edit not in self._edits:
            return False
        *as_left, before = self._edits[edit]
        if [message.serial, message.generation, message.attempts, message.due] != as_left:
            return False
        return self.reference.move(record.key, before)

    def _cancel(self, record, edit, id_):
        return self._live(record, id_) is not None and self.reference.cancel(record.key)

    def _undo_cancel(self, record, edit, id_):
        return self._revive(record, id_, "cancelled")

    def _redrive(self, record, edit, id_, due):
        return self._revive(record, id_, "failed", due)

    def _revive(self, record, id_, outcome, due=None):
        ended, message = self._graves.get(id_, (None, None))
        if ended is None or ended.outcome != outcome or not self.reference.revive(ended, message, due):
            return False
        del self._graves[id_]
        return True

    # What is left

    def left(self, key):
        message = self.reference.find(key)
        live = message and (message.number, message.payload, message.due, message.generation, message.attempts)
        return Left(live, Counter((one.payload, one.outcome, one.attempts) for one in self.reference.ended))

    @property
    def state(self):
        """Equal in equal states."""
        live = tuple(
            (m.serial, m.number, m.payload, m.due, m.asked_for, m.generation, m.attempts, *_lease(m))
            for m in self.reference.live
        )
        tokens = tuple(sorted((token, one.message.serial, one.generation) for token, one in self._deliveries.items()))
        edits = tuple(sorted((edit, *values) for edit, values in self._edits.items()))
        graves = frozenset((id_, ended, m.due, m.asked_for) for id_, (ended, m) in self._graves.items())
        return live, frozenset(Counter(self.reference.ended).items()), tokens, edits, graves


def _lease(message):
    return (message.holder.token, message.held_until) if message.holder else (None, None)


class State:
    """Where the calls of a path have led: each with its moment."""

    def __init__(self, path, value):
        self.path, self._value = path, value

    def __eq__(self, other):
        return self._value == other._value

    def __hash__(self):
        return hash(self._value)


class Judge:
    """The outcomes of calls about one key, for `linearizable`. `beside`: the calls about all keys."""

    def __init__(self, records, beside, lease, left):
        self.records, self._beside, self._lease, self._left = records, beside, lease, left
        self.start = State((), OneKey(lease).state)

    def outcomes(self, state, record):
        if record.is_undone or record.is_unknown or self._may_be_passed_over(record):
            yield state
        if record.is_undone or record.answer == "busy":
            return
        for moment in dict.fromkeys(record.moments):
            one = self._replayed(state.path)
            if one.does(record, moment):
                yield State((*state.path, (record, moment)), one.state)

    def _may_be_passed_over(self, record):
        """Who finds a row that another transaction has locked, or that changes, may leave it as it is and say so.

        MariaDB also locks the neighbours of a key.
        """
        told = record.answer == "busy" or (record.answer is False and record.verb in EDITS)
        return told and any(other is not record and other.overlaps(record) for other in self._beside)

    def _replayed(self, path):
        one = OneKey(self._lease)
        for record, moment in path:
            one.does(record, moment)
        return one

    def ends_well(self, state):
        one = self._replayed(state.path)
        return one.left(self.records[0].key) == self._left if self.records else True
