"""What a retry of a flow runs, and in which order; on every database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from delayedq import Flow, chain, current_message, group
from delayedq.flows.sweeping import sweep_flows
from delayedq.models import FinishedMessage, FlowMember
from delayedq.testing import clock
from tests.app import tasks
from tests.flows.given import does, fails, run, states

START = datetime(2026, 3, 8, 6, 55, tzinfo=UTC)
HOUR = timedelta(hours=1)


def test_what_failed_after_a_failed_step_waits_for_it_again(alias):
    flow = Flow("both failed")
    first = flow.add("first", fails("first"))
    flow.add("end", fails("end"), after=["first"], when="ended")
    flow.add("last", tasks.echo.s(first.result), after=["end"], when="ended")
    result = flow.enqueue()
    run()
    assert states(result) == {"first": "failed", "end": "failed", "last": "succeeded"}
    tasks.bodies["first"] = tasks.bodies["end"] = lambda: 1
    assert result.retry() == 1
    assert states(result) == {"first": "running", "end": "waiting", "last": "succeeded"}
    assert run() == ["succeeded"] * 2
    assert result.state == "succeeded"
    assert not FinishedMessage.objects.filter(outcome="failed").exists()
    assert FlowMember.objects.count() == 3


def test_what_was_done_after_a_failure_is_not_done_again_if_the_retry_succeeds(alias):
    flow = Flow("pay")
    flow.add("pay", fails("pay"))
    flow.add("refund", fails("refund"), after="pay", when="failed")
    result = flow.enqueue()
    run()
    tasks.bodies["pay"] = lambda: "paid"
    assert result.retry() == 1
    assert run() == ["succeeded"]
    assert states(result) == {"pay": "succeeded", "refund": "skipped"}
    assert result.state == "succeeded"


def test_a_chain_of_failures_runs_in_its_order_again(alias):
    order = []
    flow = Flow("three failed")
    flow.add("one", fails("one"))
    flow.add("two", fails("two"), after="one", when="failed")
    flow.add("three", fails("three"), after="two", when="failed")
    result = flow.enqueue()
    run()

    def fail(name):
        order.append(name)
        raise ValueError(name)

    for name in ("one", "two", "three"):
        does(name, lambda name=name: fail(name))
    assert result.retry() == 1
    assert run() == ["failed"] * 3
    assert order == ["one", "two", "three"]
    assert states(result) == {"one": "failed", "two": "failed", "three": "failed"}


@pytest.mark.parametrize(("own", "seen"), [(HOUR / 2, HOUR / 2), (2 * HOUR, HOUR), (None, HOUR)])
def test_the_shorter_deadline_holds_that_of_the_task_or_that_of_the_flow(alias, own, seen):
    deadlines = []
    does("look", lambda: deadlines.append(current_message().deadline))
    known = tasks.play.using(deadline=own) if own else tasks.play
    with clock(START):
        chain(known.s("look"), tasks.play.si("look"), group(known.si("look"))).enqueue(deadline=HOUR)
        run()
        assert deadlines == [seen, HOUR, seen]
        deadlines.clear()
        object.__setattr__(tasks.play, "deadline", own)  # as the decorator says
        try:
            chain(tasks.play.s("look"), tasks.play.si("look")).enqueue(deadline=HOUR)
            run()
        finally:
            object.__setattr__(tasks.play, "deadline", None)
    assert deadlines == [seen, seen]


def test_a_stop_that_was_decided_before_the_retry_stops_nothing(alias, store):
    result = chain(tasks.nothing.s(), tasks.nothing.s()).enqueue()
    result.cancel()
    result.retry()
    sweep_flows(store, [result.id], [result.id])
    assert states(result) == {"1 nothing": "running", "2 nothing": "waiting"}
    assert run() == ["succeeded"] * 2
