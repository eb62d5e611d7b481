"""Schedules of limits: never do more attempts run than a limit allows, and nothing waits without one.

The model of `tests/limits` counts what certainly runs: from the answer of a claim until its end is asked for, its lease
is over, or the answer of a renewal says that it is.
"""

from __future__ import annotations

from datetime import timedelta
from math import inf

from delayedq.limits.channels import Channels
from delayedq.limits.continuing import Chains
from delayedq.limits.requests import AS_BEFORE, ChannelRequest, Rules
from delayedq.limits.rules import OnFull, Size
from delayedq.models import (
    Channel,
    ChannelGroup,
    ChannelMessage,
    ChannelNotice,
    ChannelSize,
    FinishedMessage,
    LimitState,
    Message,
)
from tests.faults.met import sometimes
from tests.faults.roles import Acting, transition
from tests.faults.scenarios import Operation
from tests.limits.channels import in_channel
from tests.limits.limits_model import KINDS, QUEUES, Known, Model
from tests.store.given import LEASE, NOW, succeed

TABLES = (Message, FinishedMessage, Channel, ChannelGroup, ChannelMessage, ChannelNotice, ChannelSize, LimitState)
SHARED = "the-api"
#: What may be limited, by the names of the model.
CHOICES = [
    ("channel concurrency",),
    ("shared concurrency",),
    ("task concurrency", "channel concurrency"),
    ("channel size", "queue concurrency"),
    ("channel size", "channel concurrency"),
]
QUEUE = QUEUES[0]
OFTEN = [KINDS[0], KINDS[0], KINDS[1]]
#: Claims until all is claimed: one may be in the way of the next.
ROUNDS = 60


class LimitActor(Acting):
    def __init__(self, client, world):
        super().__init__(client, world)
        self._chains = Chains(longest=inf)  # a seed is replayed at another pace

    def offer(self, channel, kind, key):
        message = in_channel(
            channel, key, kind=kind, queue=QUEUE, scheduled_at=NOW, max_attempts=99, sizes=self._sizes()
        )
        with self._call("offer", key, channel=channel) as (record,):
            record.answer = str(self.store.offer(message).outcome)
            sometimes("a limit refused a message", record.answer == "dropped")

    def _sizes(self):
        most = self.world.model.defined("").size
        return () if most is None else (Size("", most, OnFull.DROP),)

    def claim(self, limit):
        began, token = self.world.clock(), self.world.token()
        with self._call("claim", "any", token=token) as (record,):
            answer = Channels.of(self.store).claim(self.world.rules, limit, LEASE, self.worker, token)
            record.answer = [one.id for one in answer.claimed]
        if not record.is_unknown:
            for claimed in answer.claimed:
                self.world.runs(claimed, began)
            self.held += answer.claimed

    def end(self, how):
        if self.held:
            claimed = self.held.pop(0)
            self.world.ends(claimed)
            with self._call(how, claimed.key, claimed=claimed) as (record,):
                record.answer = self._told(claimed, self.store.settle([transition(how, claimed)], self.worker))
            if record.answer == "busy":
                self.held.append(claimed)

    def end_and_claim(self, limit):
        """In one trip, as workers do: the channel continues if it may."""
        if not self.held:
            return
        claimed, began, token = self.held.pop(0), self.world.clock(), self.world.token()
        request = ChannelRequest(
            self.world.rules, limit, LEASE, self.worker, token, chains=self._chains, may_continue=True
        )
        self.world.ends(claimed)
        calls = ("finish", claimed.key, {"claimed": claimed}), ("claim", "any", {"token": token})
        with self.records.call(self.client, *calls) as (record, claim):
            ends = [succeed(claimed, started=0.0, finished=0.0)]
            settled, answer = Channels.of(self.store).settle_and_claim(ends, self.worker, request)
            record.answer, claim.answer = self._told(claimed, settled), [one.id for one in answer.claimed]
        if record.answer == "busy":
            self.held.append(claimed)
        if not claim.is_unknown:
            sometimes("a channel continued", answer.due_in == AS_BEFORE)
            for one in answer.claimed:
                self.world.runs(one, began)
            self.held += answer.claimed

    def renew(self):
        if self.held:
            began, claimed = self.world.clock(), self.held[0]
            with self._call("renew", claimed.key, claimed=claimed) as (record,):
                record.answer = self._kept(self.store.renew([(claimed.id, claimed.token)], LEASE), claimed)
            if record.answer == "done":
                self.world.renewed(claimed, began)

    def drop(self, kind, key):
        """Its attempt, if one runs, has its place until it ends."""
        with self._call("drop", key, kind=kind) as (record,):
            record.answer = self.store.unschedule(kind, key)


