"""How much waits in queues: all their lanes together, up to a bound."""

from __future__ import annotations

from datetime import timedelta

import pytest

from delayedq.store import operator, operator_store
from delayedq.store.operator import Waiting
from tests.admin.given import offer, run


@pytest.mark.parametrize("lanes", [250, 2])
def test_lanes_of_a_queue_are_counted_together_up_to_a_bound(store, monkeypatch, lanes):
    monkeypatch.setattr(operator, "LANES", lanes)
    now = store.now()
    for priority in (-1, 0, 7):
        for seconds in (-60 - priority, -5, 3_600):
            offer(store, queue="mail", priority=priority, seconds=seconds, now=now)
    offer(store, queue="other", seconds=60, now=now)
    offer(store, queue="busy", seconds=-5, now=now)
    run(store, "busy")
    asked, all_lanes = operator_store(store.alias).at(now), store.lanes()
    oldest = now - timedelta(seconds=67)
    assert asked.waiting(all_lanes, 100) == {
        "mail": Waiting(6, 3, oldest),
        "other": Waiting(0, 1, None),
        "busy": Waiting(0, 0, None),
    }
    assert asked.waiting(all_lanes, 4)["mail"] == Waiting(4, 3, oldest)
    assert asked.waiting([], 4) == {}
