"""A sweep in the lease keeper takes a limited time, however many flows and messages there are; on every database."""

from __future__ import annotations

import json
import re
import time
from datetime import timedelta
from threading import Thread

import pytest
from django.db import OperationalError, connections, transaction
from django.test.utils import CaptureQueriesContext

from delayedq import chain, group
from delayedq.flows import sweeping
from delayedq.flows.sweeping import SILENCE, Sweeping, sweep
from delayedq.models import Flow, FlowMember, FlowStep, Message
from delayedq.results import cancelling
from delayedq.worker import keeper as lease_keeper
from delayedq.worker.keeper import LeaseKeeper
from tests.app import tasks

HOUR = timedelta(hours=1)
OVER = 0.0


@pytest.fixture
def small(monkeypatch):
    """Limits that a few rows reach."""
    for limit in ("CHUNK", "READ", "FLOWS"):
        monkeypatch.setattr(sweeping, limit, 2)


def statements(alias, work):
    with CaptureQueriesContext(connections[alias]) as captured:
        work()
    return [one["sql"] for one in captured]


def late(store):
    return store.at(store.now() + 2 * HOUR)


def one_round(store):
    """How many pauses there were in it."""
    round_ = Sweeping(store, patience=0.0)
    pauses = 0
    round_.go_on(OVER)
    while round_._going:
        round_.go_on(OVER)
        pauses += 1
    return pauses


def test_a_stopped_flow_ends_in_as_many_steps_as_it_has_chunks(alias, store, small):
    """Each of them cancels messages and records their ends: none is looked at again."""
    result = group([tasks.nothing.s()] * 9).enqueue(deadline=HOUR)
    left = []
    keeper = Sweeping(late(store), patience=0.0)
    while result.state == "running":
        keeper.go_on(OVER)
        left.append((Message.objects.count(), FlowMember.objects.filter(outcome=None).count()))
    assert sorted(set(left), reverse=True) == [(number, number) for number in (9, 7, 5, 3, 1, 0)]
    assert len(left) <= 12  # the round has every other one
    assert result.state == "failed"


def test_what_a_keeper_has_time_for_is_done_in_one_sweep(alias, store, small):
    result = group([tasks.nothing.s()] * 9).enqueue(deadline=HOUR)
    Sweeping(late(store), patience=0.0).go_on(time.monotonic() + 3_600)
    assert result.state == "failed"


def test_messages_that_were_deleted_are_found_in_parts(alias, store, small):
    result = group([tasks.nothing.s()] * 9).enqueue()
    Message.objects.order_by("id")[:5].first().delete()
    Message.objects.order_by("-id")[:5].first().delete()
    sweep(store)
    assert FlowMember.objects.filter(outcome="cancelled").count() == 2
    assert result.state == "running"
    Message.objects.all().delete()
    sweep(store)
    assert result.state == "cancelled"


def test_a_sweep_that_may_pause_waits_for_no_locked_message(alias, store, monkeypatch):
    tried = []
    monkeypatch.setattr(cancelling, "_try", lambda store, ids: tried.append(ids) or {})
    group([tasks.nothing.s()] * 2).enqueue(deadline=HOUR)
    Sweeping(late(store), patience=0.0).go_on(time.monotonic() + 3_600)
    assert [len(ids) for ids in tried] == [2]


def test_no_step_of_a_sweep_reads_more_than_its_limits(alias, store, small):
    for number in range(1, 6):
        group([tasks.nothing.s()] * number).enqueue()
    keeper = Sweeping(store, patience=0.0)
    most = 0
    keeper.go_on(OVER)
    while keeper._going:
        asked = statements(alias, lambda: keeper.go_on(OVER))
        most = max(most, len(asked))
        for one in asked:
            assert all(listed.count(",") < 2 for listed in re.findall(r" IN \(([^()]*)\)", one)), one
    assert most <= 6


def test_a_round_costs_the_same_statements_for_each_page_of_flows(alias, store, small):
    counts = []
    for _ in range(3):
        for _ in range(2):
            chain(tasks.nothing.s()).enqueue()
        counts.append(len(statements(alias, lambda: sweep(store))))
    assert counts[0] <= 6  # PostgreSQL is asked for the time, too
    assert counts[2] - counts[1] == counts[1] - counts[0] <= 5


def test_a_hundred_small_flows_are_one_page(alias, store):
    for _ in range(3):
        chain(tasks.nothing.s()).enqueue()
    assert len(statements(alias, lambda: sweep(store))) <= 6


def test_a_sweep_without_flows_is_one_statement(alias, store):
    assert len(statements(alias, lambda: sweep(store))) == 1


def test_a_keeper_that_pauses_reaches_all_flows(alias, store, small):
    flows = [chain(tasks.nothing.s()).enqueue() for _ in range(7)]
    keeper = Sweeping(store, patience=0.0)
    keeper.go_on(OVER)
    keeper.go_on(OVER)
    Message.objects.all().delete()
    one_round_ = one_round(store)
    assert [flow.state for flow in flows] == ["cancelled"] * 7
    assert one_round_ >= 4


def test_flows_have_their_turn_beside_a_large_one_that_is_stopped(alias, store, small):
    """Also in the rounds that begin while it is being stopped."""
    large = group([tasks.nothing.s()] * 81).enqueue(deadline=HOUR)
    keeper = Sweeping(late(store), patience=0.0)
    for _ in range(2):
        others = [chain(tasks.nothing.s()).enqueue() for _ in range(3)]
        ids = FlowMember.objects.filter(step_id__in=FlowStep.objects.exclude(flow_id=large.id).values("id"))
        Message.objects.filter(id__in=list(ids.values_list("message_id", flat=True))).delete()
        while "running" in {flow.state for flow in others}:
            keeper.go_on(OVER)
        while sweeping._ROUND in keeper._going:
            keeper.go_on(OVER)
        assert large.state == "running"
    keeper.go_on()
    assert large.state == "failed"


