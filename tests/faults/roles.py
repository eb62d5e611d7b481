"""What a client does: produce, claim and end, edit. Each verb makes calls to the real store, and records them."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from datetime import timedelta

from django.db import Error, transaction

from delayedq.core.edits import Shift, Spread
from delayedq.models import FinishedMessage, Message
from delayedq.operations import dead_letters, edits
from delayedq.operations.browsing import Ticked
from delayedq.operations.undo import undo
from delayedq.store import operator_store
from delayedq.store.operator import Seen
from delayedq.store.protocol import ClaimRequest, Discard, Lane, OnConflict
from tests.faults.clients import Died
from tests.faults.met import sometimes
from tests.store.given import LEASE, fail, message, put_back, retry, succeed

#: How an attempt ends, and the transition that says so.
TRANSITIONS = {"finish": succeed, "fail": fail, "retry": retry, "give back": put_back, "discard": Discard}
DELAY = timedelta(seconds=5)


class Rollback(Exception):  # noqa: N818
    pass


class Acting:
    """One client of a schedule, with what it holds."""

    def __init__(self, client, world):
        self.client, self.world, self.store, self.records = client, world, world.store, world.records
        self.held, self.worker = [], f"w{client.number}"

    def do_all(self, operations):
        for operation in operations:
            self.do(operation)

    def do(self, operation):
        """A connection may also be lost before the call, when it looks what there is."""
        faults = self.client.faults
        try:
            getattr(self, operation.verb)(**operation.given)
        except (Error, Died):
            if self.client.faults == faults:
                raise
            self.client.reconnect()
        if self.client.is_lost:  # what is done after a commit may fail without a word
            self.client.reconnect()

    def _call(self, verb, *keys, **given):
        return self.records.call(self.client, *((verb, key, given) for key in keys))

    def _told(self, claimed, settled):
        """What a settlement says of an attempt: "done", or why not."""
        for what in ("lost", "superseded", "busy"):
            if claimed.id in getattr(settled, what):
                sometimes(f"an end was {what}")
                return what
        return "done"

    def _kept(self, answer, claimed):
        """The same of a renewal or a release."""
        pair = (claimed.id, claimed.token)
        told = "lost" if pair in answer.lost else "busy" if pair in answer.busy else "done"
        if told != "done":
            sometimes(f"a renewal was {told}")
        return told


class QueueActor(Acting):
    """A producer, a worker or an operator of a queue whose calls are judged key by key."""

    def __init__(self, client, world):
        super().__init__(client, world)
        self.edits = []

    # Producers

    def _message(self, key, payload, delay):
        due = self.world.clock() + timedelta(seconds=delay)
        return message(key, payload, kind=self.world.queue, queue=self.world.queue, scheduled_at=due)

    def offer(self, key, payload, delay, policy):
        offer = self._message(key, payload, delay)
        with self._call("offer", key, payload=payload, due=offer.scheduled_at, policy=policy) as (record,):
            record.answer = _outcome(self.store.offer(offer, OnConflict(policy)))

    def offer_both(self, keys, payload, delay, policy):
        """Several keys in one transaction."""
        offers = [self._message(key, payload, delay) for key in keys]
        with self._call("offer", *keys, payload=payload, due=offers[0].scheduled_at, policy=policy) as records:
            outcomes = self.store.offer_many(offers, OnConflict(policy))
            for record, offered in zip(records, outcomes, strict=True):
                record.answer = _outcome(offered)

    def offer_in_a_transaction(self, key, payload, delay, policy, commits):
        """Of the user's own, which ends some time later."""
        offer = self._message(key, payload, delay)
        given = {"payload": payload, "due": offer.scheduled_at, "policy": policy, "may_fail": True}
        with self._call("offer", key, **given) as (record,):
            record.is_undone = not commits
            with self._transaction(commits=commits):
                record.answer = _outcome(self.store.offer(offer, OnConflict(policy)))

    @contextmanager
    def _transaction(self, *, commits):
        """One of the user's own, in which something else is done before its end."""
        with suppress(Rollback), transaction.atomic(using=self.client.alias):
            yield
            for _ in range(2):
                self.client.pause("in a transaction")
            if not commits:
                raise Rollback

    def drop_in_a_transaction(self, key, commits):
        with self._call("drop", key, may_fail=True) as (record,):
            record.is_undone = not commits
            with self._transaction(commits=commits):
                record.answer = self.store.unschedule(self.world.queue, key)

    def drop(self, key):
        with self._call("drop", key) as (record,):
            record.answer = self.store.unschedule(self.world.queue, key)

    def drop_of_queue(self, key):
        with self._call("drop", key) as (record,):
            record.answer = bool(self.store.drop(self.world.queue, key))

    # Workers

    def claim(self, limit):
        token = self.world.token()
        request = ClaimRequest([Lane(self.world.queue, 0)], limit, LEASE, self.worker, token)
        with self._call("claim", *self.world.keys, token=token) as records:
            self._took(self.store.claim(request), records)

    def _took(self, claimed, records):
        """What was not claimed says nothing: others may have had it locked."""
        by_key = {one.key: one for one in claimed}
        for record in records:
            record.answer = by_key.get(record.key)
            record.is_undone = record.answer is None
        self.held += claimed

    def oversleep(self):
        """Nobody renews its leases."""
        if self.held:
            self.world.clock.pass_time(LEASE * 1.01)
            self.client.pause("oversleep")

    def end(self, how):
        if not self.held:
            return
        claimed = self.held.pop(0)
        given = {"delay": timedelta(0)} if how == "retry" else {}
        with self._call(how, claimed.key, claimed=claimed, **given) as (record,):
            settled = self.store.settle([transition(how, claimed)], self.worker)
            record.answer = self._settled(claimed, settled)

    def end_in_a_transaction(self, how, commits):
        """Of the task's own effects: exactly once."""
        if not self.held:
            return
        claimed = self.held.pop(0)
        given = {"delay": timedelta(0)} if how == "retry" else {}
        with self._call(how, claimed.key, claimed=claimed, may_fail=True, **given) as (record,):
            record.is_undone = not commits
            with self._transaction(commits=commits):
                record.answer = self._told(claimed, self.store.settle([transition(how, claimed)], self.worker))
        if record.is_undone or record.answer == "busy":
            self.held.append(claimed)

    def end_and_claim(self, how):
        """In one trip, as workers do."""
        if not self.held:
            return
        claimed, token = self.held.pop(0), self.world.token()
        request = ClaimRequest([Lane(self.world.queue, 0)], 1, LEASE, self.worker, token)
        given = {"delay": timedelta(0)} if how == "retry" else {}
        claims = [("claim", key, {"token": token}) for key in self.world.keys]
        with self.records.call(self.client, (how, claimed.key, {"claimed": claimed, **given}), *claims) as calls:
            record, *records = calls
            answer = self.store.settle_and_claim([transition(how, claimed)], request)
            record.answer = self._settled(claimed, answer.settled)
            self._took(answer.claimed, records)

    def _settled(self, claimed, settled):
        told = self._told(claimed, settled)
        if told == "busy":
            self.held.append(claimed)
        return told

    def renew(self):
        if self.held:
            claimed = self.held[0]
            with self._call("renew", claimed.key, claimed=claimed, lease=LEASE) as (record,):
                record.answer = self._kept(self.store.renew([(claimed.id, claimed.token)], LEASE), claimed)

    def release(self):
        if self.held:
            claimed = self.held[0]
            with self._call("release", claimed.key, claimed=claimed) as (record,):
                record.answer = self._kept(self.store.release([(claimed.id, claimed.token)]), claimed)
            if record.answer == "done":
                self.held.pop(0)

    # Operators

    def stop(self, key):
        seen = self._seen(key)
        if seen is not None:
            with self._call("stop", key, seen=seen) as (record,):
                record.answer = bool(operator_store(self.client.alias).stop([seen]))

    def _seen(self, key):
        rows = Message.objects.using(self.client.alias).filter(kind=self.world.queue, key=key)
        row = rows.values_list(*Seen._fields).first()
        return row and Seen._make(row)

    def reschedule(self, key):
        seen = self._seen(key)
        if seen is not None:
            by = Shift(DELAY)
            self._edit(
                "shift", edits.RESCHEDULE, key, seen.id, lambda *of: edits.reschedule(*of[:3], by, of[3]), by=DELAY
            )

    def cancel(self, key):
        seen = self._seen(key)
        if seen is not None:
            self._edit("cancel", edits.CANCEL, key, seen.id, edits.cancel)

    def _edit(self, verb, action, key, id_, change, **given):
        edit = None
        number = len(self.edits) + 100 * self.client.number
        with self._call(verb, key, edit=number, id_=id_, **given) as (record,):
            edit = edits.begin(self.store, action, "")
            progress = change(self.store, edit, Ticked([id_]), self.world.clock())
            record.answer = progress.changed == 1
            sometimes("an edit met a change", not record.answer)
        if record.answer and not record.is_unknown:
            self.edits.append((verb, edit, number, key, id_))

    def undo(self):
        if self.edits:
            verb, edit, number, key, id_ = self.edits.pop()
            with self._call(f"undo {verb}", key, edit=number, id_=id_) as (record,):
                record.answer = undo(self.store, edit).changed == 1

    def redrive(self, key):
        rows = FinishedMessage.objects.using(self.client.alias).filter(kind=self.world.queue, key=key, outcome="failed")
        id_ = rows.values_list("id", flat=True).first()
        if id_ is not None:
            due = self.world.clock()
            spread = Spread(due, timedelta(0))
            with self._call("redrive", key, edit=None, id_=id_, due=due) as (record,):
                edit = edits.begin(self.store, edits.RETRY, "")
                progress = dead_letters.redrive(self.store, edit, [id_], spread, self.world.clock())
                record.answer = progress.changed == 1


def _outcome(offered):
    return str(offered.outcome), offered.id


def transition(how, claimed):
    return TRANSITIONS[how](claimed, **({"delay": 0.0} if how == "retry" else {}))
