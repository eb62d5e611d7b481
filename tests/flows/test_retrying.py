"""What a retry of a flow runs, and in which order; on every database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.db import OperationalError

from delayedq import Flow, chain, current_message, get_flow, group
from delayedq.exceptions import InvalidFlow
from delayedq.flows import result as retrying
from delayedq.flows import sweeping
from delayedq.flows.ending import advance
from delayedq.flows.sweeping import SILENCE, stop_flow, sweep
from delayedq.models import FinishedMessage, FlowMember, FlowStep, Message
from delayedq.models import Flow as Row
from delayedq.store import operator_store
from delayedq.store.operator import Revival
from delayedq.testing import clock
from tests.app import lifecycle, tasks
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


@pytest.mark.parametrize("policy", ["stop", "continue"])
def test_a_step_that_expires_fails_and_runs_when_it_is_retried(alias, policy):
    """It is no dead letter, and what follows a failure runs."""
    with clock(START) as now:
        flow = Flow("expires", policy=policy)
        flow.add("group", group(lifecycle.fresh.s(), tasks.nothing.s()))
        flow.add("next", tasks.nothing.si(), after="group")
        flow.add("problem", tasks.nothing.si(), after="group", when="failed")
        result = flow.enqueue()
        now.advance(HOUR)
        assert run() == ["expired", "succeeded", "succeeded"]
        assert states(result) == {"group": "failed", "next": "skipped", "problem": "succeeded"}
        assert result.state == "failed"
        assert FlowMember.objects.get(outcome="expired")
        assert not FinishedMessage.objects.filter(outcome="failed").exists()
        now.advance(HOUR)
        assert result.retry() == 1
        assert run() == ["succeeded"] * 2
    assert states(result) == {"group": "succeeded", "next": "succeeded", "problem": "succeeded"}
    assert result.state == "succeeded"


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
    stop_flow(store, result.id)
    assert states(result) == {"1 nothing": "running", "2 nothing": "waiting"}
    assert run() == ["succeeded"] * 2


def test_a_message_that_is_retried_has_the_time_of_its_flow_again(alias):
    with clock(START) as now:
        flow = Flow("late", deadline=HOUR)
        flow.add("first", tasks.nothing.using(run_after=START + 0.9 * HOUR).s())
        flow.add("late", fails("late"), after="first")
        result = flow.enqueue()
        now.advance(0.9 * HOUR)
        run()
        assert states(result)["late"] == "failed"
        seen = []
        tasks.bodies["late"] = lambda: seen.append(current_message().deadline)
        now.advance(0.05 * HOUR)
        assert result.retry() == 1
        left = Row.objects.get().deadline_at - now()
        now.advance(0.5 * HOUR)
        assert run() == ["succeeded"]
    assert seen == [left]
    assert left == HOUR


def test_what_an_operator_gave_up_is_retried_with_its_flow(alias):
    result = chain(fails("bad")).enqueue()
    run()
    dead = FinishedMessage.objects.get()
    operator_store(alias).relabel([dead.id], "failed", "cancelled")
    tasks.bodies["bad"] = lambda: 1
    assert result.retry() == 1
    assert run() == ["succeeded"]
    assert result.state == "succeeded"


def test_a_group_that_was_not_stored_completely_is_not_retried(alias, store):
    def calls():
        for number in range(7):
            if number == 5:
                raise OSError("the file has gone")
            yield tasks.echo.s(number)

    with pytest.raises(OSError, match="has gone"):
        group(calls()).then(tasks.echo.s()).enqueue(commit_every=2)
    result = get_flow(Row.objects.get().id)
    assert result.state == "cancelled"
    with pytest.raises(InvalidFlow, match="was not stored completely"):
        result.retry()
    assert not Message.objects.exists()


def test_a_flow_that_nobody_stores_any_more_is_cancelled(alias, store, monkeypatch):
    def calls():
        yield from [tasks.nothing.s()] * 3
        raise KeyboardInterrupt  # of a process that is killed nothing cancels the flow

    with monkeypatch.context() as patched:
        patched.setattr("delayedq.flows.graph.cancel_flow", lambda *_: None)
        with pytest.raises(KeyboardInterrupt):
            group(calls()).enqueue(commit_every=2)
    result = get_flow(Row.objects.get().id)
    assert [step.state for step in result.steps()] == ["filling"]
    sweep(store.at(store.now() + SILENCE - HOUR))
    assert result.state == "running"
    sweep(store.at(store.now() + SILENCE + HOUR))
    assert result.state == "cancelled"


def test_a_flow_with_two_first_groups_is_not_left_while_one_of_them_is_stored(alias, store):
    def calls():
        for _ in range(4):
            now.advance(0.4 * SILENCE)
            sweep(store.at(now()))
            yield tasks.nothing.s()

    flow = Flow("two")
    flow.add("first", group([tasks.nothing.s()]))
    with clock(START) as now:
        flow.add("second", group(calls()))
        result = flow.enqueue(commit_every=1)
    assert states(result) == {"first": "running", "second": "running"}


def test_storing_in_parts_shows_that_it_goes_on(alias, store):
    """Each part that is stored begins the time after which the flow counts as left."""
    moments = []

    def calls():
        for _ in range(6):
            if step := FlowStep.objects.first():
                moments.append((step.released_at, step.size))
            now.advance(HOUR)
            yield tasks.nothing.s()

    with clock(START) as now:
        result = group(calls()).enqueue(commit_every=2)
    assert moments[1:] == [(START + 2 * HOUR, 2)] * 2 + [(START + 4 * HOUR, 4)] * 2
    step = FlowStep.objects.get()
    assert (step.calls, step.released_at) == (None, Row.objects.get().created_at)
    run()
    assert result.state == "succeeded"


def test_a_group_waits_for_a_dead_letter_that_was_brought_back(alias, store):
    with clock(START) as now:
        members = fails("bad"), tasks.nothing.using(run_after=START + HOUR).s()
        flow = Flow("brought back", on_failure=lifecycle.failed)
        flow.add("group", group(*members))
        flow.add("end", tasks.nothing.s(), after="group", when="ended")
        result = flow.enqueue()
        assert run() == ["failed"]
        dead = FinishedMessage.objects.get()
        operator_store(alias).revive([Revival(dead.id, START + 2 * HOUR)], "failed")
        now.advance(HOUR)
        assert run() == ["succeeded"]
        assert states(result) == {"group": "running", "end": "waiting"}
        tasks.bodies["bad"] = lambda: 1
        now.advance(HOUR)
        assert run() == ["succeeded"] * 2
    assert result.state == "succeeded"


def test_a_retry_after_its_results_were_pruned_fails_by_name_and_keeps_nothing_for_ever(alias, store):
    flow = Flow("kept")
    first = flow.add("first", tasks.remind.s(7))
    flow.add("bad", fails("bad"))
    flow.add("last", tasks.echo.s(first.result), after="bad")
    result = flow.enqueue()
    run()
    assert result.state == "failed"
    assert store.prune(timedelta(days=-1), 100) == 1
    tasks.bodies["bad"] = list
    result.retry()
    assert run() == ["succeeded", "failed"]
    assert "ReferenceGone" in FinishedMessage.objects.failed().get().errors


def test_a_step_that_is_retried_begins_anew(alias):
    """The time between its failure and the retry is none that it took."""
    flow = Flow("pause")
    flow.add("first", fails("first"))
    with clock(START) as now:
        result = flow.enqueue()
        run()
        now.advance(HOUR)
        result.retry()

    assert [one.released_at for one in FlowStep.objects.all()] == [START + HOUR]


def condition_that_was_pruned(store):
    """A flow that has failed, of which a condition was true, and is in the history no more."""
    flow = Flow("condition")
    decides = flow.add("decides", tasks.echo.s(True))
    flow.add("bad", fails("bad"))
    flow.add("last", tasks.nothing.si(), after="bad", when=decides.result)
    result = flow.enqueue()
    run()
    assert states(result) == {"decides": "succeeded", "bad": "failed", "last": "skipped"}
    assert store.prune(timedelta(days=-1), 100) == 1
    tasks.bodies["bad"] = list
    return result


def test_a_flow_whose_condition_was_pruned_is_not_retried(alias, store):
    """It would succeed, and nobody would know that a step was left out."""
    result = condition_that_was_pruned(store)
    with pytest.raises(InvalidFlow, match=r"The condition of the step 'last' can't be read: .* nothing was changed"):
        result.retry()
    assert states(result) == {"decides": "succeeded", "bad": "failed", "last": "skipped"}
    assert not Message.objects.exists()


def test_a_step_that_is_skipped_as_its_condition_was_pruned_is_logged(alias, store, caplog):
    result = condition_that_was_pruned(store)
    operator_store(alias).revive([Revival(FinishedMessage.objects.failed().get().id, store.now())], "failed")
    assert run() == ["succeeded"]
    assert states(result) == {"decides": "succeeded", "bad": "succeeded", "last": "skipped"}
    said = f"A step of flow {result.id} is skipped, as its condition can't be read: The results of 1 messages"
    assert len([one for one in caplog.records if one.getMessage().startswith(said)]) == 1


@pytest.mark.parametrize("what", ["retry", "sweep"])
def test_what_a_database_has_undone_to_end_a_deadlock_is_done_again(alias, store, monkeypatch, what):
    result = chain(fails("bad")).enqueue()
    if what == "retry":
        run()
    else:
        result.cancel()
        result.retry()
        Message.objects.all().delete()
    undone = []

    def advance_at_last(*given):
        if not undone:
            undone.append(1)
            raise OperationalError("undone")
        return advance(*given)

    monkeypatch.setattr(type(store.database), "is_deadlock", lambda *_: True)
    monkeypatch.setattr(retrying if what == "retry" else sweeping, "advance", advance_at_last)
    sweep(store) if what == "sweep" else result.retry()
    assert undone
    assert result.state == ("running" if what == "retry" else "cancelled")
