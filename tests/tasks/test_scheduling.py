"""Putting calls into the queue: what is stored, what becomes of a key, and whose transaction it belongs to."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import Group
from django.db import transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from delayedq.models import FinishedMessage, Message
from delayedq.store import base
from delayedq.store.protocol import OfferOutcome as Outcome
from delayedq.store.protocol import OnConflict
from tests.app import tasks
from tests.store.given import undone

WHEN = datetime(2126, 3, 8, 6, 59, 30, 125, tzinfo=UTC)
HOUR = timedelta(hours=1)


def stored(**filters):
    """The one live message."""
    return Message.objects.get(**filters)


def count():
    return Message.objects.count()


# Rows


def test_enqueue_stores_a_message_that_is_due_now(alias):
    before = timezone.now()
    result = tasks.send.enqueue("ann", subject="Hi")

    row = stored()
    assert str(row.id) == result.id
    assert (row.queue, row.kind, row.key) == ("mail", "tests.app.tasks.send", None)
    assert (row.priority, row.max_attempts, row.attempt, row.generation) == (10, 3, 0, 0)
    assert json.loads(row.payload) == {"args": ["ann"], "kwargs": {"subject": "Hi"}}
    assert json.loads(row.metadata) == {"team": "gate"}
    assert (row.lease_token, row.leased_until, row.leased_by, row.errors) == (None, None, None, None)
    assert before - timedelta(seconds=5) < row.scheduled_at <= timezone.now() + timedelta(seconds=5)
    assert row.scheduled_at == row.scheduled_at_initially


def test_a_changed_copy_stores_its_own_options(alias):
    changed = tasks.send.using(queue_name="sms", priority=-100, max_attempts=32_000, metadata={"b": 2}, run_after=WHEN)
    changed.enqueue("ann")

    row = stored()
    assert (row.queue, row.priority, row.max_attempts, row.metadata) == ("sms", -100, 32_000, '{"b":2}')
    assert row.scheduled_at == WHEN


def test_two_calls_are_two_messages_though_they_are_alike(alias):
    assert tasks.remind.enqueue(7).id != tasks.remind.enqueue(7).id
    assert count() == 2


def test_no_arguments_and_no_metadata_take_no_space(alias):
    tasks.nothing.enqueue()
    assert (stored().payload, stored().metadata) == ("{}", None)


def test_schedule_at_stores_the_instant_in_whatever_zone_it_was_given(alias):
    scheduled = tasks.remind.schedule_at(WHEN.astimezone(ZoneInfo("Asia/Kathmandu")), 7, key="UA1545", gate="B7")

    row = stored()
    assert (str(row.id), row.key) == (scheduled.id, "UA1545")
    assert row.scheduled_at == row.scheduled_at_initially == WHEN
    assert json.loads(row.payload) == {"args": [7], "kwargs": {"gate": "B7"}}


def test_a_past_time_keeps_its_place_in_the_order(alias):
    past = WHEN.replace(year=1926)
    tasks.remind.schedule_at(past, 7)
    assert stored().scheduled_at == past


def test_schedule_in_counts_from_now(alias):
    before = timezone.now()
    tasks.remind.schedule_in(HOUR, 7, key="a")
    assert before + HOUR <= stored().scheduled_at <= timezone.now() + HOUR


def test_the_async_forms_do_the_same(alias):
    async def all_of_them():
        result = await tasks.remind.aenqueue(1)
        at = await tasks.remind.aschedule_at(WHEN, 2, key="at")
        soon = await tasks.aecho.aschedule_in(HOUR, 3, key="in")
        gone = await tasks.remind.aunschedule(key="at")
        return [result.id, at.id, soon.id, gone]

    *ids, gone = async_to_sync(all_of_them)()
    assert gone
    assert {str(row.id) for row in Message.objects.all()} == {ids[0], ids[2]}
    assert [row.id for row in FinishedMessage.objects.cancelled()] == [int(ids[1])]


# Keys


@pytest.fixture
def first(alias):
    return tasks.remind.schedule_at(WHEN, 7, key="UA1545")


def test_a_key_is_created_once_and_then_updated(first):
    again = tasks.remind.schedule_at(WHEN + HOUR, 8, key="UA1545")

    assert (first.outcome, again.outcome) == (Outcome.CREATED, Outcome.UPDATED)
    assert again.id == first.id
    assert (stored().payload, stored().scheduled_at) == ('{"args":[8]}', WHEN + HOUR)


def test_the_same_again_is_ignored(first):
    again = tasks.remind.schedule_at(WHEN, 7, key="UA1545")
    assert again.outcome == Outcome.IGNORED
    assert again.id == first.id


@pytest.mark.parametrize(
    ("on_conflict", "outcome", "payload", "earlier", "later"),
    [
        ("replace", "updated", 8, -1, 1),
        ("keep", "ignored", 7, 0, 0),
        ("preserve_time", "updated", 8, 0, 0),
        ("earliest", "updated", 8, -1, 0),
        ("latest", "updated", 8, 0, 1),
    ],
)
def test_policies_go_by_their_names(first, on_conflict, outcome, payload, earlier, later):
    for hours, moved in ((-1, earlier), (1, later)):
        tasks.remind.schedule_at(WHEN, 7, key="UA1545")
        again = tasks.remind.schedule_at(WHEN + hours * HOUR, 8, key="UA1545", on_conflict=on_conflict)

        assert (again.outcome, again.id) == (outcome, first.id)
        assert (stored().payload, stored().scheduled_at) == (f'{{"args":[{payload}]}}', WHEN + moved * HOUR)


def test_a_key_belongs_to_its_task(first):
    assert tasks.echo.schedule_at(WHEN, 7, key="UA1545").outcome == Outcome.CREATED
    assert count() == 2


def test_unscheduling_ends_the_message_as_cancelled(first):
    assert not tasks.echo.unschedule(key="UA1545")
    assert tasks.remind.unschedule(key="UA1545")
    assert not tasks.remind.unschedule(key="UA1545")

    assert not count()
    assert FinishedMessage.objects.cancelled().get().key == "UA1545"
    assert tasks.remind.schedule_at(WHEN, 7, key="UA1545").outcome == Outcome.CREATED


# The caller's transaction


def puts():
    """Each way to put something into the queue."""
    return {
        "enqueue": lambda: tasks.remind.enqueue(7),
        "aenqueue": lambda: async_to_sync(tasks.remind.aenqueue)(7),
        "enqueue_many": lambda: tasks.remind.enqueue_many([((7,), {})]),
        "schedule_at": lambda: tasks.remind.schedule_at(WHEN, 7, key="a"),
        "schedule_in": lambda: tasks.remind.schedule_in(HOUR, 7),
    }


@pytest.mark.parametrize("put", puts())
def test_a_message_appears_when_the_transaction_commits(alias, put):
    with transaction.atomic(using=alias):
        Group.objects.create(name="crew")
        puts()[put]()
    assert count() == 1


@pytest.mark.parametrize("put", puts())
def test_a_message_never_existed_if_the_transaction_rolls_back(alias, put):
    with undone(alias):
        Group.objects.create(name="crew")
        puts()[put]()
    assert not count()
    assert not Group.objects.exists()


def test_a_cancellation_never_happened_if_the_transaction_rolls_back(first, alias):
    with undone(alias):
        assert tasks.remind.unschedule(key="UA1545")
    assert count() == 1
    assert not FinishedMessage.objects.exists()


@pytest.mark.parametrize("on_conflict", OnConflict)
def test_a_duplicate_does_not_abort_the_callers_transaction(first, alias, on_conflict):
    with transaction.atomic(using=alias):
        for number in (8, 8, 9):
            tasks.remind.schedule_at(WHEN + HOUR, number, key="UA1545", on_conflict=on_conflict)
        Group.objects.create(name="crew")
    assert count() == 1
    assert Group.objects.exists()


# Many at once


def test_enqueue_many_stores_each_call(alias):
    scheduled = tasks.send.enqueue_many([(("ann",), {}), (["bob"], {"subject": "Hi"})])

    assert [one.outcome for one in scheduled] == [Outcome.CREATED, Outcome.CREATED]
    rows = [Message.objects.get(id=one.id) for one in scheduled]
    assert [row.payload for row in rows] == ['{"args":["ann"]}', '{"args":["bob"],"kwargs":{"subject":"Hi"}}']
    assert {(row.queue, row.priority, row.max_attempts, row.metadata) for row in rows} == {
        ("mail", 10, 3, '{"team":"gate"}')
    }


def test_enqueue_many_takes_a_generator_a_run_after_and_nothing(alias):
    assert len(tasks.remind.using(run_after=WHEN).enqueue_many(((number,), {}) for number in range(3))) == 3
    assert tasks.remind.enqueue_many([]) == []
    assert set(Message.objects.values_list("scheduled_at", flat=True)) == {WHEN}


def test_enqueue_many_stores_nothing_if_one_call_is_wrong(alias, monkeypatch):
    monkeypatch.setattr(base, "CHUNK", 2)
    good = [((number,), {}) for number in range(5)]
    for bad in (((object(),), {}), ((), {}), ((1,), {"nonsense": 2})):
        with pytest.raises(TypeError):
            tasks.remind.enqueue_many([*good, bad])
    assert not count()


def test_enqueue_many_stores_nothing_if_its_generator_fails(alias, monkeypatch):
    monkeypatch.setattr(base, "CHUNK", 2)

    def calls():
        for number in range(5):
            yield (number,), {}
        raise KeyError("the source ran dry")

    with pytest.raises(KeyError):
        tasks.remind.enqueue_many(calls())
    assert not count()


def test_enqueue_bulk_says_how_many_it_stored(alias):
    assert tasks.remind.enqueue_bulk((((number,), {}) for number in range(5)), chunk_size=2) == 5
    assert tasks.remind.enqueue_bulk([]) == 0
    assert count() == 5


def test_enqueue_bulk_holds_one_chunk_at_a_time(connection):
    seen = []

    def calls():
        for number in range(6):
            seen.append(count())
            yield (number,), {}

    tasks.remind.enqueue_bulk(calls(), chunk_size=2)
    assert seen == [0, 0, 2, 2, 4, 4]


def test_enqueue_bulk_stores_nothing_if_its_generator_fails_in_a_later_chunk(alias):
    def calls():
        yield from [((1,), {}), ((2,), {}), ((3,), {})]
        raise KeyError("the source ran dry")

    with pytest.raises(KeyError):
        tasks.remind.enqueue_bulk(calls(), chunk_size=2)
    with pytest.raises(ValueError, match="at least 1"):
        tasks.remind.enqueue_bulk(calls(), chunk_size=0)
    assert not count()


@pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
def test_thousands_of_calls_take_few_statements(connection):
    with CaptureQueriesContext(connection) as captured:
        tasks.remind.enqueue_many(((number,), {}) for number in range(2_500))
    assert len(captured) <= 5
    assert count() == 2_500


def test_thousands_of_calls_are_stored_in_their_order(alias):
    scheduled = tasks.remind.enqueue_many(((number,), {}) for number in range(2_500))

    assert [int(one.id) for one in scheduled] == sorted({int(one.id) for one in scheduled})
    payloads = Message.objects.order_by("id").values_list("payload", flat=True)
    assert list(payloads) == [f'{{"args":[{number}]}}' for number in range(2_500)]
