"""Schedules of flows: the end of the last member releases the next step exactly once, and no flow is stuck."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

from delayedq import chain, group
from delayedq.flows.result import cancel_flow
from delayedq.flows.sweeping import sweep
from delayedq.models import FinishedMessage, Flow, FlowMember, FlowStep, Message
from delayedq.store.protocol import ClaimRequest, Lane
from tests.app import tasks
from tests.faults.met import sometimes
from tests.faults.roles import Acting, transition
from tests.faults.scenarios import Operation
from tests.store.given import LEASE

TABLES = (Message, FinishedMessage, Flow, FlowStep, FlowMember)
LANE = Lane("default", 0)
#: Claims and sweeps until all has ended.
ROUNDS = 20


class FlowActor(Acting):
    def enqueue(self, shape):
        one = tasks.nothing.si()
        flow = {
            "group": group(one, one).then(one),
            "chain": chain(one, one, one),
            "groups": group(one, one).then(group(one, one)).then(one),
        }[shape]
        self.world.flow, self.world.sizes = flow.enqueue().id, SIZES[shape]

    def claim(self, limit):
        request = ClaimRequest([LANE], limit, LEASE, self.worker, self.world.token())
        with self._call("claim", "any") as (record,):
            claimed = self.store.claim(request)
            record.answer = [one.id for one in claimed]
        if not record.is_unknown:
            self.held += claimed

    def end(self, how):
        if self.held:
            claimed = self.held.pop(0)
            with self._call(how, "any", claimed=claimed) as (record,):
                record.answer = self._told(claimed, self.store.settle([transition(how, claimed)], self.worker))
            if record.answer == "busy":
                self.held.append(claimed)

    def end_and_claim(self, how):
        if self.held:
            claimed = self.held.pop(0)
            request = ClaimRequest([LANE], 1, LEASE, self.worker, self.world.token())
            with self._call(how, "any", claimed=claimed) as (record,):
                answer = self.store.settle_and_claim([transition(how, claimed)], request)
                record.answer = self._told(claimed, answer.settled), [one.id for one in answer.claimed]
            if not record.is_unknown:
                self.held += [claimed] if record.answer[0] == "busy" else []
                self.held += answer.claimed

    def cancel(self):
        with self._call("cancel", "any") as (record,):
            record.answer = cancel_flow(self.store, self.world.flow)

    def sweep(self):
        with self._call("sweep", "any"):
            sweep(self.store)


#: How many messages each step has.
SIZES = {"group": [2, 1], "chain": [1, 1, 1], "groups": [2, 2, 1]}


class FlowPlay:
    actor = FlowActor

    def __init__(self, world):
        self._world = world
        for table in TABLES:
            table.objects.all().delete()

    def programs(self, draws):
        before = [Operation("enqueue", {"shape": draws.choice(sorted(SIZES))})]
        last = draws.choice([self._worker, self._worker, self._sweeper, self._canceller])
        roles = [self._worker, self._worker, last]
        return before, [role(draws) for role in roles[: draws.choice([2, 3, 3])]]

    def _worker(self, draws):
        steps = [Operation("claim", {"limit": draws.choice([1, 1, 2])})]
        for _ in range(draws.randint(1, 3)):
            how = draws.choice(["finish", "finish", "finish", "fail", "retry"])
            steps.append(Operation(draws.choice(["end", "end_and_claim"]), {"how": how}))
        return steps

    def _sweeper(self, draws):
        return [Operation("sweep", {}) for _ in range(draws.randint(1, 2))]

    def _canceller(self, draws):
        return [Operation("cancel", {})]

    def end(self, actor):
        for _ in range(ROUNDS):
            self._world.clock.pass_time(timedelta(seconds=61))
            actor.claim(100)
            for _ in list(actor.held):
                actor.end("finish")
            actor.sweep()
            if not Flow.objects.filter(ended_at=None).exists() and not Message.objects.exists():
                break

    def wrong(self):
        """A step has as many messages as it has calls; and the flow ends as its steps did."""
        steps = FlowStep.objects.filter(flow_id=self._world.flow).order_by("id")
        steps = [one for one in steps if one.kind]
        states, outcome = [str(one.state) for one in steps], Flow.objects.get(pk=self._world.flow).outcome
        ended = FinishedMessage.objects.exclude(outcome="superseded").count()
        most = sum(self._world.sizes)
        wrong = [f"{ended} messages ended of at most {most}"] if ended > most else []
        wrong += [f"{Message.objects.count()} messages are left"] if Message.objects.exists() else []
        wrong += (
            [f"the flow is {outcome or 'running'}, its steps {states}"]
            if not self._is_explained(states, outcome)
            else []
        )
        sometimes("a flow failed", outcome == "failed")
        sometimes("a flow succeeded", outcome == "succeeded")
        sometimes("a flow was cancelled", outcome == "cancelled")
        if outcome == "succeeded" and ended != most:
            wrong.append(f"the flow has succeeded with {ended} of {most} messages")
        return wrong

    def _is_explained(self, states, outcome):
        ways = Counter(FinishedMessage.objects.values_list("outcome", flat=True))
        if outcome == "succeeded":
            return set(states) == {"succeeded"} and not ways["failed"]
        if outcome == "failed":
            return "failed" in states and bool(ways["failed"])
        return outcome == "cancelled"
