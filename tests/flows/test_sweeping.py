"""A sweep in the lease keeper takes a limited time, however many messages are to be cancelled; on every database."""

from __future__ import annotations

import time
from datetime import timedelta

from django.db import connections
from django.test.utils import CaptureQueriesContext

from delayedq import cancelling, chain, group
from delayedq.flows import sweeping
from delayedq.flows.sweeping import sweep
from delayedq.models import Message
from delayedq.worker import lease_keeper
from delayedq.worker.lease_keeper import LeaseKeeper
from tests.app import tasks

HOUR = timedelta(hours=1)


def test_a_sweep_cancels_as_many_as_it_has_time_for(alias, store, monkeypatch):
    monkeypatch.setattr(sweeping, "CHUNK", 2)
    result = group([tasks.nothing.s()] * 5).enqueue(deadline=HOUR)
    later = store.at(store.now() + 2 * HOUR)
    for left in (3, 1, 0):
        sweep(later, pause_at=0.0)
        assert Message.objects.count() == left
    for _ in range(3):
        sweep(later, pause_at=0.0)
    assert result.state == "failed"


def test_a_sweep_that_may_pause_waits_for_no_locked_message(alias, store, monkeypatch):
    tried = []
    monkeypatch.setattr(cancelling, "_try", lambda store, ids: tried.append(ids) or {})
    group([tasks.nothing.s()] * 2).enqueue(deadline=HOUR)
    sweep(store.at(store.now() + 2 * HOUR), pause_at=time.monotonic() + 3600)
    assert [len(ids) for ids in tried] == [2]


def test_a_stop_reads_no_more_members_than_it_cancels_at_once(alias, store, monkeypatch):
    monkeypatch.setattr(sweeping, "CHUNK", 2)
    group([tasks.nothing.s()] * 5).enqueue(deadline=HOUR)
    read = []
    wrapped = sweeping._open_members
    monkeypatch.setattr(sweeping, "_open_members", lambda *given: read.append(wrapped(*given)) or read[-1])
    later = store.at(store.now() + 2 * HOUR)
    sweep(later, pause_at=0.0)
    assert [len(ids) for ids in read] == [2]
    sweep(later)
    assert not Message.objects.exists()


def test_a_sweep_that_pauses_judges_no_stopped_flow_that_it_did_not_reach(alias, store, monkeypatch):
    flows = [chain(tasks.nothing.s()).enqueue(deadline=HOUR) for _ in range(4)]
    judged = []
    wrapped = sweeping._judge
    monkeypatch.setattr(sweeping, "_judge", lambda store, *given: judged.append(given) or wrapped(store, *given))
    later = store.at(store.now() + 2 * HOUR)
    for flow in flows:
        sweep(later, pause_at=0.0)
        assert judged.pop() == ((flow.id,), {flow.id})
    assert [flow.state for flow in flows] == ["failed"] * 4


def test_what_is_half_stored_is_asked_for_without_the_ids_of_all_flows(alias, store):
    asked = []
    for number in (1, 3):
        for _ in range(number):
            chain(tasks.nothing.s()).enqueue()
        with CaptureQueriesContext(connections[alias]) as captured:
            sweep(store)
        asked.append([one["sql"].count(",") for one in captured if "filling" in one["sql"] and "MAX(" in one["sql"]])
    assert asked[0] == asked[1]
    assert len(asked[0]) == 1


def test_the_lease_keeper_sweeps_for_a_turn(alias, store, monkeypatch):
    given = []
    monkeypatch.setattr(lease_keeper, "sweep", lambda store, pause_at: given.append(pause_at))
    monkeypatch.setattr(lease_keeper.time, "monotonic", lambda: 1000.0)
    keeper = object.__new__(LeaseKeeper)
    keeper._store, keeper._sweep_at = store, 0.0
    keeper._sweep()
    keeper._sweep()
    assert given == [1000.0 + lease_keeper.TURN]
