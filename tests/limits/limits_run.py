"""A run of the model of limits beside a store.

`Run` does to both what `OPERATIONS` names, one after another, and compares: no more are held, start or are there than
each limit allows; what is due and not claimed waits for a limit that leaves no room; and what the store counts as
running is what is leased.
"""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from math import inf

from delayedq import limits
from delayedq.limits.channels import Channels
from delayedq.limits.continuing import Chains
from delayedq.limits.places import Places
from delayedq.limits.places_held import held_key
from delayedq.limits.requests import AS_BEFORE, ChannelRequest, Rules
from delayedq.limits.rules import Rate
from delayedq.models import Channel, ChannelGroup, ChannelMessage, ChannelNotice, ChannelSize, LimitState, Message
from delayedq.store import operator_store, store_for
from delayedq.store.claim_tokens import new_token
from delayedq.store.operator import Move, Seen
from tests.limits.limits_model import KINDS, QUEUES, Model
from tests.limits.limits_offers import Offers
from tests.router import ChosenDatabase
from tests.store.given import LEASE, at, fail, put_back, retry, succeed

CHANNELS = ["a", "b", "c"]
SECONDS = LEASE.total_seconds()
STEP = 0.25
#: What is set live, of a channel or of a scope.
LIVE = [{"concurrency": 1}, {"concurrency": 5}, {"rate": Rate(1, LEASE / 20, 2)}, {"concurrency": 2, "size": 6}, {}]
LIVE += [{"rate": Rate(2, LEASE / 12, window=True)}, {"weight": 3}, {"share": 3}]
#: These leave the others as they are.
TURNS = {"weight", "share"}
#: Seconds until a message is tried again, if not at once.
LATER = 4.0
later = partial(retry, delay=LATER)
#: What may happen, and with which values.
OPERATIONS = {
    "offer": {
        "channel": CHANNELS,
        "kind": KINDS,
        "queue": [*QUEUES, "mail"],
        "number": [1, 2, 3, 4, 5, 6],
        "delay": [0.0, -5.0, 1.0, 9.0],
    },
    "pass_time": {"steps": [1, 2, 4, 12, 40, 241]},
    "claim": {"limit": [1, 2, 5, 100]},
    "claim_all": {},
    "end": {"which": range(50), "end": [succeed, fail, retry, later, put_back]},
    "end_and_claim": {"which": range(50), "limit": [1, 2, 5]},
    "elsewhere": {"which": range(50), "how": ["renew", "renew", "release", "drop"]},
    "replace": {"which": range(50), "delay": [0.0, 3.0], "channel": ["", "", *CHANNELS], "queue": ["", "", *QUEUES]},
    "stop": {"which": range(50)},
    "unschedule": {"which": range(50)},
    "orphan": {"which": range(50), "how": ["renew", "end", "give back"]},
    "cancel": {"which": range(50)},
    "move": {"which": range(50), "queue": QUEUES, "delay": [0.0, 2.0]},
    "change": {"kind": KINDS, "channel": ["", *CHANNELS], "terms": LIVE},
    "toggle": {"what": ["pause", "resume", "clear"], "kind": [*KINDS, "mail"], "channel": ["", *CHANNELS]},
}


