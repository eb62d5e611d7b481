"""Random graphs, random ends, retries, cancels, losses and replays, in virtual time: none is stuck, none runs twice.

Hypothesis chooses the graph and what happens. DELAYEDQ_TEST_EXAMPLES=100 tries as many others, at random.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from delayedq import Flow, group
from delayedq.exceptions import InvalidFlow
from delayedq.flows.result import retry_flow
from delayedq.flows.sweeping import sweep
from delayedq.models import FinishedMessage, FlowMember, FlowStep, Message
from delayedq.models import Flow as Row
from delayedq.results.cancelling import cancel
from delayedq.store import operator_store, store_for
from delayedq.store.operator import Revival
from delayedq.store.protocol import ClaimRequest, Finish, Lane, Offer
from tests.app import tasks
from tests.router import ChosenDatabase
from tests.store.given import fail, put_back, retry, succeed

EXAMPLES = os.environ.get("DELAYEDQ_TEST_EXAMPLES")
SETTINGS = settings(
    max_examples=int(EXAMPLES or 8),
    stateful_step_count=30,
    derandomize=EXAMPLES is None,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
LANE = Lane("default", 0)
LEASE = timedelta(seconds=60)
OPEN = {"waiting", "filling", "running"}
BAD = {"failed", "cancelled"}
GRAPH = st.lists(
    st.tuples(
        st.integers(0, 3),  # members; 0: a single call
        st.sets(st.integers(0, 7), max_size=3),  # which of the steps before come before
        st.sampled_from(["succeeded", "succeeded", "failed", "ended"]),
    ),
    min_size=2,
    max_size=8,
)


class FlowMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.store = store_for(ChosenDatabase.alias)
        self.now = self.store.now() + timedelta(seconds=1)
        self.held = []
        self.cancelled = self.lost = False
        #: How often these messages (ids) ended, succeeded, and were brought back after an end.
        self.ends, self.successes, self.revivals = Counter(), Counter(), Counter()
        self.released, self.replayed, self.ended_before = set(), set(), set()

    def teardown(self):
        try:
            if hasattr(self, "flow"):
                self.drain()
        finally:
            for model in (Message, FinishedMessage, FlowMember, FlowStep, Row):
                model.objects.all().delete()

    @property
    def here(self):
        return self.store.at(self.now)

    @initialize(
        graph=GRAPH,
        policy=st.sampled_from(["stop", "continue"]),
        deadline=st.sampled_from([None, timedelta(seconds=100), timedelta(seconds=200)]),
    )
    def begin(self, graph, policy, deadline):
        flow = Flow("model", policy=policy, deadline=deadline)
        for number, (size, before, when) in enumerate(graph):
            after = [str(one) for one in before if one < number]
            call = group(tasks.nothing.si() for _ in range(size)) if size else tasks.nothing.si()
            flow.add(str(number), call, after=after, when=when if after else "succeeded")
        self.policy, self.flow = policy, flow.enqueue()

    @rule(limit=st.integers(1, 4))
    def claim(self, limit):
        self.held += self.here.claim(ClaimRequest([LANE], limit, LEASE, "model"))

    @precondition(lambda self: self.held)
    @rule(
        data=st.data(),
        end=st.sampled_from([succeed, succeed, succeed, fail, retry, put_back]),
        number=st.integers(1, 3),
    )
    def end(self, data, end, number):
        chosen = data.draw(st.permutations(range(len(self.held))))[:number]
        ending = [self.held[one] for one in chosen]
        self.held = [one for place, one in enumerate(self.held) if place not in chosen]
        self.settle([end(one, started=0.5, finished=0.0) for one in ending])

    def settle(self, transitions):
        lost = self.here.settle(transitions, "model").lost
        for one in transitions:
            if isinstance(one, Finish) and one.claimed.id not in lost:
                self.ends[one.claimed.id] += 1
                self.successes[one.claimed.id] += one.outcome == "succeeded"
        late = self.here.settle(transitions, "model").lost
        assert late == {one.claimed.id for one in transitions}, "an end is accepted once"

    @rule(seconds=st.sampled_from([1, 61]))
    def pass_time(self, seconds):
        """After a lease, what is held may be claimed again: the older claim changes nothing any more."""
        self.now += timedelta(seconds=seconds)

    @rule()
    def sweep(self):
        sweep(self.here)

    @rule(data=st.data(), how=st.sampled_from(["cancel", "delete"]))
    def lose(self, data, how):
        """An operator, or somebody with SQL."""
        ids = list(Message.objects.order_by("id").values_list("id", flat=True))
        if ids:
            id_ = data.draw(st.sampled_from(ids))
            cancel(self.store, [id_]) if how == "cancel" else Message.objects.filter(id=id_).delete()
            self.lost = self.lost or how == "delete"

    @rule()
    def cancel_flow(self):
        self.cancelled = self.flow.cancel() or self.cancelled

    @rule()
    def retry_flow(self):
        before = self.flow.state
        living = ids_of(Message)
        try:
            retry_flow(self.here, self.flow.id)
        except InvalidFlow:
            assert before in {"running", "succeeded"} or self.lost
        else:
            assert before in BAD
            self.cancelled = False
            self.revivals.update((ids_of(Message) - living) & self.ended_before)

    @rule(data=st.data())
    def redrive(self, data):
        dead = list(FinishedMessage.objects.filter(outcome="failed").order_by("id").values_list("id", flat=True))
        if dead:
            revival = Revival(data.draw(st.sampled_from(dead)), self.now)
            self.revivals.update(operator_store(self.store.alias).revive([revival], "failed"))

    @rule()
    def replay(self):
        """A message as one of the history is stored again: it belongs to nothing."""
        if one := FinishedMessage.objects.order_by("id").first():
            self.replayed.add(self.here.offer(Offer("default", one.kind, one.payload, metadata=one.metadata)).id)

    @invariant()
    def each_step_has_its_messages_once(self):
        for step in FlowStep.objects.order_by("id"):
            members = FlowMember.objects.filter(step_id=step.id).count()
            was_released = step.released_at is not None
            assert members == (step.size if was_released else 0), step.name
            assert was_released or step.state in {"waiting", "skipped"}

    @invariant()
    def no_step_is_released_before_its_predecessors_have_ended(self):
        rows = {step.id & 0xFFFFF: step for step in FlowStep.objects.all()}
        released = {number for number, step in rows.items() if step.released_at is not None}
        for number in released - self.released:
            before = {rows[one].state for one in json.loads(rows[number].after)}
            assert not before & OPEN, f"step {number} was released too early"
            assert not is_late(Row.objects.get(), rows[number].released_at), f"step {number} was released too late"
        self.released = released

    @invariant()
    def each_message_is_that_of_one_member_and_ends_once(self):
        living, ended = ids_of(Message), ids_of(FinishedMessage)
        assert not living & ended, "a message that lives has ended"
        members = set(FlowMember.objects.values_list("message_id", flat=True))
        assert living <= members | self.replayed, "a step has messages that are not its members"
        assert max(self.successes.values(), default=0) <= 1, "a message succeeded twice"
        again = {id_ for id_, count in self.ends.items() if count > 1 + self.revivals[id_]}
        assert not again, "messages ended again, and nobody has retried them"
        self.ended_before = ended

    def drain(self):
        for _ in range(200):
            self.now += timedelta(seconds=61)
            for one in self.here.claim(ClaimRequest([LANE], 100, LEASE, "model")):
                self.settle([succeed(one, started=0.5, finished=0.0)])
                self.no_step_is_released_before_its_predecessors_have_ended()
            sweep(self.here)
            if not Message.objects.exists():
                break
        assert not Message.objects.exists()
        self.each_step_has_its_messages_once()
        self.each_message_is_that_of_one_member_and_ends_once()
        state = self.flow.state
        assert state != "running"
        rows = {step.id & 0xFFFFF: step for step in FlowStep.objects.all()}
        assert not [step.name for step in rows.values() if step.state in OPEN]
        for step in rows.values():
            self.check(
                step, {rows[number].state for number in json.loads(step.after)}, {row.state for row in rows.values()}
            )

    def check(self, step, before, states):
        """Whether it was right to release or to skip it, by how all ended."""
        wanted = {
            "succeeded": before <= {"succeeded"}, "failed": bool(before & BAD), "ended": True,
        }[step.runs_when]  # fmt: skip
        flow = Row.objects.get()
        late = is_late(flow, flow.ended_at)
        assert not late or flow.outcome in BAD, "a flow has succeeded after its deadline"
        stopped = self.cancelled or late or (self.policy == "stop" and states & BAD and step.runs_when == "succeeded")
        if step.state == "skipped":
            assert stopped or not wanted, step.name
        if step.state == "succeeded":
            members = dict(FlowMember.objects.filter(step_id=step.id).values_list("message_id", "outcome"))
            assert set(members.values()) == {"succeeded"}
            assert {self.successes[id_] for id_ in members} == {1}, f"not each member of {step.name} ran once"


def is_late(flow, moment):
    return flow.deadline_at is not None and moment >= flow.deadline_at


def ids_of(model):
    return set(model.objects.values_list("id", flat=True))


@pytest.mark.slow
def test_whatever_happens_nothing_is_stuck_and_nothing_runs_twice(store):
    run_state_machine_as_test(FlowMachine, settings=SETTINGS)
