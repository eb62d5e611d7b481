"""Flows that ended long ago are deleted, but not what a retry or an operator has just brought back."""

from __future__ import annotations

import re
from contextlib import contextmanager
from datetime import timedelta
from threading import Thread

import pytest
from django.db import connections, transaction
from django.test.utils import CaptureQueriesContext

from delayedq import Flow as Graph
from delayedq import chain, group
from delayedq.exceptions import InvalidFlow
from delayedq.flows import sweeping
from delayedq.flows.sweeping import forget_flows
from delayedq.models import FinishedMessage, Flow, FlowMember, FlowStep, Message
from delayedq.store import operator_store
from delayedq.store.operator import Revival
from tests.app import tasks
from tests.flows.given import fails, run, states

OLD = timedelta(days=-1)


def failed_flow():
    result = chain(fails("bad"), tasks.nothing.si()).enqueue()
    run()
    tasks.bodies["bad"] = lambda: 1
    return result


def cancelled_flow():
    result = chain(tasks.nothing.s(), tasks.nothing.s()).enqueue()
    result.cancel()
    return result


def elsewhere(alias, work):
    """Do this on a connection of its own, and return what it raised."""
    raised = []

    def body():
        try:
            work()
        except InvalidFlow as error:
            raised.append(error)
        finally:
            connections[alias].close()

    thread = Thread(target=body, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    return raised


@contextmanager
def meanwhile(alias, which, work):
    """Somebody else does this once, as soon as a statement that `which` accepts has been executed."""
    done = []

    def watch(execute, sql, params, many, context):
        result = execute(sql, params, many, context)
        if not done and which(sql):
            done.append(elsewhere(alias, work))
        return result

    with connections[alias].execute_wrapper(watch):
        yield done
    assert done


def reads(model):
    """A statement that reads rows of this table, and locks none."""
    start = f"FROM {model._meta.db_table}"
    return lambda sql: sql.startswith("SELECT") and start in sql.replace('"', "").replace("`", "")


@pytest.mark.parametrize("ended", [failed_flow, cancelled_flow])
def test_a_flow_that_is_retried_as_it_is_about_to_be_deleted_stays(alias, store, ended):
    result = ended()
    with meanwhile(alias, reads(Flow), result.retry) as retried:
        assert forget_flows(store, OLD) == (0, None)
    assert retried == [[]]
    assert (FlowStep.objects.count(), FlowMember.objects.filter(outcome=None).count()) == (2, 1)
    assert run() == ["succeeded"] * 2
    assert result.state == "succeeded"


def test_a_flow_of_which_a_part_is_deleted_is_not_retried(alias, store, monkeypatch):
    monkeypatch.setattr(sweeping, "CHUNK", 2)
    result = group([tasks.nothing.s()] * 5).enqueue()
    result.cancel()
    parts = []

    def is_second_part(sql):
        parts.append(reads(FlowMember)(sql) and "LIMIT 2" in sql)
        return parts.count(True) == 2

    with meanwhile(alias, is_second_part, result.retry) as retried:
        assert forget_flows(store, OLD) == (1, None)
    assert "is being deleted" in str(retried[0][0])
    assert not any(model.objects.exists() for model in (Message, Flow, FlowStep, FlowMember))


def test_nothing_waits_for_a_retry_in_a_long_transaction(alias, store):
    if alias == "default":  # one writer at a time: all wait for it
        return
    result = cancelled_flow()
    with transaction.atomic(using=alias):
        result.retry()
        assert elsewhere(alias, lambda: forget_flows(store, OLD)) == []
    assert run() == ["succeeded"] * 2
    assert result.state == "succeeded"


@pytest.mark.parametrize("outcome", ["failed", "cancelled"])
def test_a_flow_stays_as_long_as_a_message_of_it_lives_again(alias, store, outcome):
    result = {"failed": failed_flow, "cancelled": cancelled_flow}[outcome]()
    (ended,) = FinishedMessage.objects.filter(outcome=outcome).values_list("id", flat=True)
    operator_store(alias).revive([Revival(ended, store.now())], outcome)
    assert forget_flows(store, OLD) == (0, None)
    run()
    assert next(iter(states(result).values())) == "succeeded"


def test_what_is_left_of_a_flow_is_deleted_by_the_next_look(alias, store):
    result = cancelled_flow()
    FlowStep.objects.all().delete()  # as a process leaves it that is killed then
    assert result.steps() == []
    assert forget_flows(store, OLD) == (1, None)
    assert not any(model.objects.exists() for model in (Flow, FlowMember))


@pytest.fixture
def small(monkeypatch):
    """Limits that a few members reach."""
    for module, limit in ((sweeping, "CHUNK"), (sweeping, "READ"), (sweeping, "READ")):
        monkeypatch.setattr(module, limit, 2)


def looks(store, connection):
    """What each look of a round has removed; none of their statements takes more than the limits."""
    removed, going = [], None
    while not removed or going is not None:
        with CaptureQueriesContext(connection) as captured:
            page = forget_flows(store, OLD, going)
        for one in captured:
            assert all(listed.count(",") < 2 for listed in re.findall(r" IN \(([^()]*)\)", one["sql"])), one
        removed.append(page.removed)
        going = page.reached
    return removed


def test_a_large_flow_is_deleted_in_looks_between_which_leases_are_renewed(store, connection, small):
    group([tasks.nothing.s()] * 9).enqueue().cancel()
    # In four of them members are read, and each of the others removes a part.
    assert looks(store, connection) == [0] * 4 + [1] * 5
    assert not any(model.objects.exists() for model in (Flow, FlowStep, FlowMember))


@pytest.mark.parametrize("bad", [0, 8])
def test_a_large_flow_with_a_dead_letter_stays_wherever_that_is(store, connection, small, bad):
    group([fails("bad") if number == bad else tasks.nothing.s() for number in range(9)]).enqueue()
    chain(tasks.nothing.s()).enqueue()
    run()
    assert sum(looks(store, connection)) == 1
    assert FlowMember.objects.count() == 9


def test_a_large_flow_of_many_steps_is_looked_at_too(store, connection, small):
    flow = Graph("many", policy="continue")
    for number in range(5):
        flow.add(str(number), fails("bad") if number == 4 else tasks.nothing.s())
    flow.enqueue()
    run()
    assert sum(looks(store, connection)) == 0
    FinishedMessage.objects.filter(outcome="failed").delete()
    assert sum(looks(store, connection)) >= 1
    assert not any(model.objects.exists() for model in (Flow, FlowStep, FlowMember))
