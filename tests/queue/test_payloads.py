"""Serializers, and what becomes of payloads that can't be read (B17, C4)."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from uuid import UUID

import pytest
from django.db import DatabaseError

from delayedq.exceptions import InvalidQueue, NotStorable
from delayedq.models import Message
from delayedq.queue import BYTES, JSON, TEXT, History, Serializer
from tests.store.given import NOW, history, outcomes

RICH = {"on": date(2026, 1, 2), "id": UUID(int=7), "paid": Decimal("1.50"), "tags": {"a", "b"}, "at": (1, 2.5, None)}


@pytest.mark.parametrize(
    ("serializer", "payload"),
    [(JSON, RICH), (JSON, "x\0\ud800"), (JSON, None), (TEXT, "Grüße, 世界\n"), (TEXT, ""), (BYTES, bytes(range(256)))],
)
def test_a_payload_comes_back_as_it_went(make, serializer, payload):
    queue = make("any", serializer)
    queue.offer_or_update("a", payload, NOW)
    assert queue.try_poll().payload == payload


@pytest.mark.parametrize("serializer", [TEXT, BYTES])
@pytest.mark.parametrize("payload", [7, None, ["a"]])
def test_a_payload_of_another_type_is_refused_and_nothing_stored(make, serializer, payload):
    queue = make("any", serializer)
    with pytest.raises(NotStorable, match="payload"):
        queue.offer_or_update("a", payload)
    assert queue.count() == 0


@pytest.mark.parametrize("text", [b"bytes", None, 7])
def test_a_serializer_that_makes_no_text_is_refused(make, text):
    serializer = Moments()
    serializer.serialize = lambda payload: text
    with pytest.raises(NotStorable, match="must return a str"):
        make("times", serializer).offer_or_update("a", NOW)


@pytest.mark.parametrize("payload", ["a\0b", "\ud800"])
def test_a_text_that_no_database_can_hold_is_refused(make, payload):
    with pytest.raises(NotStorable, match="NUL"):
        make("texts", TEXT).offer_or_update("a", payload)


@pytest.mark.parametrize(
    ("serializer", "text"), [(JSON, "{"), (JSON, '{"$":"x","v":1}'), (BYTES, "no base64"), (BYTES, "é")]
)
def test_what_was_not_written_so_is_a_value_error(serializer, text):
    with pytest.raises(ValueError):  # noqa: PT011 - the text is that of the parser
        serializer.deserialize(text)


class Moments:
    """A serializer as a project writes it."""

    type_name = "moment"

    def serialize(self, payload: datetime) -> str:
        return payload.isoformat()

    def deserialize(self, text: str) -> datetime:
        return datetime.fromisoformat(text)


def test_a_serializer_of_the_project_has_its_own_type(make):
    own: Serializer[datetime] = Moments()
    queue = make("times", own)
    queue.offer_or_update("a", datetime(2026, 1, 1, tzinfo=UTC), NOW)

    assert queue.try_poll().payload == datetime(2026, 1, 1, tzinfo=UTC)
    assert Message.objects.get().kind == "times|moment"


@pytest.mark.parametrize("type_name", ["", "  ", "a|b", None, "x" * 200])
def test_what_is_no_name_of_a_type_is_refused(make, type_name):
    serializer = Moments()
    serializer.type_name = type_name
    with pytest.raises(InvalidQueue):
        make("times", serializer)


# What can't be read


@pytest.mark.parametrize("damage", [{"payload": "{"}, {"metadata": "["}, {"metadata": "[1]"}])
def test_a_message_that_can_not_be_read_is_set_aside_and_the_next_one_delivered(queue, damage, caplog):
    queue.offer_or_update("bad", 1, NOW)
    queue.offer_or_update("good", 2, NOW)
    Message.objects.filter(key="bad").update(**damage)

    assert queue.try_poll().key == "good"
    assert queue.try_poll() is None
    dead = history(key="bad")
    assert (dead.outcome, dead.attempts) == ("failed", 0)
    assert json.loads(dead.errors)[0]["exception"] == "builtins.ValueError"
    assert "bad failed for good" in caplog.text


def test_a_batch_has_what_can_be_read_and_is_never_empty_while_something_is_due(queue):
    for number in range(6):
        queue.offer_or_update(f"{number}", number, NOW)
    Message.objects.filter(key__in=["0", "1", "3"]).update(payload="{")

    assert queue.try_poll_many(2).payload == [2]
    assert queue.try_poll_many(2).payload == [4, 5]
    assert outcomes() == ["failed"] * 3


class Hasty(Moments):
    """Raises something else than the ValueError it owes."""

    error: type[Exception] = KeyError

    def deserialize(self, text):
        raise self.error("boom")


def test_a_serializer_with_a_bug_blocks_nothing(make):
    make("times", Moments()).offer_or_update("a", NOW, NOW)

    assert make("times", Hasty()).try_poll() is None
    assert outcomes() == ["failed"]


def test_a_database_that_is_gone_while_payloads_are_read_is_not_their_fault(make):
    queue = make("times", hasty := Hasty())
    queue.offer_or_update("a", NOW, NOW)
    hasty.error = DatabaseError
    with pytest.raises(DatabaseError):
        queue.try_poll()

    assert outcomes() == []
    assert make("times", Moments()).try_poll().attempt == 1


@pytest.mark.parametrize("history", History)
def test_what_can_not_be_read_is_kept_whatever_the_history(make, history):
    queue = make(history=history)
    queue.offer_or_update("bad", 1, NOW)
    Message.objects.update(payload="{")

    assert queue.try_poll() is None
    assert outcomes() == ["failed"]
