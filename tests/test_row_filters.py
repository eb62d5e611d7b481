"""Rows, live and ended, found by their metadata and their arguments, on every database."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from types import SimpleNamespace
from uuid import UUID

import pytest

from delayedq import DelayedQueue
from delayedq.exceptions import NotStorable
from delayedq.models import FinishedMessage, Message
from delayedq.queue.serializers import TEXT
from delayedq.testing import run_due
from tests.app import tasks

VALUES = [7, "7", "a", "A", "it's 7", True, False, None, 1.5, ["a", {"b": 1}], {"b": [1], "a": None}, {}, []]
TYPED = [
    UUID(int=7),
    Decimal("7.50"),
    datetime(2126, 3, 8, 6, 59, 30, 5, tzinfo=UTC),
    (1, "a"),
    {3, 4},
    "snowman ☃",
    'quote " and \\',
    {"grüße": "☃"},
]


def found(rows):
    return set(rows.values_list("pk", flat=True))


def enqueued(*args, **kwargs):
    return int(tasks.nothing.enqueue(*args, **kwargs).id)


@pytest.mark.parametrize("value", VALUES + TYPED[:5], ids=repr)
def test_arguments_by_value_and_type(alias, value):
    others = [other for other in VALUES + TYPED[:5] if repr(other) != repr(value)]
    for other in others:
        tasks.remind.enqueue(other)
        tasks.remind.enqueue(1, gate=other)
    expected = {int(tasks.remind.enqueue(value).id), int(tasks.remind.enqueue(flight_id=value, gate="B").id)}
    gates = {int(tasks.remind.enqueue("x", value).id), int(tasks.remind.enqueue("x", gate=value).id)}

    assert found(Message.objects.called_with(tasks.remind, flight_id=value)) == expected
    assert found(Message.objects.called_with(tasks.remind, gate=value)) == gates
    assert found(Message.objects.called_with(tasks.remind, flight_id="x", gate=value)) == gates


@pytest.mark.parametrize("value", TYPED[5:], ids=repr)
def test_arguments_with_characters_that_json_and_sql_quote(alias, value):
    expected = {int(tasks.remind.enqueue(value).id)}
    tasks.remind.enqueue("other")
    assert found(Message.objects.called_with(tasks.remind, flight_id=value)) == expected


def test_arguments_of_ended_messages_and_of_old_names(alias):
    tasks.remind.enqueue(7)
    run_due()
    assert FinishedMessage.objects.called_with(tasks.remind, flight_id=7).succeeded().count() == 1
    assert not FinishedMessage.objects.called_with(tasks.remind, flight_id=8).exists()
    renamed = SimpleNamespace(
        func=tasks.remind.func, takes_context=False, module_path="new.path", aliases=[tasks.remind.module_path]
    )
    assert FinishedMessage.objects.called_with(renamed, flight_id=7).count() == 1


def test_messages_that_are_no_calls_are_passed_over(alias):
    DelayedQueue("texts", serializer=TEXT).offer_or_update("key", "no { JSON")
    enqueued(7)
    tasks.remind.enqueue(7)
    assert Message.objects.called_with(tasks.remind, flight_id=7).count() == 1


@pytest.mark.parametrize("unreadable", ["a\x00b", "\ud83d", "\ude00 alone", "\ud83d\ud83d\ude00"])
def test_what_a_database_can_not_read_hides_no_other_row(alias, unreadable):
    tasks.remind.using(metadata={"batch": unreadable}).enqueue(unreadable)
    expected = {int(tasks.remind.using(metadata={"batch": "\U0001f600"}).enqueue("\U0001f600", gate="\\u0001").id)}
    assert found(Message.objects.called_with(tasks.remind, flight_id="\U0001f600")) == expected
    assert found(Message.objects.called_with(tasks.remind, gate="\\u0001")) == expected
    assert found(Message.objects.filter(metadata__batch="\U0001f600")) == expected


def test_names_and_values_that_no_call_can_have(alias):
    with pytest.raises(TypeError, match=r"takes flight_id, gate, not flight, gat\.$"):
        Message.objects.called_with(tasks.remind, gat=1, flight=2)
    with pytest.raises(NotStorable, match="argument 'gate'"):
        Message.objects.called_with(tasks.remind, gate=object())
    expected = {enqueued(a=1)}
    enqueued(b=1)
    assert found(Message.objects.called_with(tasks.nothing, a=1)) == expected


def test_metadata_by_name_path_and_lookup(alias):
    ids = {}
    for name, metadata in {
        "a": {"batch": 7, "from": {"city": "Oslo", "country": "NO"}},
        "b": {"batch": "7"},
        "c": {"batch": 8},
    }.items():
        ids[name] = int(tasks.remind.using(metadata=metadata).enqueue(1).id)
    tasks.remind.enqueue(1)

    assert found(Message.objects.filter(metadata__batch=7)) == {ids["a"]}
    assert found(Message.objects.filter(metadata__batch="7")) == {ids["b"]}
    assert found(Message.objects.filter(metadata__batch__gte=8).exclude(pk=ids["b"])) == {ids["c"]}
    assert found(Message.objects.filter(metadata__batch__in=[7, 8])) == {ids["a"], ids["c"]}
    assert not Message.objects.filter(metadata__batch__in=[])
    assert found(Message.objects.filter(metadata__from__city="Oslo")) == {ids["a"]}
    assert found(Message.objects.filter(metadata__from={"country": "NO", "city": "Oslo"})) == {ids["a"]}
    assert found(Message.objects.exclude(metadata__isnull=True).filter(metadata__from__isnull=True)) == {
        ids["b"],
        ids["c"],
    }
    run_due()
    assert found(FinishedMessage.objects.filter(metadata__batch=7)) == {ids["a"]}
    assert found(FinishedMessage.objects.filter(metadata__contains="Oslo")) == {ids["a"]}
