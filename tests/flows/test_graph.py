"""Graphs: what is released when, by conditions, policies, cancelling, deadlines and retries."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.db import transaction

from delayedq import Cancel, Flow, chain, current_message, get_flow, group
from delayedq.exceptions import InvalidFlow
from delayedq.flows.sweeping import forget_flows, sweep
from delayedq.models import FinishedMessage, FlowMember, FlowStep, Message
from delayedq.models import Flow as Row
from delayedq.operations.pruning import prune
from delayedq.results.cancelling import cancel
from delayedq.store import operator_store
from delayedq.store.operator import Revival
from delayedq.testing import clock, run_due, run_until
from tests.app import lifecycle, tasks
from tests.app.models import Mark
from tests.flows.given import call, does, fails, run, states

START = datetime(2026, 3, 8, 6, 55, tzinfo=UTC)
HOUR = timedelta(hours=1)


def test_a_graph_runs_in_its_order_with_results_by_reference(alias):
    flow = Flow("diamond")
    flow.add("end", tasks.nothing.s(), after=["left", "right"])
    top = flow.add("top", call("top", lambda: 1))
    left = flow.add("left", tasks.echo.s([{"of top": top.result}]))
    flow.add("right", tasks.echo.s(again=top.result), after=["left"])
    result = flow.enqueue()
    assert left.name == "left"
    assert run() == ["succeeded"] * 4
    assert result.result("left") == {"args": [[{"of top": 1}]], "kwargs": {}}
    assert result.result("right") == {"args": [], "kwargs": {"again": 1}}
    assert states(result) == dict.fromkeys(("top", "left", "right", "end"), "succeeded")
    assert [step.name for step in result.steps()] == ["top", "left", "right", "end"]


def test_the_result_of_a_step_that_was_skipped_is_none_and_of_a_group_an_empty_list(alias):
    flow = Flow("skipped", policy="continue")
    flow.add("bad", fails("bad"))
    single = flow.add("single", tasks.nothing.si(), after="bad")
    some = flow.add("some", group(tasks.nothing.si(), tasks.nothing.si()), after="bad")
    flow.add("end", tasks.echo.s(single.result, some.result), when="ended")
    result = flow.enqueue()
    run()
    assert states(result) == {"bad": "failed", "single": "skipped", "some": "skipped", "end": "succeeded"}
    assert result.result("end")["args"] == [None, []]
    assert [result.result("single"), result.result("some")] == [None, []]


@pytest.mark.parametrize("members", [1, 2])
def test_the_result_of_a_step_that_was_deleted_is_gone(alias, members):
    flow = Flow("deleted")
    call_of = group([tasks.nothing.si()] * 2) if members == 2 else tasks.nothing.si()
    first = flow.add("first", call_of)
    flow.add("end", tasks.echo.s(first.result))
    flow.enqueue()
    assert run(limit=members) == ["succeeded"] * members
    FlowMember.objects.filter(message_id__in=FinishedMessage.objects.values("id")).delete()
    FlowStep.objects.filter(name="first").delete()
    run()
    assert "is no longer in the database" in FinishedMessage.objects.failed().get().errors


def test_a_group_waits_for_the_results_that_its_calls_get(alias):
    flow = Flow("group of results")
    first = flow.add("first", call("first", lambda: 1))
    flow.add("group", group([tasks.echo.s(first.result), tasks.echo.s({"in": [first.result]})]))
    result = flow.enqueue()
    assert states(result) == {"first": "running", "group": "waiting"}
    run()
    assert result.result("group") == [{"args": [1], "kwargs": {}}, {"args": [{"in": [1]}], "kwargs": {}}]


def test_an_iterator_of_calls_gets_the_results_of_named_steps_only(alias):
    def enqueue(after=(), of=None):
        flow = Flow("iterator of results")
        first = flow.add("first", call("first", lambda: 1))
        flow.add("group", group(tasks.echo.s(given) for given in [2, (of or first).result]), after)
        return flow.enqueue()

    with pytest.raises(InvalidFlow, match="gets the result of 'first', which it does not wait for"):
        enqueue()
    with pytest.raises(InvalidFlow, match="a step of another flow"):
        enqueue("first", of=Flow("other").add("first", tasks.nothing.s()))
    assert not Row.objects.exists()
    result = enqueue("first")
    run()
    assert result.result("group") == [{"args": [2], "kwargs": {}}, {"args": [1], "kwargs": {}}]


@pytest.mark.parametrize(
    ("when", "outcome", "released"),
    [
        ("succeeded", "good", True), ("succeeded", "bad", False), ("failed", "good", False), ("failed", "bad", True),
        ("ended", "good", True), ("ended", "bad", True),
    ],
)  # fmt: skip
@pytest.mark.parametrize("policy", ["stop", "continue"])
def test_a_step_comes_when_it_says(alias, when, outcome, released, policy):
    flow = Flow("one and one", policy=policy)
    first = flow.add("first", call("good") if outcome == "good" else fails("bad"))
    flow.add("second", tasks.echo.s(first.result), when=when)
    result = flow.enqueue()
    run()
    assert states(result)["second"] == ("succeeded" if released else "skipped")
    assert result.state == ("succeeded" if outcome == "good" else "failed")
    if released:
        assert result.result("second") == {"args": [None], "kwargs": {}}


@pytest.mark.parametrize(("value", "chosen"), [(True, "yes"), ([], "no"), (0, "no"), ("a", "yes")])
def test_a_condition_decides_between_branches(alias, value, chosen):
    flow = Flow("branches")
    decides = flow.add("decides", call("decide", lambda: value))
    denied = flow.add("denied", call("deny", lambda given: not given), decides)
    flow.add("yes", tasks.nothing.s(), when=decides.result)
    flow.add("no", tasks.nothing.s(), after="denied", when="succeeded")
    flow.add("end", tasks.nothing.s(), after=["yes", "no"], when="ended")
    tasks.bodies["deny"] = lambda: None
    result = flow.enqueue()
    assert denied.name == "denied"
    run()
    assert states(result)["yes"] == ("succeeded" if chosen == "yes" else "skipped")
    assert states(result)["end"] == "succeeded"
    assert result.state == "succeeded"


@pytest.mark.parametrize("policy", ["stop", "continue"])
def test_a_policy_says_whether_others_go_on(alias, policy):
    flow = Flow("two lines", policy=policy, on_failure=lifecycle.failed)
    flow.add("bad", fails("bad"))
    flow.add("after bad", tasks.nothing.s(), after="bad")
    flow.add("good", call("good"))
    flow.add("after good", tasks.nothing.s(), after="good")
    result = flow.enqueue()
    run()
    assert states(result)["after good"] == ("skipped" if policy == "stop" else "succeeded")
    assert states(result)["after bad"] == "skipped"
    assert result.state == "failed"
    assert list(Mark.objects.values_list("value", flat=True)) == [str(result.id)]


def test_a_group_fails_if_one_of_it_does_and_all_of_it_run(alias):
    result = group(fails("bad"), call("good"), call("better")).then(tasks.nothing.s()).enqueue()
    assert sorted(run()) == ["failed", "succeeded", "succeeded"]
    assert states(result) == {"1 play": "failed", "2 nothing": "skipped"}
    assert result.result("1 play") == [None, None, None]


def test_a_retry_runs_what_did_not_succeed_and_what_was_skipped(alias):
    result = group(fails("bad"), call("good", lambda: 7)).then(tasks.echo.s()).enqueue()
    run()
    tasks.bodies["bad"] = lambda: 8
    assert get_flow(str(result.id)).retry() == 1
    assert result.state == "running"
    assert run() == ["succeeded"] * 2
    assert result.result() == {"args": [[8, 7]], "kwargs": {}}
    assert result.state == "succeeded"


def test_a_retry_without_history_changes_nothing(alias):
    result = chain(fails("bad"), tasks.nothing.s()).enqueue()
    run()
    FinishedMessage.objects.all().delete()
    with pytest.raises(InvalidFlow, match="1 of the messages that did not succeed are no longer in the history"):
        result.retry()
    assert result.state == "failed"
    assert states(result)["2 nothing"] == "skipped"


def test_a_redriven_message_lets_its_flow_go_on(alias, store):
    result = chain(fails("bad"), tasks.nothing.s(), tasks.nothing.s()).enqueue()
    run()
    tasks.bodies["bad"] = lambda: 8
    (dead,) = FinishedMessage.objects.filter(outcome="failed")
    operator_store(alias).revive([Revival(dead.id, store.now())], "failed")
    assert run() == ["succeeded"] * 3
    assert result.state == "succeeded"


def test_a_cancelled_flow_starts_nothing(alias):
    result = chain(tasks.nothing.s(), tasks.nothing.s()).enqueue()
    assert result.cancel()
    assert not result.cancel()
    assert run() == []
    assert result.state == "cancelled"
    assert states(result) == {"1 nothing": "cancelled", "2 nothing": "skipped"}
    assert result.retry() == 1
    assert run() == ["succeeded"] * 2


def test_a_flow_is_cancelled_with_the_transaction(alias):
    result = chain(tasks.nothing.s(), tasks.nothing.s()).enqueue()
    with transaction.atomic(using=alias):
        result.cancel()
        transaction.set_rollback(True, using=alias)
    assert run() == ["succeeded"] * 2
    assert result.state == "succeeded"


def test_a_task_may_cancel_its_own_flow(alias):
    result = chain(call("self", lambda: get_flow(flows[0]).cancel()), tasks.nothing.s()).enqueue()
    flows = [result.id]
    assert run() == ["lease lost"]
    assert result.state == "cancelled"


def test_the_cancelling_of_one_that_died_is_finished_by_the_sweep(alias, store):
    result = chain(tasks.nothing.s(), tasks.nothing.s()).enqueue()
    Row.objects.update(stopped_at=store.now())
    sweep(store)
    assert result.state == "cancelled"
    assert not Message.objects.exists()


def test_a_step_that_cancels_itself_is_no_success(alias):
    def cancels():
        raise Cancel("enough")

    result = chain(call("cancels", cancels), tasks.nothing.s()).enqueue()
    run()
    assert states(result) == {"1 play": "cancelled", "2 nothing": "skipped"}
    assert result.state == "cancelled"


@pytest.mark.parametrize("how", ["cancelled by an operator", "deleted"])
def test_what_ends_elsewhere_is_found(alias, store, how):
    result = group(tasks.nothing.s(), tasks.nothing.s()).then(tasks.nothing.s()).enqueue()
    first = Message.objects.order_by("id").first()
    if how == "deleted":
        first.delete()
    else:
        cancel(store, [first.id])
    assert run() == ["succeeded"]
    sweep(store)
    assert states(result) == {"1 nothing": "cancelled", "2 nothing": "skipped"}
    assert result.state == "cancelled"


def test_a_deadline_stops_a_flow(alias):
    with clock(START):
        seen = []
        first = tasks.play.s(does("first", lambda: seen.append(current_message().deadline)))
        later = tasks.nothing.using(run_after=START + 2 * HOUR).s()
        result = chain(first, later, tasks.nothing.si()).enqueue(deadline=HOUR)
        run_until(START + 3 * HOUR, raise_failures=False)
    assert seen == [HOUR]
    assert states(result) == {"1 play": "succeeded", "2 nothing": "cancelled", "3 nothing": "skipped"}
    assert result.state == "failed"
    assert Row.objects.get().ended_at == START + HOUR


def test_retried_after_its_deadline_it_has_as_much_time_again(alias):
    with clock(START) as now:
        result = chain(fails("slow"), tasks.nothing.s()).enqueue(deadline=HOUR)
        for hours in (2, 5):
            run()
            now.move_to(START + hours * HOUR)
            result.retry()
            assert Row.objects.get().deadline_at == START + (hours + 1) * HOUR
        tasks.bodies["slow"] = lambda: None
        run_due()
    assert result.state == "succeeded"


def test_a_retrying_step_holds_the_others(alias):
    with clock(START) as now:
        result = chain(tasks.fail.s(), tasks.nothing.s()).enqueue()
        assert run() == ["retry"]
        assert states(result)["1 fail"] == "running"
        now.move_to(START + HOUR)
        assert run() == ["retry"]


def test_wait(alias):
    result = chain(tasks.nothing.s()).enqueue()
    with pytest.raises(TimeoutError, match=f"Flow {result.id} did not end"):
        result.wait(timedelta(seconds=0.01))
    run()
    assert result.wait() is result


def test_a_flow_is_forgotten_with_its_history_unless_it_has_dead_letters(alias, store):
    bad, good = chain(fails("bad")).enqueue(), chain(tasks.nothing.s()).enqueue()
    run()
    old = timedelta(days=-1)
    assert forget_flows(store, old) == (1, None)
    assert Row.objects.get().id == bad.id
    assert FlowStep.objects.count() == FlowMember.objects.count() == 1
    dead_letters = prune(store, store.now() + HOUR, dead_letters=True)
    assert sum(batch.deleted for batch in dead_letters) == 1
    assert forget_flows(store, old) == (1, None)
    assert not FlowMember.objects.exists()
    assert good.id


def test_results_of_an_open_flow_are_not_pruned(alias, store):
    result = chain(call("first", lambda: 7), tasks.echo.s()).enqueue()
    run(limit=1)
    assert store.prune(timedelta(days=-1), 100) == 0
    assert not sum(batch.deleted for batch in prune(store, store.now() + HOUR))
    run()
    assert result.result()["args"] == [7]
    assert store.prune(timedelta(days=-1), 100) == 2


def test_within_a_transaction_a_flow_is_stored_with_it(alias):
    with transaction.atomic(using=alias):
        chain(tasks.nothing.s()).enqueue()
        transaction.set_rollback(True, using=alias)
    assert not Row.objects.exists()
    assert not Message.objects.exists()


def test_a_result_that_is_the_key_of_a_dict_is_waited_for(alias):
    flow = Flow("keys")
    first = flow.add("first", tasks.echo.s(7))
    flow.add("last", tasks.echo.s({first.result: 1}))
    with transaction.atomic(using=alias):
        flow.enqueue()

    assert Message.objects.count() == 1