def test_a_sweep_goes_on_behind_flows_that_it_failed_at(alias, store, small, monkeypatch):
    flows = [chain(tasks.nothing.s()).enqueue() for _ in range(4)]
    Message.objects.all().delete()
    wrapped = sweeping._going_steps

    def fails(store, ids):
        if flows[0].id in ids:
            raise OperationalError("locked")
        return wrapped(store, ids)

    monkeypatch.setattr(sweeping, "_going_steps", fails)
    keeper = Sweeping(store)
    with pytest.raises(OperationalError):
        keeper.go_on()
    keeper.go_on()
    assert [flow.state for flow in flows] == ["running"] * 2 + ["cancelled"] * 2


def broken(result):
    """A flow whose row somebody has changed by hand, so that it can't be judged."""
    FlowStep.objects.filter(flow_id=result.id).update(after="[1")
    return result


@pytest.mark.parametrize("which", [0, 4, 6])
def test_a_flow_that_fails_is_left_out_and_named_and_the_others_go_on(alias, store, caplog, which):
    flows = [chain(tasks.nothing.s()).enqueue() for _ in range(7)]
    bad = broken(flows.pop(which))
    Message.objects.all().delete()
    sweep(store)
    assert [flow.state for flow in flows] == ["cancelled"] * 6
    assert bad.state == "running"
    named = [one.message for one in caplog.records if one.exc_info]
    assert named == [f"Flow {bad.id} is left as it is: the look at it has failed."]
    FlowStep.objects.filter(flow_id=bad.id).update(after="[]")
    sweep(store)
    assert bad.state == "cancelled"


def test_a_flow_that_fails_as_it_is_stopped_holds_up_nothing(alias, store, caplog):
    flows = [chain(tasks.nothing.s()).enqueue(deadline=HOUR) for _ in range(3)]
    broken(flows[1])
    sweep(late(store))
    assert [flow.state for flow in flows] == ["failed", "running", "failed"]
    assert f"Flow {flows[1].id} was not stopped." in caplog.text
    assert not Message.objects.exists()


@pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
def test_a_round_reads_few_flows_more_than_are_open(alias, store, connection, small):
    """Open flows between many that have ended, as after days of work: neither those nor the open ones are passed."""
    times = {"created_at": store.now(), "name": "many"}
    ended = times | {"ended_at": store.now(), "outcome": "succeeded"}
    Flow.objects.bulk_create(Flow(**(ended if number % 100 else times)) for number in range(4_000))
    connection.cursor().execute("ANALYZE delayedq_flow")
    asked = [one for one in statements(alias, Sweeping(store, patience=0.0).go_on) if _reads_flows(one)]
    assert len(asked) >= 20
    assert sum(rows_read(connection, one) for one in asked) <= 6 * 40


def _reads_flows(sql):
    return sql.startswith("SELECT") and ' FROM "delayedq_flow" ' in sql and "FOR UPDATE" not in sql


def rows_read(connection, sql):
    """Those of flows that the statement looks at, whether it returns them or not."""
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}")
        (answer,) = cursor.fetchone()
    nodes, read = [(json.loads(answer) if isinstance(answer, str) else answer)[0]["Plan"]], 0
    while nodes:
        node = nodes.pop()
        nodes += node.get("Plans", [])
        if node.get("Relation Name") == "delayedq_flow":
            read += (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
    return read


def test_a_member_that_ends_or_lives_again_as_it_is_looked_at_is_left(alias, store):
    group([tasks.nothing.s()] * 2).enqueue()
    first, second = FlowMember.objects.order_by("message_id")
    Message.objects.filter(id=first.message_id).delete()
    FlowMember.objects.filter(message_id=first.message_id).update(outcome="succeeded")  # it has ended meanwhile
    sweeping._end_those_gone(store, {first.message_id: first.step_id, second.message_id: second.step_id})
    outcomes = FlowMember.objects.order_by("message_id").values_list("outcome", flat=True)
    assert list(outcomes) == ["succeeded", None]


def test_a_flow_that_somebody_has_locked_does_not_hold_up_the_sweep(alias, store):
    """Who stored it has died, and its row is locked by a long transaction: it is stopped when that has ended."""
    if alias == "default":
        return
    result = chain(tasks.nothing.s()).enqueue()
    FlowStep.objects.update(state="filling", released_at=store.now() - 2 * SILENCE)
    swept = Thread(target=_sweep_and_close, args=(store,), daemon=True)
    with transaction.atomic(using=alias):
        result.cancel()
        swept.start()
        swept.join(20)
        assert not swept.is_alive()
        transaction.set_rollback(True, using=alias)
    assert result.state == "running"
    sweep(store)
    assert result.state == "cancelled"
    assert Flow.objects.get().stopped_at is not None


def _sweep_and_close(store):
    Sweeping(store, patience=0.0).go_on()
    connections[store.alias].close()


def test_the_lease_keeper_sweeps_for_a_turn(alias, store, monkeypatch):
    given = []
    monkeypatch.setattr(lease_keeper.time, "monotonic", lambda: 1000.0)
    keeper = object.__new__(LeaseKeeper)
    keeper._store, keeper._sweep_at = store, 0.0
    keeper._sweeping = Sweeping(store)
    monkeypatch.setattr(keeper._sweeping, "go_on", given.append)
    keeper._sweep()
    keeper._sweep()
    assert given == [1000.0 + lease_keeper.TURN]
