"""SQLite: a lease that ran out is not claimed while its worker is known to live: its keeper may wait for the file."""

from __future__ import annotations

import os
import signal

import pytest

from delayedq.store.protocol import BARE, ClaimRequest, Lane
from delayedq.store.sqlite import database
from delayedq.store.sqlite.database import UNRENEWED
from delayedq.worker.keeper import worker_name
from tests.store.given import LANE, LEASE, NOW, at, claim, keys, message
from tests.worker.conftest import eventually

pytestmark = pytest.mark.parametrize("alias", ["sqlite"], indirect=True)


@pytest.fixture(params=["", "mail"], ids=["unnamed", "named"])
def worker(asleep, request):
    """The name of a worker whose process lives."""
    return worker_name(asleep, request.param)


def hold(store, worker, queue="mail"):
    store.at(NOW).offer(message("a", queue=queue))
    assert claim(store, lanes=[Lane(queue, 0)], worker=worker)


def claimed(store, seconds=61, lane=LANE):
    """What another worker gets when that much time has passed since the claim, and what its poller sees."""
    later = store.at(at(seconds))
    seen = [(head.queue, head.priority) for head in later.scan()]
    assert seen == [(head.queue, head.priority) for head in later.peek([lane])]
    round_trip = later.settle_and_claim([], ClaimRequest([lane], 9, LEASE, "another"))
    assert bool(seen) is bool(round_trip.claimed)
    return keys(round_trip.claimed)


def test_the_lease_of_a_worker_that_lives_is_not_claimed_when_it_has_run_out(store, worker):
    hold(store, worker)
    assert claimed(store) == []


def test_it_is_claimed_when_the_worker_was_killed(store, worker, asleep):
    hold(store, worker)
    os.kill(asleep, signal.SIGKILL)
    eventually(lambda: not database.lives(worker))
    assert claimed(store) == ["a"]


def test_it_is_claimed_when_the_worker_is_stopped(store, worker, asleep):
    hold(store, worker)
    os.kill(asleep, signal.SIGSTOP)
    eventually(lambda: not database.lives(worker))
    assert claimed(store) == ["a"]


def test_it_is_claimed_when_nothing_has_renewed_it_for_long(store, worker):
    hold(store, worker)
    over = LEASE + UNRENEWED
    assert claimed(store, over.total_seconds() - 0.001) == []
    assert claimed(store, over.total_seconds()) == ["a"]


@pytest.mark.parametrize("name", ["elsewhere.example:{}", "{}", "test", "", "{}:"])
def test_of_workers_that_are_not_of_this_host_nothing_is_known(store, asleep, name):
    hold(store, name.format(asleep))
    assert claimed(store) == ["a"]


def test_consumers_of_bare_queues_have_no_keeper(store, worker):
    queue = f"mail{BARE}text"
    hold(store, worker, queue)
    assert claimed(store, lane=Lane(queue, 0)) == ["a"]


def test_what_is_not_leased_is_claimed_beside_it(store, worker):
    hold(store, worker)
    store.at(NOW).offer_many([message("b"), message("c")])
    assert claimed(store) == ["b", "c"]


def test_no_process_is_looked_for_unless_a_lease_has_run_out(store, worker, monkeypatch):
    monkeypatch.setattr(database, "find", lambda pid: pytest.fail(f"It asked for {pid}."))
    hold(store, worker)
    store.at(NOW).offer_many([message("b"), message("c")])
    assert claimed(store, 59) == ["b", "c"]
