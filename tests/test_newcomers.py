"""Mistakes of the first hour: each is an error or a warning that names the thing and the cure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.db import transaction

from delayedq import Call, task
from delayedq.checks import check_paths
from delayedq.compat import InvalidTask
from delayedq.exceptions import ArgumentsMismatch
from delayedq.models import FinishedMessage, Message
from delayedq.tasks import registered
from delayedq.tasks.registry import doubled
from delayedq.testing import run_due
from tests.app import tasks

NAIVE = datetime(2026, 1, 1, 1, 1, 1, 5)  # noqa: DTZ001
WHEN = datetime(2126, 3, 8, 6, 59, 30, tzinfo=UTC)


def moved(number):
    """Is made a task by the tests."""
    return number


@pytest.fixture
def _nothing_stays():
    before, known = dict(registered), dict(doubled)
    yield
    for of_process, kept in ((registered, before), (doubled, known)):
        of_process.clear()
        of_process.update(kept)


# Wrong names


@pytest.mark.parametrize(
    ("options", "cure"),
    [
        ({"autoretry_for": (ValueError,)}, r"no option 'autoretry_for'. Use retry_on="),
        ({"max_retries": 3}, r"Use max_attempts=, which counts the first attempt too"),
        ({"queue": "mail"}, r"Use queue_name="),
        ({"timout": timedelta(1)}, r"Did you mean 'timeout'\? Its options are aliases, "),
        ({"nonsense": 1}, r"no option 'nonsense'. Its options are aliases, "),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_an_option_of_another_framework_names_ours(options, cure):
    with pytest.raises(TypeError, match=cure):
        task(**options)


@pytest.mark.parametrize(
    ("verb", "cure"),
    [
        ("delay", r"task.enqueue\("),
        ("apply_async", r"schedule_in\("),
        ("send", r"task.enqueue\("),
        ("other", "'other'.$"),
    ],
)
def test_a_verb_of_another_framework_names_ours(verb, cure):
    with pytest.raises(AttributeError, match=cure):
        getattr(tasks.remind, verb)


@pytest.mark.parametrize(
    ("given", "cure"),
    [
        ({"key": "a"}, r"unexpected keyword argument 'key'. Use task.schedule_at\("),
        ({"countdown": 5}, r"Use task.schedule_at\(when, ...\) and task.schedule_in\("),
        ({"priority": 5}, r"Use task.using\(...\).enqueue\("),
        ({"other": 5}, r"unexpected keyword argument 'other'$"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_an_argument_that_is_meant_for_the_queue_names_the_verb(given, cure):
    with pytest.raises(TypeError, match=cure):
        tasks.remind.enqueue(7, **given)


def test_a_policy_that_is_misspelt_names_those_there_are():
    with pytest.raises(ValueError, match=r"one of 'replace', 'keep', .*, not 'repalce'"):
        tasks.remind.schedule_in(timedelta(1), 7, on_conflict="repalce")


def test_a_number_of_seconds_is_told_of_timedelta():
    with pytest.raises(ValueError, match=r"such as timedelta\(minutes=5\), not 5"):
        tasks.remind.schedule_in(5, 7)


def test_a_queue_that_is_misspelt_names_those_there_are(settings):
    settings.TASKS = {"default": {"BACKEND": "delayedq.backend.DelayedQBackend", "QUEUES": ["default", "mail"]}}
    with pytest.raises(InvalidTask, match=r"'mial' is not valid.*Did you mean 'mail'\? Its queues are default, mail"):
        tasks.remind.using(queue_name="mial")


def test_a_function_without_a_path_is_told_where_to_go():
    with pytest.raises(InvalidTask, match=r"<lambda> can't be a task.*module level.*Move it there"):
        task(lambda: None)


# Naive datetimes


@pytest.mark.parametrize(
    "moment", [NAIVE.replace(microsecond=0), NAIVE.replace(fold=1), [NAIVE]], ids=["seconds", "fold", "in a list"]
)
def test_a_naive_datetime_among_the_arguments_warns(alias, moment):
    with pytest.warns(RuntimeWarning, match=r"remind was given a naive datetime.*make_aware") as warned:
        tasks.remind.enqueue(moment)
    assert warned
    assert Message.objects.get().args == [moment]


def test_aware_datetimes_and_texts_do_not_warn(alias):
    tasks.remind.enqueue(WHEN, gate='{"$":"datetime","v":"2026-01-01T00:00:00"}')
    assert Message.objects.get().args == [WHEN]


# Paths


@pytest.mark.usefixtures("_nothing_stays")
def test_a_message_of_an_old_path_runs_under_an_alias(alias):
    made = task(moved)
    made.enqueue(7)
    Message.objects.update(kind="old.tasks.moved")
    task(aliases=["old.tasks.moved"])(moved)

    (attempt,) = run_due()

    assert (attempt.outcome, FinishedMessage.objects.get().kind) == ("succeeded", "old.tasks.moved")


@pytest.mark.parametrize("aliases", ["old.path", ["nodot"], [7]])
def test_aliases_are_paths(aliases):
    with pytest.raises(InvalidTask, match="aliases are paths that the task had before"):
        task(aliases=aliases)(moved)


@pytest.mark.usefixtures("_nothing_stays")
def test_two_tasks_of_one_path_are_w011():
    def other(number):
        """Takes the name of the first."""

    task(moved)
    task(moved)
    assert check_paths() == []

    other.__qualname__, other.__module__ = "moved", moved.__module__
    globals()["moved"], kept = other, moved
    try:
        task(other)
    finally:
        globals()["moved"] = kept
    (message,) = check_paths()
    assert message.id == "delayedq.W011"
    assert f"{__file__}:" in message.msg


# Many calls, each with its own time and key


def test_each_call_of_many_may_have_a_time_and_a_key(alias):
    calls = [Call((number,), {"gate": "A"}, at=WHEN + timedelta(hours=number), key=f"k{number}") for number in range(3)]
    assert tasks.remind.enqueue_bulk([*calls, ((9,), {}), Call((10,))], chunk_size=2) == 5
    (moved_one,) = tasks.remind.enqueue_many([Call((1,), at=WHEN, key="k1")])

    assert moved_one.outcome == "updated"
    found = Message.objects.filter(key__isnull=False).order_by("key").values_list("key", "scheduled_at")
    assert list(found) == [("k0", WHEN), ("k1", WHEN), ("k2", WHEN + timedelta(hours=2))]
    assert Message.objects.get(key="k1").args == [1]
    assert Message.objects.due().count() == 2


@pytest.mark.parametrize(("bad", "reason"), [({"at": NAIVE}, "aware"), ({"key": ""}, "1 to 200")])
def test_a_wrong_time_or_key_of_one_call_stores_nothing(alias, bad, reason):
    with pytest.raises(ValueError, match=reason), transaction.atomic(using=alias):
        tasks.remind.enqueue_many([Call((1,)), Call((2,), **bad)])
    assert not Message.objects.exists()


def test_many_calls_in_a_test_backend_replace_by_key(settings):
    settings.TASKS = {"default": {"BACKEND": "delayedq.testing.DummyBackend"}}
    outcomes = tasks.remind.enqueue_many([Call((1,), key="a"), Call((2,), at=WHEN, key="a"), ((3,), {})])
    assert [one.outcome for one in outcomes] == ["created", "updated", "created"]


# Rows as Python values


def test_a_row_has_its_arguments_and_metadata_as_python_values(alias):
    tasks.remind.using(metadata={"batch": 7}).enqueue(WHEN, gate={"A", "B"})
    live = Message.objects.get()
    run_due()
    ended = FinishedMessage.objects.get()

    for row, attempts in ((live, 0), (ended, 1)):
        assert (row.args, row.kwargs, row.metadata_value) == ([WHEN], {"gate": {"A", "B"}}, {"batch": 7})
        assert (row.task, row.attempts) == (tasks.remind.module_path, attempts)
    with pytest.raises(ArgumentsMismatch):
        _ = Message(payload='{"mail": 1}').args
