"""Mistakes of who comes from another framework, or is in a hurry: each error names the thing, and the cure."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.core.exceptions import ImproperlyConfigured

from delayedq import Call, DelayedQueue, Limit, Rate, Retry, Snooze, chain, schedules, task
from delayedq.compat import InvalidTask, InvalidTaskBackend, task_backends
from delayedq.exceptions import InvalidFlow, InvalidKey, InvalidSchedule, InvalidTime, NotStorable
from delayedq.models import Message
from tests.app import tasks
from tests.app.tasks import remind

HOUR = timedelta(hours=1)
BACKEND = "delayedq.backend.DelayedQBackend"


def defined(number):
    """Is made a task by the tests."""


class Outer:
    def method(self):
        """Has no path."""


DEFINITIONS = {
    "a class": (lambda: task(Outer), InvalidTask, "Outer can't be a task"),
    "a method": (lambda: task(Outer.method), InvalidTask, "Move it there"),
    "an option that is not needed": (
        lambda: task(acks_late=True),
        TypeError,
        "Use nothing in its place: a message always ends",
    ),
    "the time limit of Celery": (lambda: task(soft_time_limit=30), TypeError, "Use timeout="),
    "the rate of Celery": (lambda: task(rate_limit="10/m"), TypeError, "Use limit=Limit(rate=...)"),
    "a number of seconds": (lambda: task(timeout=30)(defined), InvalidTask, "timeout must be a timedelta"),
    "no attempts": (lambda: task(max_attempts=0)(defined), InvalidTask, "from 1 to 32,000, not 0"),
    "a backoff in seconds": (lambda: task(backoff=[1, 2])(defined), InvalidTask, "delay is a timedelta: 1"),
    "an error by its name": (lambda: task(retry_on="ValueError")(defined), InvalidTask, "an exception class"),
    "a number as limit": (lambda: task(limit=5)(defined), InvalidTask, "limit is a Limit, or a list of them, not 5"),
    "a rate per number": (lambda: task(limit=Limit(rate=Rate(9, 60))), ValueError, "is a timedelta over zero"),
    "an unknown channel": (lambda: task(channel="nope")(defined), InvalidTask, "of an argument (number)"),
    "a function that follows": (lambda: task(on_success=defined)(defined), InvalidTask, "on_success must be a task"),
    "a task twice": (lambda: task(remind), InvalidTask, "remind is a task already: it needs one @task."),
    "the queue by place": (lambda: task("mail"), InvalidTask, "as in @task(queue_name='mail')"),
}
CALLS = {
    "huey's call here": (lambda: remind.call_local(7), AttributeError, "Use task(...), which calls"),
    "Celery's retry": (lambda: remind.retry(7), AttributeError, "Use raise Retry(..., delay=timedelta(...))"),
    "Celery's signature": (lambda: remind.subtask((7,)), AttributeError, "Use task.s(...)"),
    "Celery's revoke": (lambda: remind.revoke(7), AttributeError, "Use task.unschedule(key=...) or result.cancel()"),
    "delay of a part": (lambda: remind.s(7).delay(), AttributeError, "Use chain(...).enqueue() or task.enqueue(...)"),
    "delay of a chain": (lambda: chain(remind.s(7)).apply_async(), AttributeError, "Use chain(...).enqueue()"),
    "a task as a part": (lambda: chain(remind, remind).enqueue(), InvalidFlow, "not the task remind itself"),
    "no arguments": (remind.enqueue, TypeError, "missing a required argument"),
    "what has no text": (lambda: remind.enqueue(print), NotStorable, "pass its plain value"),
    "a priority by name": (lambda: remind.using(priority="high"), InvalidTask, "from -100 to 100, not 'high'"),
    "another name": (lambda: remind.using(queue="mail"), TypeError, "not queue. Use queue_name="),
    "using with a delay": (lambda: remind.using(countdown=5), TypeError, "Use task.schedule_at(when, ...)"),
    "a time as text": (lambda: remind.schedule_at("2026-01-01", 7), InvalidTime, "such as timezone.now() + timedelta"),
    "a delay as time": (lambda: remind.schedule_at(HOUR, 7), InvalidTime, "A time is an aware datetime"),
    "no time": (lambda: remind.schedule_at(7), InvalidTime, "A time is an aware datetime"),
    "a key that is no text": (lambda: remind.schedule_in(HOUR, 7, key=5), InvalidKey, "A key is a text, not 5"),
    "a queue without a name": (lambda: DelayedQueue(""), ValueError, "is a text that is not blank"),
    "three fields": (lambda: schedules.create("x", remind, cron="* * *"), InvalidSchedule, "expression has five"),
    "a period in seconds": (
        lambda: schedules.create("x", remind, every=9, args=[1]),
        InvalidSchedule,
        "is a timedelta",
    ),
    "a delay as reason": (lambda: Retry(5), TypeError, "a text, not 5. Use delay=timedelta(...)"),
    "a timedelta as reason": (lambda: Retry(HOUR), TypeError, "Use delay=timedelta(...)"),
    "no delay": (Snooze, ValueError, "either a delay or a time"),
}
MANY = {
    "numbers": [1, 2],
    "arguments only": [(1,)],
    "names only": [{"number": 1}],
    "texts": ["ab"],
    "a text as arguments": [("ab", {})],
    "three positions": [((1,), 2)],
}


@pytest.mark.parametrize(("wrong", "error", "said"), [*DEFINITIONS.values()], ids=[*DEFINITIONS])
def test_a_wrong_definition_names_the_cure(wrong, error, said):
    with pytest.raises(error) as raised:
        wrong()
    assert said in str(raised.value)
    assert "Task(func=" not in str(raised.value)


@pytest.mark.parametrize(("wrong", "error", "said"), [*CALLS.values()], ids=[*CALLS])
def test_a_wrong_call_names_the_cure_and_stores_nothing(alias, wrong, error, said):
    with pytest.raises(error) as raised:
        wrong()
    assert said in str(raised.value)
    assert "Task(func=" not in str(raised.value)
    assert not Message.objects.exists()


@pytest.mark.parametrize("calls", [*MANY.values()], ids=[*MANY])
@pytest.mark.parametrize("verb", ["enqueue_many", "enqueue_bulk"])
def test_what_is_no_call_is_refused_with_an_example(alias, verb, calls):
    with pytest.raises(TypeError, match=r"remind: each call is a pair as in \(\(7,\), {}\), or a Call as in"):
        getattr(remind, verb)([Call((7,)), *calls])
    assert not Message.objects.exists()


@pytest.mark.parametrize(
    ("name", "cure"),
    [("get", "wait(timeout).return_value"), ("ready", "is_finished"), ("result", "return_value"), ("state", "status")],
)
def test_a_result_has_the_names_of_django_and_tells_so(alias, name, cure):
    result = tasks.remind.enqueue(7)
    with pytest.raises(AttributeError) as raised:
        getattr(result, name)
    assert f"no attribute {name!r}. Use result." in str(raised.value)
    assert cure in str(raised.value)


@pytest.mark.parametrize(
    ("configured", "error", "said"),
    [
        ({"BACKEND": BACKEND, "QUEUES": "mail"}, ImproperlyConfigured, "['QUEUES'] is a list of names, not 'mail'"),
        ({"BACKEND": "django.tasks.backends.immediate.ImmediateBackend", "QUEUES": ["a"]}, InvalidTask, BACKEND),
        (None, InvalidTaskBackend, f"TASKS['default'] is missing. Tasks of delayedq need the BACKEND {BACKEND!r}"),
    ],
    ids=["queues as text", "another backend", "no backend"],
)
def test_a_wrong_setting_of_tasks_names_the_cure(settings, configured, error, said):
    if configured and task_backends["default"].__module__.startswith("django_tasks"):
        configured["BACKEND"] = configured["BACKEND"].replace("django.tasks", "django_tasks")
    settings.TASKS = {} if configured is None else {"default": configured}
    with pytest.raises(error) as raised:
        task(queue_name="mail")(defined)
    assert said in str(raised.value)
