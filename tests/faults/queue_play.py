"""Schedules of a queue: the calls about each key are linearizable, and what is left is what they say."""

from __future__ import annotations

from collections import Counter

from delayedq.models import FinishedMessage, Message
from tests.faults.linearizable import is_linearizable
from tests.faults.one_key import Judge, Left
from tests.faults.roles import QueueActor
from tests.faults.scenarios import KEYS, queue_programs
from tests.store.given import LEASE

#: By then, all is due and no lease holds.
MUCH_LATER = 10 * LEASE
#: Claims until all is claimed.
ROUNDS = 20


class QueuePlay:
    actor = QueueActor
    programs = staticmethod(queue_programs)

    def __init__(self, world):
        self._world = world

    def end(self, actor):
        """Claim and end all that is left: nothing else happens, so nothing may be left out."""
        self._world.clock.pass_time(MUCH_LATER)
        records = self._world.records.all
        for _ in range(ROUNDS):
            known = len(records)
            actor.claim(len(KEYS))
            if not actor.held:
                break
            for _ in list(actor.held):
                actor.end("finish")
        for record in records[known:]:
            record.verb, record.is_undone, record.answer = "claim nothing", False, True

    def wrong(self):
        """What the answers do not explain."""
        wrong = [key for key in KEYS if not self._is_right(key)]
        return [f"no order of the calls explains key {key}, of which is left {self._left(key)}" for key in wrong]

    def _is_right(self, key):
        judge = Judge(self._world.records.of(key), self._world.records.all, LEASE, self._left(key))
        return is_linearizable(judge.records, judge.outcomes, judge.ends_well, judge.start)

    def _left(self, key):
        named = {"kind": self._world.queue, "key": key}
        ended = FinishedMessage.objects.filter(**named)
        row = (
            Message.objects.filter(**named)
            .values_list("id", "payload", "scheduled_at", "generation", "attempt")
            .first()
        )
        return Left(row, Counter(ended.values_list("payload", "outcome", "attempts")))
