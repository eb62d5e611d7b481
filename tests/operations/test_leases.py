"""What runs and what was lost is found by the worker registry and the leases, however long the backlog is."""

from __future__ import annotations

from datetime import timedelta

import pytest

from delayedq.models import Message
from delayedq.operations import browsing, counting
from delayedq.operations.browsing import Selection
from delayedq.operations.counting import Count, count_live, counted_live, leased_page
from delayedq.sql.states import MessageState
from delayedq.store import worker_registry
from delayedq.store.protocol import ClaimRequest, Lane
from tests.admin.given import offer, run
from tests.store.given import LEASE
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


def test_the_count_is_exact_if_all_that_is_due_was_looked_at(store, backlog):
    run(store)
    assert count_live(store, selected(store, MessageState.RUNNING)) == Count(1, exact=None)
    assert count_live(store, selected(store, MessageState.RUNNING, queue="nothing")) == Count(0, exact=True)
