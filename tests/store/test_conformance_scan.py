"""Scans and peeks: which lanes there are, and when each has something to do."""

from __future__ import annotations

from datetime import timedelta

import pytest

from delayedq.models import PausedQueue
from delayedq.store.protocol import Lane, LaneHead
from tests.store.given import KIND, NOW, at, claim, claim_one, message, retry, settle, succeed


def scan(store, queues=None, now=NOW):
    """By queue and priority."""
    return {(head.queue, head.priority): (head.first_at, head.due_in) for head in store.at(now).scan(queues)}


def test_an_empty_queue_has_no_lanes(store):
    assert store.at(NOW).scan() == []
    assert store.at(NOW).scan(["mail"]) == []


def test_each_queue_and_priority_is_a_lane_with_its_first_message(store):
    for priority, seconds in ((0, 7), (0, 5), (-3, 9.25), (100, -2)):
        store.at(NOW).offer(message(priority=priority, scheduled_at=at(seconds)))
    store.at(NOW).offer(message(queue="sms"))

    assert scan(store) == {
        ("mail", 0): (at(5), 5.0),
        ("mail", -3): (at(9.25), 9.25),
        ("mail", 100): (at(-2), -2.0),
        ("sms", 0): (NOW, 0.0),
    }


def test_a_lane_head_says_when_and_in_how_many_seconds(store):
    store.at(NOW).offer(message(scheduled_at=at(90.5)))

    assert store.at(at(30)).scan() == [LaneHead("mail", 0, at(90.5), 60.5)]
    assert store.at(at(100)).scan() == [LaneHead("mail", 0, at(90.5), -9.5)]


def test_without_now_it_scans_from_the_databases_clock(store):
    store.offer(message(scheduled_at=None))

    ((_, _, first_at, due_in),) = store.scan()
    assert -5 < due_in <= 0
    assert first_at.tzinfo is not None
    assert first_at - NOW > timedelta()


@pytest.mark.parametrize(
    ("queues", "seen"),
    [(["a"], "a"), (["a", "c"], "ac"), ({"b"}, "b"), (["none"], ""), ([], ""), (None, "abc")],
    ids=repr,
)
def test_a_scan_may_be_restricted_to_queues(store, queues, seen):
    store.at(NOW).offer_many([message(queue=queue, priority=priority) for queue in "abc" for priority in (0, 1)])

    lanes = [(head.queue, head.priority) for head in store.at(NOW).scan(queues)]
    assert sorted(lanes) == sorted((queue, priority) for queue in seen for priority in (0, 1))


def test_many_lanes_are_all_seen(store):
    wanted = {(f"queue-{number % 10}", number - 50) for number in range(100)}
    store.at(NOW).offer_many([message(queue=queue, priority=priority) for queue, priority in wanted for _ in range(3)])

    assert scan(store).keys() == wanted


def test_leased_messages_are_not_seen_until_their_lease_ends(store):
    for seconds in (0, 1, 300):
        store.at(NOW).offer(message(scheduled_at=at(seconds)))
    claim(store, 2, now=at(1))

    assert scan(store, now=at(2)) == {("mail", 0): (at(300), 298.0)}
    assert scan(store, now=at(61)) == {("mail", 0): (NOW, -61.0)}


def test_a_lane_in_which_everything_is_leased_shows_nothing(store):
    store.at(NOW).offer(message())
    claim_one(store)

    assert scan(store) == {}


def test_what_ended_is_not_seen_and_what_was_given_back_is(store):
    store.at(NOW).offer_many([message("a"), message("b", queue="sms")])
    a, b = claim(store, 2, lanes=[Lane("mail", 0), Lane("sms", 0)])
    settle(store, succeed(a), retry(b, delay=20))

    assert scan(store) == {("sms", 0): (at(20), 20.0)}


def test_a_scan_finds_what_a_watermark_hides(store):
    store.at(NOW).offer(message("late commit", scheduled_at=at(-10)))

    assert claim(store, lanes=[Lane("mail", 0, at(-1))]) == []
    ((_, _, first_at, _),) = store.at(NOW).scan()
    assert claim_one(store, lanes=[Lane("mail", 0, first_at)]).key == "late commit"


def test_a_scan_ahead_finds_new_lanes_and_passes_over_what_known_ones_have_before_their_watermarks(store):
    for queue, priority, seconds in (("b", 0, -9), ("b", 0, 3), ("a", 7, 1), ("b", -1, 0), ("b", 1, 2), ("c", 0, 4)):
        store.at(NOW).offer(message(queue=queue, priority=priority, scheduled_at=at(seconds)))
    known = [Lane("gone", 0, NOW), Lane("b", 0, at(-1)), Lane("", 5, NOW), Lane("c", 0, NOW)]

    found = {(head.queue, head.priority): head.due_in for head in store.at(NOW).scan_ahead(known)}
    assert found == {("a", 7): 1.0, ("b", -1): 0.0, ("b", 0): 3.0, ("b", 1): 2.0, ("c", 0): 4.0}


@pytest.mark.parametrize("known", [[], [Lane("b", 0, at(-60))]], ids=["none known", "one known"])
def test_a_scan_ahead_sees_what_a_scan_sees_where_nothing_lies_before_the_watermarks(store, known):
    store.at(NOW).offer_many([message(queue=queue, priority=number) for queue in "abcd" for number in (0, 1)])
    PausedQueue.objects.using(store.alias).create(queue="c", paused_at=NOW)
    for queues in (None, ["a", "b", "none"], []):
        assert sorted(store.at(NOW).scan_ahead(known, queues)) == sorted(store.at(NOW).scan(queues))


def test_a_scan_changes_nothing(store):
    store.at(NOW).offer(message("a"))
    for _ in range(3):
        store.at(NOW).scan()

    assert claim_one(store).attempt == 1


# History


def test_finished_tells_which_messages_have_ended(store):
    ids = {key: store.at(NOW).offer(message(key)).id for key in "abc"}
    settle(store, succeed(claim_one(store)))
    store.at(NOW).unschedule(KIND, "b")

    assert store.in_history([*ids.values(), 10**12]) == {ids["a"], ids["b"]}
    assert store.in_history(iter([ids["c"]])) == set()
    assert store.in_history([]) == set()
