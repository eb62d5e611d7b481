"""The end of a message and what it releases are one transaction, once, on every database; and what that costs."""

from __future__ import annotations

import re

import pytest
from django.db import connections, transaction
from django.test.utils import CaptureQueriesContext

from delayedq import Flow as Graph
from delayedq import chain, group
from delayedq.flows.ending import Judging
from delayedq.flows.rules import StepState
from delayedq.flows.sweeping import sweep
from delayedq.models import FinishedMessage, Flow, FlowMember, FlowStep, Message
from delayedq.store.protocol import ClaimRequest, Lane
from tests.app import tasks
from tests.flows.given import call, run, states
from tests.store.given import LEASE, fail, message, retry, succeed, together
from tests.worker.attempts import drained

TASKS = Lane("default", 0)


def claim(store, limit=1):
    return store.claim(ClaimRequest([TASKS], limit, LEASE, "first"))


def released():
    return FlowStep.objects.filter(name__startswith="2", state="running").count()


def test_an_end_and_the_release_are_one_transaction(store, alias):
    chain(tasks.nothing.s(), tasks.nothing.s()).enqueue()
    (claimed,) = claim(store)
    with transaction.atomic(using=alias):
        store.settle([succeed(claimed)], "first")
        assert released() == 1
        transaction.set_rollback(True, using=alias)
    assert released() == 0
    assert Message.objects.count() == 1
    store.settle([succeed(claimed)], "first")
    assert released() == 1
    assert Message.objects.count() == 1


def test_with_a_claim_in_the_same_trip(store):
    chain(tasks.nothing.s(), tasks.nothing.s()).enqueue()
    (claimed,) = claim(store)
    answer = store.settle_and_claim([succeed(claimed)], ClaimRequest([TASKS], 5, LEASE, "first"))
    assert len(answer.claimed) == 1


def test_who_settles_is_told_of_what_was_released_and_of_what_follows_a_failure(store):
    """Workers then look for it, also if nothing notifies them."""
    flow = Graph("told", on_failure=tasks.nothing)
    flow.add("a", tasks.nothing.s())
    flow.add("b", tasks.nothing.s(), after="a")
    flow.enqueue()
    assert store.settle([succeed(*claim(store))], "first").offered
    assert store.settle([fail(*claim(store))], "first").offered
    assert not store.settle([succeed(*claim(store))], "first").offered


def test_a_stale_end_releases_nothing(store):
    chain(tasks.nothing.s(), tasks.nothing.s()).enqueue()
    (claimed,) = claim(store)
    assert store.settle([succeed(claimed._replace(token=1))], "first").lost
    assert released() == 0
    store.settle([retry(claimed, delay=0.0)], "first")
    assert released() == 0


@pytest.mark.parametrize("ways", [2, 4])
def test_last_predecessors_that_end_at_the_same_moment_release_once(store, alias, ways):
    if alias == "default":
        return  # SQLite has one writer at a time
    for _ in range(5):
        group(tasks.nothing.s() for _ in range(ways)).then(tasks.nothing.s()).enqueue()
        claims = claim(store, ways)
        together(*[lambda one=one: store.settle([succeed(one)], "first") for one in claims])
        assert Message.objects.count() == 1
        store.settle([succeed(*claim(store))], "first")
    assert set(Flow.objects.values_list("outcome", flat=True)) == {"succeeded"}


def test_one_that_waits_for_another_transaction_sees_what_it_did(store, alias):
    if alias == "default":
        return
    group(tasks.nothing.s(), tasks.nothing.s()).then(tasks.nothing.s()).enqueue()
    first, second = claim(store, 2)

    def slow():
        with transaction.atomic(using=alias):
            store.settle([succeed(first)], "first")
            connections[alias].cursor().execute("SELECT 1 FROM (SELECT 1) AS one")

    together(slow, lambda: store.settle([fail(second)], "first"))
    assert released() == 0
    assert Flow.objects.get().outcome == "failed"


def test_a_flow_that_somebody_cancels_in_an_open_transaction_stops_no_worker(store, alias):
    if alias == "default":
        return
    flow = chain(tasks.nothing.s(), tasks.nothing.s()).enqueue()
    (claimed,) = claim(store)
    with transaction.atomic(using=alias):
        flow.cancel()
        together(lambda: store.settle([succeed(claimed)], "first"))
    assert flow.state == "cancelled"
    assert not Message.objects.exists()


def test_the_end_of_a_flow_whose_row_is_locked_is_written_by_the_sweep(store, alias):
    if alias == "default":
        return
    flow = chain(tasks.nothing.s()).enqueue()
    (claimed,) = claim(store)
    with transaction.atomic(using=alias):
        Flow.objects.select_for_update().get()
        together(lambda: store.settle([succeed(claimed)], "first"))
    assert states(flow) == {"1 nothing": "succeeded"}
    assert flow.state == "running"
    sweep(store)
    assert flow.state == "succeeded"


def test_workers_run_flows(store):
    flow = chain(call("one", lambda: 1), group(tasks.echo.s(2), tasks.echo.s(3)), tasks.echo.s()).enqueue()
    for _ in range(4):
        drained(store)
    assert flow.state == "succeeded"
    assert [one["args"] for one in flow.result()["args"][0]] == [[1, 2], [1, 3]]


def test_an_exactly_once_task_releases_with_its_commit(store):
    flow = chain(tasks.play_once.s("once"), tasks.echo.s()).enqueue()
    tasks.bodies["once"] = lambda: 7
    assert run() == ["succeeded"] * 2
    assert flow.result()["args"] == [7]