class LimitPlay:
    actor = LimitActor

    def __init__(self, world):
        self._world, world.model = world, None
        world.rules, world.runs, world.ends, world.renewed = self._rules, self._runs, self._ends, self._renewed
        self._exceeded, self._channels = [], {}
        for table in TABLES:
            table.objects.all().delete()

    def programs(self, draws):
        self._world.model = Model(draws.choice(CHOICES))
        self._keys = iter(f"{number}" for number in range(100))
        before = [self._offer(draws) for _ in range(draws.randint(6, 9))]
        roles = [self._worker, self._worker, self._worker, self._producer]
        return before, [role(draws) for role in roles[: draws.choice([2, 3, 4])]]

    def _offer(self, draws):
        key, kind, channel = next(self._keys), draws.choice(OFTEN), draws.choice("aaab")
        self._channels[kind, key] = channel
        return Operation("offer", {"channel": channel, "kind": kind, "key": key})

    def _worker(self, draws):
        steps = []
        for _ in range(draws.randint(1, 2)):
            steps.append(Operation("claim", {"limit": draws.choice([2, 5])}))
            for _ in range(draws.randint(0, 2)):
                ends = ["finish", "retry", "give back"]
                match draws.choice(["renew", "end", "end", "end and claim", "end and claim"]):
                    case "renew":
                        steps.append(Operation("renew", {}))
                    case "end":
                        steps.append(Operation("end", {"how": draws.choice(ends)}))
                    case _:
                        steps.append(Operation("end_and_claim", {"limit": draws.choice([1, 5])}))
        return steps

    def _producer(self, draws):
        steps = [self._offer(draws) for _ in range(draws.randint(1, 2))]
        kind, key = draws.choice(sorted(self._channels))
        return [*steps, Operation("drop", {"kind": kind, "key": key})]

    # The model

    def _rules(self, queue, kind):
        scopes = (SHARED, kind, queue)
        return Rules(
            tuple((scope, self._world.model.defined(scope)) for scope in scopes), self._world.model.defined("")
        )

    @property
    def _now(self):
        return (self._world.clock() - NOW).total_seconds()

    def _until(self, began):
        return (began - NOW + LEASE).total_seconds()

    def _runs(self, claimed, began):
        model, channel = self._world.model, self._channels[claimed.kind, claimed.key]
        one = Known(claimed.kind, channel, claimed.queue, 0.0, self._until(began), claimed)
        model.messages[claimed.id] = one
        for scope, limit, _ in model.scopes(one):
            if limit.concurrency is not None and model.held(scope, self._now) > limit.concurrency:
                self._exceeded.append(f"{model.held(scope, self._now)} run in {scope} of at most {limit.concurrency}")

    def _ends(self, claimed):
        one = self._world.model.messages.get(claimed.id)
        if one is not None and one.claimed is claimed:
            one.held_until = None

    def _renewed(self, claimed, began):
        one = self._world.model.messages.get(claimed.id)
        if one is not None and one.claimed is claimed and one.held_until is not None:
            one.held_until = max(one.held_until, self._until(began))

    # The end

    def end(self, actor):
        """All that is left can be claimed once no lease holds."""
        for _ in range(ROUNDS):
            self._world.clock.pass_time(timedelta(seconds=61))
            waiting = Message.objects.count()
            actor.claim(100)
            sometimes("a limit left messages waiting", len(actor.held) < waiting)
            for _ in list(actor.held):
                actor.end("finish")
            if not waiting:
                break

    def wrong(self):
        known = {
            record.key for record in self._world.records.all if record.verb == "offer" and record.answer == "created"
        }
        unknown = {record.key for record in self._world.records.all if record.verb == "offer" and record.is_unknown}
        ended = list(FinishedMessage.objects.values_list("key", flat=True))
        wrong = [f"{key} waits though nothing runs" for key in Message.objects.values_list("key", flat=True)]
        wrong += [f"{key} ended {ended.count(key)} times" for key in known if ended.count(key) != 1]
        wrong += [f"{key} ended and was never offered" for key in set(ended) - known - unknown]
        return self._exceeded + wrong
