"""Keyset scans: messages in the order of their index, and a limited number of its rows."""

from __future__ import annotations

import pytest

from delayedq.models import FinishedMessage, Message
from delayedq.sql.states import MessageState
from delayedq.store import operator_store
from delayedq.store.operator import EndedQuery, KeysetPage, LiveQuery, Position, merged
from delayedq.store.protocol import Lane
from tests.store.given import KIND, LEASE, NOW, at, claim, message, put_back, retry, settle, succeed


def keys(keyset_scan):
    names = dict(Message.objects.values_list("id", "key"))
    return [names[position.id] for position in keyset_scan.found]


def keyset_scan(store, after=None, *, state=None, kind=None, **options):
    arguments = {} if after is None else {"after": after}
    asked = LiveQuery(state, kind)
    return operator_store(store.alias).at(NOW).keyset_scan(store.lanes(), **arguments, **options, asked=asked)


def test_messages_of_all_lanes_come_by_due_time(store):
    for second, key in enumerate("dacbe"):
        store.at(NOW).offer(message(key, queue=f"q{second % 2}", priority=second % 3, scheduled_at=at(second)))

    assert keys(keyset_scan(store)) == ["d", "a", "c", "b", "e"]
    assert keyset_scan(store).reached is None


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
def test_pages_show_each_message_once(store, limit):
    store.at(NOW).offer_many(
        [message(f"{n:02}", queue=f"q{n % 3}", scheduled_at=at(n // 7)) for n in range(20)]
    )  # some are due at the same time
    pages, position = [], None
    while not pages or position is not None:
        page = keyset_scan(store, position, limit=limit)
        pages += page.found
        assert len(page.found) <= limit
        position = page.reached
    assert pages == sorted(pages)
    assert sorted(position.id for position in pages) == sorted(Message.objects.values_list("id", flat=True))


@pytest.mark.parametrize("budget", [3, 4, 100])
def test_a_keyset_scan_that_may_not_scan_further_says_how_far_it_came(store, budget):
    store.at(NOW).offer_many(
        [
            message(f"{n}", queue=f"q{n % 2}", kind="rare" if n in {7, 17} else KIND, scheduled_at=at(n))
            for n in range(20)
        ],
    )
    found, position, steps = [], None, 0
    while not steps or position is not None:
        page = keyset_scan(store, position, limit=5, budget=budget, kind="rare")
        found += keys(page)
        position, steps = page.reached, steps + 1
    assert found == ["7", "17"]
    assert (steps > 2) == (budget < 100)


def test_a_keyset_scan_ends_at_a_time(store):
    store.at(NOW).offer_many([message(f"{n}", scheduled_at=at(n)) for n in range(5)])
    assert keys(keyset_scan(store, Position(at(1), 0), until=at(3))) == ["1", "2", "3"]


@pytest.fixture
def states(store):
    """One message in each state, named by it."""
    store.at(NOW).offer(message("retrying", max_attempts=3, scheduled_at=at(-4)))
    settle(store, retry(*claim(store), delay=100.0))
    store.at(NOW).offer(message("lost", scheduled_at=at(-3)))
    claim(store, lease=-LEASE)
    store.at(NOW).offer(message("running", scheduled_at=at(-200)))
    claim(store)
    store.at(NOW).offer(message("due", scheduled_at=at(-1)))
    store.at(NOW).offer(message("scheduled", scheduled_at=at(1)))


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (MessageState.DUE, {"due", "lost"}),
        (MessageState.SCHEDULED, {"scheduled"}),
        (MessageState.RETRYING, {"retrying", "lost"}),
        (MessageState.RUNNING, {"running"}),
        (MessageState.LOST, {"lost"}),
    ],
)
def test_each_state_is_found(states, store, state, expected):
    assert set(keys(keyset_scan(store, state=state))) == expected


def test_history_comes_back_from_the_latest(store):
    for second, key in enumerate("abc"):
        store.at(NOW).offer(message(key))
        settle(store, succeed(*claim(store)), now=at(second))
    names = dict(FinishedMessage.objects.values_list("id", "key"))

    first = operator_store(store.alias).keyset_scan_history(limit=2)
    assert [names[position.id] for position in first.found] == ["c", "b"]
    rest = operator_store(store.alias).keyset_scan_history(first.reached, limit=2)
    assert ([names[position.id] for position in rest.found], rest.reached) == (["a"], None)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"outcome": "cancelled"}, {"a"}),
        ({"outcome": "failed"}, set()),
        ({"queue": "other"}, {"b"}),
        ({"kind": "kind"}, {"c"}),
        ({"since": at(1)}, {"b", "c"}),
    ],
)
def test_history_is_asked_by_outcome_queue_kind_and_time(store, asked, expected):
    asked = dict(asked)
    store.at(NOW).offer(message("a"))
    store.at(at(0)).unschedule(KIND, "a")
    store.at(NOW).offer(message("b", queue="other"))
    store.at(NOW).offer(message("c", kind="kind"))
    settle(store, *map(succeed, claim(store, 9, lanes=[Lane("mail", 0), Lane("other", 0)])), now=at(5))

    names = dict(FinishedMessage.objects.values_list("id", "key"))
    times = {"since": asked.pop("since")} if "since" in asked else {}
    page = operator_store(store.alias).keyset_scan_history(**times, asked=EndedQuery(**asked))
    assert {names[position.id] for position in page.found} == expected


def test_history_is_asked_by_key(store):
    for key in "aba":
        store.at(NOW).offer(message(key))
        settle(store, succeed(*claim(store)))
    assert len(operator_store(store.alias).keyset_scan_history(asked=EndedQuery(key="a")).found) == 2


def test_what_was_given_back_is_due(store):
    store.at(NOW).offer(message("a"))
    settle(store, put_back(*claim(store)))
    assert keys(keyset_scan(store, state=MessageState.DUE)) == ["a"]


# Merging


def p(second):
    return Position(at(second), second)


def test_keyset_scans_are_merged_as_far_as_the_shortest_came():
    short, long = KeysetPage([p(1), p(4)], p(4)), KeysetPage([p(2), p(3), p(5)], None)
    assert merged([short, long], 10) == KeysetPage([p(1), p(2), p(3), p(4)], p(4), [p(5)])
    assert merged([short, long], 4) == KeysetPage([p(1), p(2), p(3), p(4)], p(4), [])
    assert merged([short, long], 3) == KeysetPage([p(1), p(2), p(3)], p(3))
    assert merged([], 3) == KeysetPage([], None, [])
