"""Whatever people, workers and time do to one item: it is as a model in plain Python says, and its message with it.

DELAYEDQ_TEST_EXAMPLES=1000 tries as many others, at random.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from delayedq.desk.errors import DeskError
from delayedq.desk.models import Item
from delayedq.desk.rounds import close_withdrawn, let_wait
from delayedq.models import FinishedMessage, Message
from delayedq.store import store_for
from delayedq.testing import clock, run_due
from tests.desk.given import ALL, PAID, person, refund, reviewed

pytestmark = pytest.mark.slow

EXAMPLES = os.environ.get("DELAYEDQ_TEST_EXAMPLES")
SETTINGS = settings(
    max_examples=int(EXAMPLES or 40),
    derandomize=EXAMPLES is None,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
START = datetime(2026, 3, 2, 9, tzinfo=UTC)
HOLD = {refund: timedelta(hours=2), reviewed: timedelta(hours=4)}
VERBS = ["take", "assign", "unassign", "renew", "postpone", "finish", "approve", "send_back"]
EVENTS = ["wait", "visit", "replace", "withdraw", "sweep"]
CLOSED = {"done", "withdrawn"}
STEPS = st.lists(st.tuples(st.sampled_from(VERBS + EVENTS), st.booleans()), max_size=14)


def keyed(task):
    """The item of a message that has a key."""
    scheduled = task.schedule_at(START, 100, key="case")
    run_due()
    return Item.objects.get(message_id=scheduled.id)


class Model:
    """One item by the words of the guide."""

    def __init__(self, task):
        self.state, self.holder, self.until, self.maker = "waiting", None, START, None
        self.is_reviewed, self.hold, self.now = task is reviewed, HOLD[task], START
        self.message = "there"  # or replaced, or gone

    def step(self, verb, who):
        """Whether the verb is carried out."""
        return getattr(self, verb)(who)

    def held(self):
        return self.holder if self.state in {"assigned", "rejected"} and self.until > self.now else None

    def give(self, who, state="assigned"):
        self.state, self.holder, self.until = state, who, self.now + self.hold
        return True

    def free(self, state, until=None):
        self.state, self.holder, self.until = state, None, until
        return True

    def take(self, who):
        if self.state in CLOSED | {"review"} or self.held() not in {None, who}:
            return False
        if self.message != "there" and self.held() is None:
            return False
        if self.state == "postponed" and self.until > self.now:
            return False
        return self.give(who)

    def assign(self, who):
        """By the lead, who has seen the holder."""
        if self.state in CLOSED | {"review"} or (self.state == "postponed" and self.until > self.now):
            return False
        return (self.message == "there" or self.held() == who) and self.give(who)

    def visit(self):
        """A worker opens anew what was replaced, whoever holds it."""
        if self.message == "replaced":
            self.message, self.maker = "there", None
            self.free("waiting")

    def sweep(self):
        """A worker lets wait what has run out, and closes what has no message any more."""
        if self.state in {"assigned", "rejected", "postponed"} and self.until <= self.now:
            self.state = "waiting"
        if self.message == "gone" and self.state not in CLOSED:
            self.free("withdrawn")

    def mine(self, who):
        return self.state in {"assigned", "rejected", "waiting"} and self.holder == who

    def unassign(self, who):
        return self.mine(who) and self.free("waiting")

    def renew(self, who):
        return self.mine(who) and self.give(who, "rejected" if self.state == "rejected" else "assigned")

    def postpone(self, who):
        return self.mine(who) and self.free("postponed", self.now + timedelta(hours=3))

    def finish(self, who):
        if not self.mine(who) or self.message != "there":
            return False
        self.maker = who
        return self.free("review" if self.is_reviewed else "done")

    def approve(self, who):
        return self.state == "review" and who != self.maker and self.message == "there" and self.free("done")

    def send_back(self, who):
        return self.state == "review" and who != self.maker and self.give(self.maker, "rejected")


def attempt(item, verb, who, now, lead):
    arguments = {"postpone": [now + timedelta(hours=3)], "finish": [PAID], "send_back": ["no"], "assign": [who]}
    try:
        getattr(item, verb)(*arguments.get(verb, []), by=lead if verb == "assign" else who)
    except DeskError:
        return False
    return True


@pytest.mark.parametrize("task", [refund, reviewed], ids=["plain", "reviewed"])
def test_an_item_is_what_the_model_says(store, task):
    people = {name: person(name, *(one for one in ALL if one != "assign")) for name in ("ann", "bob")}
    lead = person("lead", "assign")

    @SETTINGS
    @given(STEPS)
    def check(steps):
        Message.objects.all().delete()
        with clock(START) as time:
            pk, model = keyed(task).pk, Model(task)
            for number, (verb, first) in enumerate(steps):
                item, who = Item.objects.get(pk=pk), "ann" if first else "bob"
                if verb in VERBS:
                    assert attempt(item, verb, people[who], time(), lead) == bool(model.step(verb, who)), (verb, who)
                else:
                    happen(verb, task, model, item, time, number)
                item = Item.objects.select_related("holder").get(pk=pk)
                assert (item.state, item.holder and item.holder.username) == (model.state, model.holder)
                is_live = Message.objects.filter(pk=item.message_id).exists()
                assert item.is_open == (item.closed_at is None) == (model.state not in CLOSED)
                assert is_live == (item.is_open and model.message != "gone")
                assert FinishedMessage.objects.filter(pk=item.message_id).exists() != is_live

    check()


def happen(event, task, model, item, time, number):
    """What comes from outside: time, a worker, or whoever has submitted the message."""
    if event == "wait":
        model.now = time.advance(hours=number % 4 + 1)
    elif event == "visit":
        model.visit()
        run_due()
    elif event == "sweep":
        model.sweep()
        for look in (let_wait, close_withdrawn):
            look(store_for(item._state.db))
    elif model.state != "done" and model.message != "gone":
        message = Message.objects.filter(pk=item.message_id)
        if event == "withdraw":
            assert task.unschedule(key=message.get().key)
            model.message = "gone"
        else:
            task.schedule_at(time(), 1000 + number, key=message.get().key)
            model.message = "replaced"