class Run(Offers):
    """What happens, done to the model and to the store."""

    def __init__(self, names):
        self.model, self.now, self.number, self.moved_at = Model(names), 0.0, 0, -9.0
        self.is_moved = False
        self.store, self.chains = store_for(ChosenDatabase.alias), Chains(longest=inf)

    def close(self):
        for model in (Message, Channel, ChannelGroup, ChannelMessage, ChannelNotice, ChannelSize, LimitState):
            model.objects.all().delete()

    @property
    def here(self):
        return self.store.at(at(self.now))

    def rules(self, queue, kind):
        scopes = ("the-api", kind, queue)
        return Rules(tuple((scope, self.model.defined(scope)) for scope in scopes), self.model.defined(""))

    def _chosen(self, which, *, held):
        found = [(id_, one) for id_, one in self.model.messages.items() if (one.claimed is not None) == held]
        return found[which % len(found)] if found else (None, None)

    # Time and claims

    def pass_time(self, steps):
        self.now += steps * STEP

    def claim(self, limit):
        answer = Channels.of(self.here).claim(self.rules, limit, LEASE, "first")
        self._took(answer, limit)
        return answer.due_in

    def _took(self, answer, limit):
        """No more than the limits allow; and who had less than its share was not passed over."""
        if self.is_moved:
            self.moved_at, self.is_moved = self.now, False
        assert len(answer.claimed) <= limit
        short = self.model.short(self.now)
        for one in answer.claimed:
            self._take(one)
        left = short & self.model.short(self.now)
        if len(answer.claimed) < limit:  # nobody took the place that a cancelled message left
            left -= self.model.startable(self.now)
        left = {home[:2] for home in left}
        for one in (self.model.messages[one.id] for one in answer.claimed):
            _, limit, _ = next(self.model.scopes(one))  # who has more than its share leaves nobody short
            assert one.home[:2] not in left or self.model.held(one.home, self.now) <= (limit.share or 0)

    def _take(self, claimed):
        known, now = self.model.messages[claimed.id], self.now
        assert known.due <= now
        assert not known.holds(now)
        assert self.model.may_start(known, now), (known, [*self.model.scopes(known)])
        for scope, limit, _ in self.model.scopes(known):
            if limit.rate is not None and (limit.rate.retries or claimed.attempt <= 1):
                self.model.bucket(scope, limit.rate, now).take(limit.rate, now)
        known.held_until, known.claimed, known.is_replaced = now + SECONDS, claimed, False
        known.blocks = known.may_block = True

    def claim_all(self):
        """What is left waits for a limit."""
        for _ in range(50):
            if self.claim(100) != 0.0:
                break
        for one in self.model.messages.values():
            if one.due <= self.now and not one.holds(self.now) and self.now >= self._told_at(one):
                assert not self.model.must_start(one, self.now), one
        self.check_counts()

    def _told_at(self, one):
        return self.model.untold.get(one.home, 0.0)

    def check_counts(self):
        """What is counted as running is what is leased."""
        held = [one for one in self.model.messages.values() if one.holds(self.now)]
        taken = [one for one in held if not self.model.runs_elsewhere(one)]
        taken += [one for one in self.model.orphans if one.holds(self.now)]
        groups = {one.pk: (one.queue, one.kind) for one in ChannelGroup.objects.all()}
        running = Places(Channels.of(self.here), at(self.now)).running_by_group(groups)
        assert {groups[id_]: number for id_, number in running.items() if number} == {
            name: number for name in groups.values() if (number := sum((one.queue, one.kind) == name for one in taken))
        }
        assert Message.objects.filter(leased_until__gt=at(self.now)).count() == len(held)

    # Ends, and what others do

    def end(self, which, end):
        id_, one = self._chosen(which, held=True)
        if one is None:
            return
        self._ended(id_, one, self.here.settle([end(one.claimed, started=0.5, finished=0.0)], "first"), end)

    def end_and_claim(self, which, limit):
        """In one trip, as workers do: where the channel continues, its next message has the place."""
        id_, one = self._chosen(which, held=True)
        if one is None:
            return
        request = ChannelRequest(self.rules, limit, LEASE, "first", new_token(), chains=self.chains, may_continue=True)
        ends = [succeed(one.claimed, started=0.5, finished=0.0)]
        settled, answer = Channels.of(self.here).settle_and_claim(ends, "first", request)
        home = one.home
        self._ended(id_, one, settled, succeed)
        self._took(answer, limit)
        if answer.due_in == AS_BEFORE:
            assert [self.model.messages[claimed.id].home for claimed in answer.claimed] == [home]

    def _ended(self, id_, one, settled, end):
        assert not settled.busy
        if settled.lost:
            assert not one.holds(self.now)  # its place was given away
        else:
            assert settled.superseded == ({id_} if one.is_replaced else set())
            if end in {succeed, fail} and not one.is_replaced:
                del self.model.messages[id_]
            if end is later and not one.is_replaced:
                one.due = self.now + LATER
        self._over(one)

    def _over(self, one):
        self.model.ended(one.claimed)
        one.held_until = one.claimed = None
        one.is_replaced = False

    def elsewhere(self, which, how):
        """What keepers do; and what nobody tells the channel."""
        id_, one = self._chosen(which, held=True)
        if one is None or (how == "release" and one.is_replaced):
            return
        if how == "renew":
            self._renew(id_, one)
            return
        if how == "release":
            assert not (self.here.release([(id_, one.claimed.token)]).lost and one.holds(self.now))
        elif any(orphan.claimed is one.claimed for orphan in self.model.orphans):
            return
        else:
            self.model.untold[one.home] = self.now + SECONDS
            Message.objects.filter(pk=id_).delete()
            del self.model.messages[id_]
        one.held_until = one.claimed = None

    def _renew(self, id_, one):
        """Also what ran out: it is lost if its place was given away, else it has it again."""
        if self.here.renew([(id_, one.claimed.token)], LEASE).lost:
            assert not one.holds(self.now)
            self._over(one)
            return
        late, one.held_until = not one.holds(self.now), self.now + SECONDS
        self.model.renewed(one.claimed, one.held_until)
        self._check_late(one, late=late)

    def _check_late(self, one, *, late):
        """What was renewed after it ran out has room: nothing has started in its place."""
        if late and not self.model.live and self.moved_at < 0:
            for scope, limit, _ in self.model.scopes(one):
                assert limit.concurrency is None or self.model.held(scope, self.now) <= limit.concurrency

    def stop(self, which):
        id_, one = self._chosen(which, held=True)
        if one is not None and one.holds(self.now):
            row = Message.objects.get(pk=id_)
            seen = Seen._make(getattr(row, name) for name in Seen._fields)
            assert operator_store(self.store.alias).at(at(self.now)).stop([seen]) == {id_}
            self._taken_away(id_, one)

    def unschedule(self, which):
        ids = [*self.model.messages]
        for id_ in ids[which % len(ids) :][:1] if ids else []:
            one, key = self.model.messages[id_], Message.objects.values_list("key", flat=True).get(pk=id_)
            assert self.here.unschedule(one.kind, key)
            self._taken_away(id_, one)

    def _taken_away(self, id_, one):
        """An attempt that runs keeps its place where it started."""
        del self.model.messages[id_]
        known = [orphan for orphan in self.model.orphans if orphan.claimed is one.claimed]
        if one.holds(self.now) and not known:
            self.model.orphaned(one)

    def orphan(self, which, how):
        """What the worker and its keeper do about an attempt whose message was taken from it."""
        alive = {id(one.claimed) for one in self.model.messages.values()}
        orphans = [one for one in self.model.orphans if id(one.claimed) not in alive]
        if not orphans:
            return
        one = orphans[which % len(orphans)]
        id_, token = one.claimed.id, one.claimed.token
        if how == "renew":
            assert self.here.renew([(id_, token)], LEASE).lost == {(id_, token)}
            late = not one.holds(self.now)
            kept = ChannelMessage.objects.filter(message_id=held_key(id_, token)).exists()
            assert kept or late  # its place was given away
            if kept:
                self.model.renewed(one.claimed, self.now + SECONDS)
                self._check_late(one, late=late)
            return
        end = succeed if how == "end" else put_back
        assert self.here.settle([end(one.claimed, started=0.5, finished=0.0)], "first").lost == {id_}
        self.model.ended(one.claimed)

    def _seen(self, which):
        id_, one = self._chosen(which, held=False)
        row = Message.objects.filter(pk=id_).first()
        return id_, one, row and Seen._make(getattr(row, name) for name in Seen._fields)

    def cancel(self, which):
        id_, _, seen = self._seen(which)
        if seen is not None:
            assert operator_store(self.store.alias).at(at(self.now)).cancel([seen]) == {id_}
            del self.model.messages[id_]

    def move(self, which, queue, delay):
        id_, one, seen = self._seen(which)
        if seen is not None:
            due = self.now + delay
            moved = operator_store(self.store.alias).at(at(self.now)).move([Move(seen, at(due), queue, seen.priority)])
            if moved == {id_}:
                self.is_moved |= one.queue != queue
                one.queue, one.due, self.moved_at, one.blocks = queue, due, self.now, False

    # Live

    def change(self, kind, channel, terms):
        if not channel and terms.keys() & TURNS:
            return
        limits.set(kind, channel=channel, store=self.here, **terms)
        self._changed((kind, channel))
        self._settle_bucket(kind, channel)
        whole = {} if terms.keys() & TURNS else dict.fromkeys(("concurrency", "rate", "size"))
        self.model.live[kind, channel] = self.model.live.get((kind, channel), {}) | whole | terms

    def toggle(self, what, kind, channel):
        name = (kind, channel)
        was = name in self.model.paused if what == "resume" else name not in self.model.paused
        if what == "clear":
            was = name in {*self.model.paused, *self.model.live}
        assert getattr(limits, what)(kind, channel=channel, store=self.here) == was
        self._changed(name)
        if what == "pause":
            self.model.paused.add(name)
        elif what == "clear":
            self.model.live.pop(name, None)

    def _changed(self, name):
        """A channel without a rate may have forgotten its tokens."""
        self.model.paused.discard(name)
        for scope, tokens in self.model.buckets.items():
            if name[1] and isinstance(scope, tuple) and scope[2] == name[1]:
                tokens.most, tokens.known = Fraction(10**6), len(tokens.starts)

    def _settle_bucket(self, scope, channel):
        """At a change, what a bucket has gained so far may be that of the rate before it, or of the one that comes."""
        rate, tokens = self.model.holding((scope, "")).rate, self.model.buckets.get(scope)
        if rate is not None and tokens is not None and not channel:
            gone = Fraction(self.now) - tokens.at
            tokens.most, tokens.at = tokens.most + gone * 10**6, Fraction(self.now)
            tokens.known = len(tokens.starts)
