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
from delayedq.models import FinishedMessage, Message
from delayedq.testing import clock, run_due
from tests.desk.given import ALL, PAID, opened, person, refund, reviewed

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
VERBS = ["take", "unassign", "renew", "postpone", "finish", "approve", "send_back", "wait", "visit"]
STEPS = st.lists(st.tuples(st.sampled_from(VERBS), st.booleans()), max_size=12)


class Model:
    """One item by the words of the guide."""

    def __init__(self, task):
        self.state, self.holder, self.until, self.maker = "waiting", None, START, None
        self.is_reviewed, self.hold, self.now = task is reviewed, HOLD[task], START

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
        if self.state in {"review", "done"} or self.held() not in {None, who}:
            return False
        if self.state == "postponed" and self.until > self.now:
            return False
        return self.give(who)

    def mine(self, who):
        return self.state in {"assigned", "rejected"} and self.holder == who

    def unassign(self, who):
        return self.mine(who) and self.free("waiting")

    def renew(self, who):
        return self.mine(who) and self.give(who, self.state)

    def postpone(self, who):
        return self.mine(who) and self.free("postponed", self.now + timedelta(hours=3))

    def finish(self, who):
        if not self.mine(who):
            return False
        self.maker = who
        return self.free("review" if self.is_reviewed else "done")

    def approve(self, who):
        return self.state == "review" and who != self.maker and self.free("done")

    def send_back(self, who):
        return self.state == "review" and who != self.maker and self.give(self.maker, "rejected")


def attempt(item, verb, who, now):
    arguments = {"postpone": [now + timedelta(hours=3)], "finish": [PAID], "send_back": ["no"]}
    try:
        getattr(item, verb)(*arguments.get(verb, []), by=who)
    except DeskError:
        return False
    return True


@pytest.mark.parametrize("task", [refund, reviewed], ids=["plain", "reviewed"])
def test_an_item_is_what_the_model_says(store, task):
    people = {name: person(name, *(one for one in ALL if one != "assign")) for name in ("ann", "bob")}

    @SETTINGS
    @given(STEPS)
    def check(steps):
        Message.objects.all().delete()
        with clock(START) as time:
            pk, model = opened(task).pk, Model(task)
            for verb, first in steps:
                item, who = Item.objects.get(pk=pk), "ann" if first else "bob"
                if verb == "wait":
                    model.now = time.advance(hours=1 if first else 4)
                elif verb == "visit":
                    run_due()
                else:
                    assert attempt(item, verb, people[who], time()) == bool(model.step(verb, who)), (verb, who)
                item = Item.objects.select_related("holder").get(pk=pk)
                assert (item.state, item.holder and item.holder.username) == (model.state, model.holder)
                assert Message.objects.filter(pk=item.message_id).exists() == item.is_open == (model.state != "done")
                assert FinishedMessage.objects.filter(pk=item.message_id).exists() != item.is_open

    check()
