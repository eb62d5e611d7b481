"""What runs and what was lost is found by the worker registry and the leases, however long the backlog is."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from delayedq.models import Message
from delayedq.operations import browsing, counting, workers
from delayedq.operations.browsing import Selection
from delayedq.operations.counting import Count, count_live, counted_live, leased_page
from delayedq.sql.states import MessageState
from delayedq.store import worker_registry
from delayedq.store.protocol import ClaimRequest, Lane
from tests.admin.given import offer, run
from tests.store.given import LEASE, message
from tests.store.test_worker_registry import worker


@pytest.fixture
def backlog(store, monkeypatch):
    """Far more scheduled and due than a look reads."""
    monkeypatch.setattr(browsing, "DEPTH", 60)
    for number in range(120):
        offer(store, f"{number}", seconds=number - 60)


def selected(store, state, **asked):
    return Selection(as_of=store.now(), state=state, **asked)


def keys(found):
    return [message.key for message in found[0].rows]


def test_what_runs_is_found_in_one_page_before_a_long_backlog(store, backlog):
    for _ in range(3):
        run(store)
    found = leased_page(store, selected(store, MessageState.RUNNING))
    assert (keys(found), found[1]) == (["0", "1", "2"], 3)
    assert found[0].after is None


def test_what_runs_deep_in_the_backlog_is_found_by_the_registry(store, backlog):
    deep = Message.objects.get(key="119")
    Message.objects.filter(pk=deep.pk).update(
        lease_token=7, leased_until=store.now() + LEASE, leased_by="w1", claimed_at=store.now()
    )
    assert keys(leased_page(store, selected(store, MessageState.RUNNING))) == []
    worker_registry(store.alias).heartbeat([worker("w1", running=f"[{deep.pk}, 987654321]")])
    assert keys(leased_page(store, selected(store, MessageState.RUNNING))) == ["119"]
    assert keys(leased_page(store, selected(store, MessageState.RUNNING, queue="other"))) == []
    assert keys(leased_page(store, selected(store, MessageState.LOST))) == []
    assert [row.key for row in counted_live(store, selected(store, MessageState.RUNNING))[0].rows] == ["119"]


def test_what_a_silent_worker_lost_is_found(store, backlog):
    offer(store, "lost", queue="lost", seconds=-600)
    then = store.now() - timedelta(minutes=5)
    store.at(then).claim(ClaimRequest([Lane("lost", 0)], 1, LEASE, "w1"))
    assert keys(leased_page(store, selected(store, MessageState.LOST))) == ["lost"]
    assert keys(leased_page(store, selected(store, MessageState.RUNNING))) == []


def test_many_come_in_pages(store, monkeypatch):
    monkeypatch.setattr(counting, "PAGE", 2)
    for number in range(5):
        offer(store, f"{number}", seconds=number - 60)
    store.claim(ClaimRequest([Lane("mail", 0)], 5, LEASE, "w1"))
    page, number, is_exact = leased_page(store, selected(store, MessageState.RUNNING))
    assert ([row.key for row in page.rows], number, is_exact) == (["0", "1"], 5, True)
    page, number, _ = leased_page(store, selected(store, MessageState.RUNNING), page.after)
    assert ([row.key for row in page.rows], number) == (["2", "3"], 5)
    page = leased_page(store, selected(store, MessageState.RUNNING), page.after)[0]
    assert ([row.key for row in page.rows], page.after) == (["4"], None)


def hold(store, number, queue="mail"):
    """Claim so many messages; workers of 8 threads have them in the registry. Returns their ids."""
    store.offer_many([message(f"{queue} {n}", queue=queue) for n in range(number)])
    ids = [claimed.id for claimed in store.claim(ClaimRequest([Lane(queue, 0)], number, LEASE, "w1"))]
    some = [ids[n : n + 8] for n in range(0, number, 8)]
    worker_registry(store.alias).heartbeat(
        [worker(f"{queue}-{n:03}", held=8, threads=8, running=json.dumps(held)) for n, held in enumerate(some)]
    )
    return ids


def all_pages(store, state, **asked):
    page, number, is_exact = leased_page(store, selected(store, state, **asked))
    found = [row.pk for row in page.rows]
    while page.after is not None:
        page = leased_page(store, selected(store, state, **asked), page.after)[0]
        found += [row.pk for row in page.rows]
    return found, number, is_exact


def test_all_that_runs_is_on_a_page_however_much_it_is(store, monkeypatch):
    monkeypatch.setattr(counting, "PAGE", 400)
    ids = hold(store, 1_200)
    found, number, is_exact = all_pages(store, MessageState.RUNNING)
    assert (sorted(found), number, is_exact) == (sorted(ids), 1_200, True)


def test_what_workers_ran_is_looked_up_in_parts_each_with_the_filter(store, backlog, monkeypatch):
    monkeypatch.setattr(counting, "AT_ONCE", 7)
    hold(store, 20, queue="a")
    ids = hold(store, 20, queue="b")
    monkeypatch.setattr(browsing, "PAGE", 1)
    monkeypatch.setattr(browsing, "DEPTH", 1)
    assert sorted(all_pages(store, MessageState.RUNNING, queue="b")[0]) == sorted(ids)


def test_more_than_is_looked_up_is_at_least_so_many(store, monkeypatch):
    monkeypatch.setattr(workers, "MOST_RUNNING", 10)
    hold(store, 20)
    assert leased_page(store, selected(store, MessageState.RUNNING))[1:] == (20, False)
    monkeypatch.setattr(workers, "MOST_RUNNING", 20)
    assert leased_page(store, selected(store, MessageState.RUNNING))[1:] == (20, True)


def test_the_count_is_exact_if_all_that_is_due_was_looked_at(store, backlog):
    run(store)
    assert count_live(store, selected(store, MessageState.RUNNING)) == Count(1, exact=None)
    assert count_live(store, selected(store, MessageState.RUNNING, queue="nothing")) == Count(0, exact=True)
