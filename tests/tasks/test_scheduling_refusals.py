"""Bad input: a clear error at the call, and nothing is stored."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, date, datetime, timedelta, timezone

import pytest
from django.contrib.auth.models import Group
from django.db import transaction

from delayedq.compat import InvalidTask
from delayedq.exceptions import DelayedQError, InvalidKey, InvalidMessage, InvalidTime, NotStorable, PayloadTooLarge
from delayedq.models import Message
from tests.app import tasks
from tests.store.given import NOW, message

WHEN = datetime(2126, 3, 8, 6, 59, 30, tzinfo=UTC)
WEST, EAST = timezone(-timedelta(hours=5)), timezone(timedelta(hours=5))


@pytest.fixture(autouse=True)
def _nothing_is_stored(alias):
    yield
    assert not Message.objects.exists()


# Keys


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("", "1 to 200 characters, not 0"),
        ("k" * 201, "1 to 200 characters, not 201"),
        (7, "A key is a text, not 7"),
        (b"bytes", "A key is a text"),
        (("a", "b"), "A key is a text"),
        ("UA\x001545", "NUL"),
        ("\ud800", "surrogate"),
    ],
    ids=ascii,
)
def test_a_bad_key(key, reason):
    with pytest.raises(InvalidKey, match=reason):
        tasks.remind.schedule_at(WHEN, 7, key=key)
    with pytest.raises(InvalidKey, match=reason):
        tasks.remind.schedule_in(timedelta(hours=1), 7, key=key)


@pytest.mark.parametrize("key", ["k" * 200, "\N{AIRPLANE}" * 200, " ", "a/b c\t\n", "\x01"], ids=ascii)
def test_a_good_key(key):
    tasks.remind.schedule_at(WHEN, 7, key=key)
    assert Message.objects.get().key == key
    assert tasks.remind.unschedule(key=key)


@pytest.mark.parametrize("key", ["", "k" * 201, "UA\x001545", "\ud800"], ids=ascii)
def test_unscheduling_a_key_that_nothing_can_have_finds_nothing_or_says_so(key):
    with suppress(InvalidKey):
        assert not tasks.remind.unschedule(key=key)


# Times


@pytest.mark.parametrize(
    "when",
    [
        datetime(2126, 3, 8, 7),  # noqa: DTZ001
        date(2126, 3, 8),
        "2126-03-08T07:00:00Z",
        4_926_726_000,
        None,
        timedelta(hours=1),
    ],
    ids=repr,
)
def test_a_time_that_is_none(when):
    with pytest.raises(InvalidTime, match="time"):
        tasks.remind.schedule_at(when, 7)


def test_a_naive_time_is_told_how_to_become_aware():
    with pytest.raises(InvalidTime, match=r"must be aware.*make_aware\(\)"):
        tasks.remind.schedule_at(datetime(2126, 3, 8, 7), 7)  # noqa: DTZ001


def test_a_naive_run_after():
    with pytest.raises(InvalidTask, match="aware"):
        tasks.remind.using(run_after=datetime(2126, 3, 8, 7))  # noqa: DTZ001


@pytest.mark.parametrize(
    "when", [datetime.max.replace(tzinfo=WEST), datetime.min.replace(tzinfo=EAST)], ids=["after", "before"]
)
def test_a_time_that_utc_can_not_tell(store, when):
    with pytest.raises(InvalidTime):
        tasks.remind.schedule_at(when, 7)
    with pytest.raises(InvalidTime):
        store.offer_many([message(scheduled_at=when)])
    assert store.scan() == []


FIRST, LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


@pytest.mark.parametrize("when", [FIRST, LAST], ids=str)
def test_the_first_and_the_last_instant_are_times_like_others(store, connection, when):
    when = max(when, FIRST.replace(year=1000)) if connection.vendor == "mysql" else when
    tasks.remind.schedule_at(when, 7, key="a")
    assert Message.objects.get().scheduled_at == when
    ((_, _, first_at, _),) = store.at(NOW).scan()
    assert first_at == when
    assert tasks.remind.unschedule(key="a")


@pytest.mark.parametrize("alias", ["mariadb"], indirect=True)
def test_for_mysql_time_begins_in_the_year_1000(store):
    early = FIRST.replace(year=1000) - timedelta(microseconds=1)

    with pytest.raises(InvalidTime, match="year 1000"):
        tasks.remind.schedule_at(early, 7)
    with pytest.raises(InvalidTime, match="year 1000"):
        store.offer_many([message(), message(scheduled_at=early)])
    assert store.scan() == []


@pytest.mark.parametrize("delay", [timedelta.max, 5, "5"], ids=repr)
def test_a_delay_that_leads_nowhere(delay):
    with pytest.raises((InvalidTime, TypeError, OverflowError)):
        tasks.remind.schedule_in(delay, 7)


# Arguments


@pytest.mark.parametrize(
    ("args", "kwargs", "name"),
    [
        ((object(),), {}, "'flight_id': <object>"),
        ((7, [1, {"a": object()}]), {}, r"'gate'\[1\]\['a'\]: <object>"),
        ((7,), {"gate": object}, "'gate': <type>"),
        ((Group(name="crew"),), {}, "'flight_id': <Group> .* save it first"),
        ((lambda: None,), {}, "'flight_id': <function>"),
    ],
    ids=["positional", "nested", "by name", "unsaved instance", "function"],
)
def test_an_argument_that_can_not_be_stored_is_named(args, kwargs, name):
    for put in (
        lambda: tasks.remind.enqueue(*args, **kwargs),
        lambda: tasks.remind.schedule_at(WHEN, *args, key="a", **kwargs),
        lambda: tasks.remind.enqueue_many([((1,), {}), (args, kwargs)]),
    ):
        with pytest.raises(NotStorable, match=f"argument {name}"):
            put()


def test_the_context_is_not_counted_when_an_argument_is_named():
    with pytest.raises(NotStorable, match="argument 'start'"):
        tasks.count_attempts.enqueue(object())


@pytest.mark.parametrize(
    ("args", "kwargs"), [((), {}), ((1, 2, 3), {}), ((1,), {"flight_id": 2}), ((1,), {"gat": 2})], ids=repr
)
def test_arguments_that_do_not_fit_the_function(args, kwargs):
    with pytest.raises(TypeError, match="remind: "):
        tasks.remind.enqueue(*args, **kwargs)
    with pytest.raises(TypeError, match="remind: "):
        tasks.remind.schedule_at(WHEN, *args, key="a", **kwargs)


def test_a_payload_that_is_too_large(settings):
    settings.DELAYEDQ = {"MAX_PAYLOAD_BYTES": 100}
    tasks.nothing.enqueue("x" * (100 - len('{"args":[""]}')))
    Message.objects.all().delete()

    for put in (
        tasks.nothing.enqueue,
        lambda text: tasks.nothing.schedule_at(WHEN, text, key="a"),
        lambda text: tasks.nothing.enqueue_many([(("short",), {}), ((text,), {})]),
    ):
        with pytest.raises(PayloadTooLarge, match=r"takes 101 bytes; DELAYEDQ\['MAX_PAYLOAD_BYTES'\] allows 100"):
            put("x" * (101 - len('{"args":[""]}')))


# Queues, options, policies


@pytest.fixture
def queues(settings):
    settings.TASKS = {"default": {"BACKEND": "delayedq.backend.DelayedQBackend", "QUEUES": ["default", "mail"]}}


@pytest.mark.usefixtures("queues")
def test_an_unknown_queue():
    with pytest.raises(InvalidTask, match="'sms'"):
        tasks.remind.using(queue_name="sms")


def test_a_queue_that_became_unknown(request):
    texting = tasks.remind.using(queue_name="sms")
    request.getfixturevalue("queues")
    with pytest.raises(InvalidTask, match="'sms'"):
        texting.enqueue(7)


@pytest.mark.parametrize("queue", ["", " ", "q" * 201])
def test_a_queue_without_a_proper_name(queue):
    with pytest.raises((InvalidMessage, InvalidTask)):
        tasks.remind.using(queue_name=queue).enqueue(7)


@pytest.mark.parametrize("policy", ["Replace", "newest", "", None, 1])
def test_a_policy_that_does_not_exist_is_named(policy):
    with pytest.raises(ValueError, match=repr(policy)):
        tasks.remind.schedule_at(WHEN, 7, key="a", on_conflict=policy)


# The family


def test_all_of_these_errors_are_of_one_family():
    for error in (InvalidKey, InvalidTime, NotStorable, PayloadTooLarge):
        assert issubclass(error, InvalidMessage)
    assert issubclass(InvalidMessage, DelayedQError)
    assert issubclass(InvalidMessage, ValueError)


def test_a_refused_call_does_not_abort_the_callers_transaction(alias):
    with transaction.atomic(using=alias):
        with pytest.raises(InvalidMessage):
            tasks.remind.schedule_at(WHEN, 7, key="")
        with pytest.raises(InvalidMessage):
            tasks.remind.enqueue(object())
        Group.objects.create(name="crew")
    assert Group.objects.exists()


@pytest.mark.parametrize("delay", [timedelta.max, timedelta.min, 5, "a minute", None])
def test_what_is_no_delay_or_leads_beyond_all_times_is_refused(delay):
    with pytest.raises(InvalidTime, match="delay"):
        tasks.remind.schedule_in(delay, 7)
