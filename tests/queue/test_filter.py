"""Consumers that want only some messages: the database chooses, the others stay for others."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from delayedq.exceptions import InvalidQueue, NotStorable, QueueClosed
from delayedq.models import Message
from delayedq.queue import TEXT
from tests.store.given import NOW, outcomes, together


def fill(queue, **payloads):
    for key, payload in payloads.items():
        queue.offer_or_update(key, payload, NOW)


def taken(view):
    return [envelope.key for envelope in view.try_poll_many(99)]


def test_a_filter_takes_what_matches_and_leaves_the_rest(queue):
    fill(queue, a={"region": "us"}, b={"region": "eu"}, c={"region": "eu", "n": 1}, d={"regions": "eu"}, e="eu")
    view = queue.filter(payload__region="eu")

    assert (list(view.browse()), view.count()) == ([{"region": "eu"}, {"region": "eu", "n": 1}], 2)
    assert view.try_poll().key == "b"
    assert taken(view) == ["c"]
    assert view.try_poll() is None
    assert taken(queue) == ["a", "d", "e"]


@pytest.mark.parametrize(
    ("wanted", "matching", "others"),
    [
        (3, [3], [3.0, "3", True, None, [3], {"b": 3}]),
        (1, [1], [True, "1"]),
        (True, [True], [1, "true", False]),
        (None, [None], [0, "null", False, ""]),
        ("", [""], [None, " "]),
        ('it\'s "so" \\ {1}', ['it\'s "so" \\ {1}'], ["it's"]),
        ("Grüße 世界 😀", ["Grüße 世界 😀"], ["Grüße 世界 😁", "\\u00fc"]),
        ("a\0b", ["a\0b"], ["a", "a\0c"]),
        ([1, {"b": 2}], [[1, {"b": 2}]], [[1], [{"b": 2}, 1]]),
        ({"b": 2, "c": 3}, [{"c": 3, "b": 2}], [{"b": 2}]),
        (2**53 + 1, [2**53 + 1], [2**53]),
        (2**64 + 1, [2**64 + 1], [2**64, 2**64 + 2, float(2**64)]),
        (datetime(2026, 1, 1, tzinfo=UTC), [datetime(2026, 1, 1, tzinfo=UTC)], ["2026-01-01T00:00:00+00:00"]),
    ],
    ids=[
        "int",
        "one",
        "true",
        "null",
        "empty",
        "quotes",
        "unicode",
        "nul",
        "list",
        "object",
        "large",
        "larger",
        "datetime",
    ],
)
def test_a_value_matches_the_same_value_alone(queue, wanted, matching, others):
    fill(queue, **{f"yes{n}": {"x": value} for n, value in enumerate(matching)})
    fill(queue, **{f"no{n}": {"x": value} for n, value in enumerate(others)})
    view = queue.filter(payload__x=wanted)

    assert len(list(view.browse())) == len(matching)
    assert taken(view) == [f"yes{n}" for n in range(len(matching))]


def test_a_path_leads_into_objects_and_all_conditions_must_be_met(queue):
    fill(queue, a={"a": {"b": 3}, "c": 1}, b={"a": {"b": 3}, "c": 2}, c={"a": {"b": 4}, "c": 1}, d={"b": 3, "c": 1})

    assert taken(queue.filter(payload__a__b=3, payload__c=1)) == ["a"]
    assert taken(queue.filter(payload__a__b=3).filter(payload__c=2)) == ["b"]


def test_a_filter_keeps_to_due_times_and_leases(queue, clock):
    queue.offer_or_update("later", {"x": 1}, NOW + timedelta(seconds=5))
    fill(queue, now={"x": 1})
    view = queue.filter(payload__x=1)

    assert taken(view) == ["now"]
    clock.move(5)
    assert taken(view) == ["later"]
    clock.move(56)
    assert taken(view) == ["now"]


def test_a_payload_full_of_escapes_stops_no_filter(queue):
    fill(queue, nul={"x": "\0"}, half={"x": "\ud83d"}, backslashes={"x": "\\\\u0000\\ud800\\"}, good={"x": 1})
    assert taken(queue.filter(payload__x=1)) == ["good"]
    assert taken(queue.filter(payload__x="\\\\u0000\\ud800\\")) == ["backslashes"]


def test_a_payload_that_is_no_json_stops_no_filter(queue):
    fill(queue, bad={"x": 1}, good={"x": 1})
    Message.objects.filter(key="bad").update(payload='{"x":1')

    assert taken(queue.filter(payload__x=1)) == ["good"]
    assert queue.try_poll() is None
    assert outcomes() == ["failed"]


def test_a_payload_that_is_no_json_in_another_queue_does_no_harm(make):
    texts, queue = make("contacts", TEXT), make()
    texts.offer_or_update("a", "no json", NOW)
    fill(queue, good={"x": 1})

    assert taken(queue.filter(payload__x=1)) == ["good"]
    assert texts.try_poll().payload == "no json"


def test_a_filtered_message_is_consumed_in_a_transaction_like_any_other(queue):
    fill(queue, bad={"x": 2}, a={"x": 1})
    Message.objects.filter(key="bad").update(payload="{")
    with queue.filter(payload__x=1).transaction() as envelope:
        assert envelope.key == "a"
    assert not queue.contains_message("a")


def test_consumers_with_filters_compete_for_what_both_want(queue):
    fill(queue, **{f"k{number}": {"x": number % 2} for number in range(40)})
    found = together(*[lambda: taken(queue.filter(payload__x=1))] * 4)

    found.append(taken(queue.filter(payload__x=1)))
    assert sorted(key for keys in found for key in keys) == sorted(f"k{number}" for number in range(1, 40, 2))


def test_closing_a_view_closes_the_queue(queue):
    queue.filter(payload__x=1).close()
    with pytest.raises(QueueClosed):
        queue.try_poll()


@pytest.mark.parametrize("name", ["region", "key", "payload", "payload__", "payload__a b", "payload__0", "payload__ä"])
def test_what_is_no_path_is_refused(queue, name):
    with pytest.raises(InvalidQueue, match="payload__name"):
        queue.filter(**{name: 1})


def test_a_filter_without_a_condition_or_with_a_value_that_is_no_json_is_refused(queue):
    with pytest.raises(InvalidQueue, match="at least one"):
        queue.filter()
    with pytest.raises(NotStorable, match="payload__x"):
        queue.filter(payload__x=object())


def test_only_json_can_be_filtered(make):
    with pytest.raises(InvalidQueue, match="JSON"):
        make("texts", TEXT).filter(payload__x=1)