# Costs


def statements(connection, act):
    with CaptureQueriesContext(connection) as captured:
        act()
    return [query["sql"] for query in captured]


def test_messages_of_no_flow_take_no_statement_more(store, connection):
    chain(tasks.nothing.s(), tasks.nothing.s()).enqueue()
    store.offer_many([message() for _ in range(4)])
    lane = Lane("mail", 0)
    claims = store.claim(ClaimRequest([lane], 2, LEASE, "first"))
    with_metadata = [one._replace(metadata='{"a":1}') for one in claims]
    asked = statements(
        connection, lambda: store.settle_and_claim(map_succeed(with_metadata), ClaimRequest([lane], 2, LEASE, "a"))
    )
    asked += statements(connection, lambda: store.offer(message()))
    assert not [one for one in asked if "delayedq_flow" in one]


def map_succeed(claims):
    return [succeed(one) for one in claims]


@pytest.mark.parametrize("size", [20, 100])
def test_members_of_a_group_take_as_many_statements_for_any_batch(store, connection, alias, size):
    group(tasks.nothing.s() for _ in range(3 * size)).then(tasks.nothing.s()).enqueue()
    claims = claim(store, size)
    asked = statements(connection, lambda: store.settle(map_succeed(claims), "first"))
    # The lock (not on SQLite), and the update with the question whether the step is over, which PostgreSQL has in one.
    assert len([one for one in asked if "delayedq_flow" in one]) == (3 if alias == "mariadb" else 2)
    assert FlowMember.objects.filter(outcome="succeeded").count() == size


@pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
def test_a_group_and_its_members_are_stored_by_one_statement(store, connection):
    asked = statements(connection, lambda: group(tasks.nothing.s() for _ in range(30)).enqueue())
    assert [" ".join(one.split())[:40] for one in asked if "delayedq_message" in one or "flowmember" in one] == [
        "WITH offered AS ( INSERT INTO delayedq_me"[:40]
    ]
    assert set(FlowMember.objects.values_list("message_id", flat=True)) == set(
        Message.objects.values_list("id", flat=True)
    )


@pytest.mark.parametrize("last", [0, -1])
def test_a_step_is_over_with_the_batch_that_ends_its_last_members_and_not_before(store, last):
    flow = group(tasks.nothing.s() for _ in range(6)).then(tasks.nothing.si()).enqueue()
    claims = claim(store, 6)
    kept = claims.pop(last)
    store.settle(map_succeed(claims), "first")
    assert [step.state for step in flow.steps()] == ["running", "waiting"]
    store.settle([succeed(kept)], "first")
    assert [step.state for step in flow.steps()] == ["succeeded", "running"]


def test_members_have_what_the_archive_finds_them_by(store):
    chain(tasks.nothing.s()).enqueue()
    run()
    flow = Flow.objects.get().id
    assert FinishedMessage.objects.get().metadata == f'{{"delayedq.flow":{flow},"delayedq.step":0}}'


def test_a_flow_that_is_cancelled_while_its_last_step_ends_is_cancelled(store):
    """Whoever ends the step has read the flow before: what was cancelled since then is judged once more."""
    flow = chain(tasks.nothing.s()).enqueue()
    (claimed,) = claim(store)
    store.settle([succeed(claimed)], "first")
    (step,) = FlowStep.objects.all()
    Flow.objects.update(ended_at=None, outcome="")
    FlowStep.objects.update(state="running")
    with store.database.atomic():
        judging = Judging(store, [flow.id], {step.pk: StepState.SUCCEEDED})
        Flow.objects.update(stopped_at=store.now())  # the other one commits here
        judging.carry_out()
    assert flow.state == "running"
    sweep(store)
    assert flow.state == "cancelled"


def ended_by(store, connection):
    """The statements of the round trip that ends one message and claims another, without those for transactions."""
    (claimed,) = claim(store)
    asked = statements(
        connection, lambda: store.settle_and_claim([succeed(claimed)], ClaimRequest([TASKS], 1, LEASE, "first"))
    )
    control = re.compile("BEGIN|COMMIT|SAVEPOINT|RELEASE")
    return [" ".join(one.split()) for one in asked if not control.match(one)]


@pytest.fixture
def plain(store, connection):
    """How many statements that takes for messages of no flow."""
    store.offer_many([message(queue="default") for _ in range(2)])
    asked = ended_by(store, connection)
    Message.objects.all().delete()
    return len(asked)


@pytest.mark.parametrize(("steps", "members"), [(1, 1), (10, 1), (10, 3)])
def test_a_release_takes_as_many_statements_for_any_number_of_steps(store, connection, alias, plain, steps, members):
    """The figures of docs/flows.md. SQLite stores each message in a statement of its own."""
    flow = Graph("released")
    flow.add("first", tasks.nothing.s())
    for number in range(steps):
        flow.add(str(number), group([tasks.nothing.s()] * members) if members > 1 else tasks.nothing.s(), after="first")
    flow.enqueue()
    most = {"postgresql": 13, "mariadb": 13, "default": 9 + steps * members}
    assert len(ended_by(store, connection)) - plain <= most[alias]
    assert Message.objects.count() == steps * members


def test_the_end_of_a_flow_takes_as_many_statements(store, connection, alias, plain):
    flow = chain(tasks.nothing.s()).enqueue()
    assert len(ended_by(store, connection)) - plain <= {"postgresql": 10, "mariadb": 9, "default": 7}[alias]
    assert flow.state == "succeeded"
