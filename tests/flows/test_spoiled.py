"""Rows of a flow that somebody has changed or deleted by hand keep no worker, and no other flow, from going on."""

from __future__ import annotations

import pytest

from delayedq import Flow as Graph
from delayedq import chain
from delayedq.flows.rules import step_of
from delayedq.flows.sweeping import sweep
from delayedq.models import FinishedMessage, Flow, FlowMember, FlowStep, Message
from delayedq.store.protocol import ClaimRequest, Lane
from tests.app import tasks
from tests.flows.given import states
from tests.store.given import LEASE, NOTHING_AMISS, succeed

TASKS = Lane("default", 0)
SPOILED = {
    "no JSON": {"after": "[0"},
    "an object": {"after": '{"a":1}'},
    "an unknown step": {"after": "[77]"},
    "a name": {"after": '["a"]'},
    "itself": {"after": "[0,1]"},
    "an unknown state": {"state": "asleep"},
    "a condition without a number": {"runs_when": "result:x"},
    "calls that are no JSON": {"calls": "[[1"},
    "calls with too few values": {"calls": '[[null,"default"]]'},
    "calls that the database refuses": {"calls": '[[null,null,"a.b","[]",0,3,null,null]]'},
}
DELETED = {
    "the flow": lambda: Flow.objects.filter(name="spoiled").delete(),
    "its first step": lambda: FlowStep.objects.filter(name="a").delete(),
    "the step that waits": lambda: FlowStep.objects.filter(name="b").delete(),
    "its members": lambda: FlowMember.objects.filter(step_id=FlowStep.objects.get(name="a").id).delete(),
}
PLACES = [
    '{"delayedq.flow":',
    "[]",
    '{"delayedq.flow":1}',
    '{"delayedq.flow":"x","delayedq.step":0}',
    '{"delayedq.flow":-5,"delayedq.step":0}',
    '{"delayedq.flow":99999999999999999999,"delayedq.step":0}',
    '{"delayedq.flow":1,"delayedq.step":9999999}',
]


def two_steps():
    flow = Graph("spoiled")
    flow.add("a", tasks.nothing.s())
    flow.add("b", tasks.nothing.s(), after="a")
    return flow.enqueue()


def end_all(store):
    """Of what is due, and of another flow in the same batch."""
    other = chain(tasks.nothing.s(), tasks.nothing.s()).enqueue()
    claims = store.claim(ClaimRequest([TASKS], 5, LEASE, "first"))
    assert len(claims) == 2
    settled = store.settle([succeed(one) for one in claims], "first")
    assert settled._replace(offered=False) == NOTHING_AMISS
    assert states(other) == {"1 nothing": "succeeded", "2 nothing": "running"}
    assert FinishedMessage.objects.count() == 2


@pytest.mark.parametrize("what", SPOILED)
def test_a_message_ends_whatever_stands_in_the_rows_of_its_flow(store, caplog, what):
    flow = two_steps()
    FlowStep.objects.filter(name="b").update(**SPOILED[what])
    end_all(store)
    assert [one.message for one in caplog.records if one.exc_info] == [
        f"A step of flow {flow.id} has ended, and what follows it can't be told."
    ]
    sweep(store)
    assert Message.objects.count() == 1, "of the other flow"


@pytest.mark.parametrize("what", DELETED)
def test_a_message_ends_whatever_is_deleted_of_its_flow(store, what):
    two_steps()
    DELETED[what]()
    end_all(store)
    sweep(store)


@pytest.mark.parametrize("metadata", PLACES)
def test_a_message_ends_whatever_its_metadata_say_of_a_flow(store, metadata):
    two_steps()
    Message.objects.update(metadata=metadata)
    end_all(store)


def test_a_place_is_that_of_a_step_that_may_be(store):
    assert step_of('{"delayedq.flow":8796093022207,"delayedq.step":1048575}') == (2**43 - 1, 2**20 - 1)
    assert step_of('{"delayedq.flow":8796093022208,"delayedq.step":0}') is None


def test_a_flow_whose_row_was_mended_goes_on(store):
    flow = two_steps()
    FlowStep.objects.filter(name="b").update(after="[0")
    end_all(store)
    FlowStep.objects.filter(name="b").update(after="[0]")
    sweep(store)
    assert states(flow) == {"a": "succeeded", "b": "running"}


def test_a_flow_with_a_step_that_comes_after_itself_can_be_cancelled(store):
    flow = two_steps()
    FlowStep.objects.filter(name="b").update(after="[0,1]")
    end_all(store)
    assert flow.state == "running"
    assert flow.cancel()
    assert flow.state == "cancelled"
