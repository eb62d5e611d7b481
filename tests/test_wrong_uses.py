"""Mistakes of who comes from another framework, or is in a hurry: each error names the thing, and the cure."""

from __future__ import annotations

import asyncio
import copy
import inspect
import pkgutil
import re
from datetime import timedelta

import pytest
from django.conf import global_settings
from django.core.exceptions import SynchronousOnlyOperation
from django.utils import timezone
from django.utils.translation import gettext_lazy

import delayedq
from delayedq import Call, Cancel, DelayedQueue, Fail, Limit, Rate, Retry, Snooze, chain, group, map_, schedules, task
from delayedq.compat import BUILT_IN, InvalidTask, InvalidTaskBackend, TaskResultDoesNotExist, task_backends
from delayedq.core import other_names
from delayedq.exceptions import InvalidFlow, InvalidKey, InvalidSchedule, InvalidTime, NotStorable
from delayedq.models import Message
from tests.app import tasks
from tests.app.tasks import remind

HOUR = timedelta(hours=1)
NOW = timezone.now()
BACKEND = "delayedq.backend.DelayedQBackend"


def defined(number):
    """Is made a task by the tests."""


def defined_for(number):
    """Is made a task whose channels are its argument."""


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
    "a backoff in seconds": (lambda: task(backoff=[1, 2])(defined), InvalidTask, "such as timedelta(seconds=5), not 1"),
    "an error by its name": (lambda: task(retry_on="ValueError")(defined), InvalidTask, "an exception class"),
    "a number as limit": (lambda: task(limit=5)(defined), InvalidTask, "limit is a Limit, or a list of them, not 5"),
    "a rate per number": (lambda: task(limit=Limit(rate=Rate(9, 60))), ValueError, "is a timedelta over zero"),
    "a limit by its place": (lambda: Limit(5), TypeError, "as in Limit(concurrency=5) or Limit(rate=Rate(5, per="),
    "a limit by another name": (
        lambda: Limit(max=5),
        TypeError,
        "not Limit(max=5). Its options are concurrency, rate,",
    ),
    "the rate of Celery in a limit": (
        lambda: Limit(rate="5/m"),
        ValueError,
        "such as Rate(5, per=timedelta(minutes=1))",
    ),
    "the rate of Celery in a rate": (
        lambda: Rate("5/m"),
        TypeError,
        "as in Rate(5, per=timedelta(minutes=1)), not Rate('",
    ),
    "a rate without its time": (lambda: Rate(5), TypeError, "as in Rate(5, per=timedelta(minutes=1)), not Rate(5)."),
    "a rate by another name": (lambda: Rate(5, seconds=1), TypeError, "not Rate(5, seconds=1)."),
    "an unknown channel": (lambda: task(channel="nope")(defined), InvalidTask, "of an argument (number)"),
    "a function that follows": (lambda: task(on_success=defined)(defined), InvalidTask, "on_success must be a task"),
    "a task twice": (lambda: task(remind), InvalidTask, "remind is a task already: it needs one @task."),
    "a schedule": (lambda: task(cron="0 9 * * *"), TypeError, "Use DELAYEDQ['CRON'] in the settings, or delayedq.sch"),
    "a lock": (lambda: task(queueing_lock="a"), TypeError, "Use key= of schedule_at"),
    "the retry of huey": (lambda: task(retry=3), TypeError, "Use max_attempts="),
    "the context of procrastinate": (lambda: task(pass_context=True), TypeError, "Use takes_context=True"),
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
    "RQ's time": (lambda: remind.enqueue_in(HOUR, 7), AttributeError, "task.schedule_in(timedelta(...), ...)"),
    "RQ's cancel": (lambda: remind.cancel("a"), AttributeError, "Use task.unschedule(key=...)"),
    "on commit": (lambda: remind.delay_on_commit(7), AttributeError, "which is a part of the transaction"),
    "Celery's args": (lambda: remind.enqueue(args=[7]), TypeError, "Use the arguments themselves"),
    "an id of one's own": (lambda: remind.enqueue(7, task_id="a"), TypeError, "Use key= of task.schedule_at"),
    "a timeout of a call": (lambda: remind.enqueue(7, timeout=3), TypeError, "Use timeout= of @task"),
    "run after a delay": (lambda: remind.using(run_after=HOUR), InvalidTask, "run_after is an aware datetime, such as"),
    "a chunk as text": (lambda: remind.enqueue_bulk([], chunk_size="5"), ValueError, "of at least 1, not '5'"),
    "a chain of a list": (lambda: chain([remind.s(7)]).enqueue(), InvalidFlow, "not a list of them: use chain(*parts)"),
    "put": (lambda: DelayedQueue("a").put("x"), AttributeError, "Use queue.offer_or_update(key, payload, when)"),
    "no verb of a queue": (lambda: DelayedQueue("a").other, AttributeError, "has no attribute 'other'."),
    "a key by its place": (lambda: remind.unschedule("a"), TypeError, "by its name, as in unschedule(key='a')"),
    "a key by its place, later": (lambda: asyncio.run(remind.aunschedule("a")), TypeError, "as in unschedule(key='a')"),
    "no key to find a message": (remind.unschedule, TypeError, "as in unschedule(key='UA1545')"),
    "arguments to find a message": (lambda: remind.unschedule(7, key="a"), TypeError, "as in unschedule(key='a')"),
    "a policy of a call": (
        lambda: Call((7,), key="a", on_conflict="keep"),
        TypeError,
        "call task.schedule_at(when, ...",
    ),
    "arguments of a call": (lambda: Call(flight_id=7), TypeError, "stand in args and kwargs, as in Call((7,), {"),
    "too little for any name": (lambda: tasks.any_name.enqueue(countdown=5), TypeError, "argument: 'number'"),
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
    "a delay in seconds": (lambda: Retry(delay=5), TypeError, "such as timedelta(minutes=5), not 5"),
    "a pause in seconds": (lambda: Snooze(5), TypeError, "such as timedelta(minutes=5), not 5"),
    "a pause until": (lambda: Snooze(timezone.now()), TypeError, "Use Snooze(until=...) for a time"),
    "the delay of Celery": (lambda: Retry(countdown=5), TypeError, "no countdown=: the time is delay=timedelta(...)"),
    "the pause of Celery": (lambda: Snooze(eta=5), TypeError, "no eta=: the time is delay=timedelta(...) or until="),
    "the error of Celery": (lambda: Retry(exc=OSError()), TypeError, "no exc=: its options are delay="),
    "a time as reason": (lambda: Cancel(HOUR), TypeError, "Use raise Snooze(delay=timedelta(...)) to run it later"),
    "no key": (lambda: remind.schedule_in(HOUR, 7, on_conflict="keep"), ValueError, "'keep' needs a key=: without"),
    "a time by name": (lambda: remind.schedule_at(when=NOW), TypeError, "as in schedule_at(when, ...): not as when="),
    "a time after all": (lambda: remind.schedule_at(7, eta=NOW), TypeError, "comes first, without a name"),
    "a delay by name": (lambda: remind.schedule_in(delay=HOUR), TypeError, "schedule_in(timedelta(minutes=5), ...): "),
    "seconds by name": (lambda: remind.schedule_in(countdown=5), TypeError, "not as countdown="),
    "no time at all": (remind.schedule_at, InvalidTime, "such as timezone.now() + timedelta(hours=1), not None"),
    "no delay at all": (remind.schedule_in, InvalidTime, "such as timedelta(minutes=5), not None"),
    "a row": (lambda: map_(remind, 7), InvalidFlow, "as in map_(task, [7, 8]), not 7"),
    "a text as rows": (lambda: map_(remind, "ab"), InvalidFlow, "as in map_(task, [7, 8]), not 'ab'"),
    "rows for a function": (lambda: map_(print, [7]), InvalidFlow, "map_(task, rows), but print is not a task"),
    "rows for a part": (lambda: map_(remind.s(), [7]), InvalidFlow, "but Signature is not a task"),
    "a pipe": (lambda: remind.s(7) | remind.s(), TypeError, "Use chain(first, second)"),
    "a pipe of a group": (lambda: group(remind.s(7)) | remind.s(), TypeError, "Use chain(first, second)"),
    "a pipe of a task": (lambda: remind.s(7) | remind, TypeError, "Use chain(first, second)"),
    "a part called": (remind.s(7), TypeError, "Use chain(...).enqueue(), or task(...)"),
    "a group called": (group(remind.s(7)), TypeError, "Use chain(...).enqueue(), or task(...)"),
    "a chain called": (lambda: chain(remind.s(7))(8), TypeError, "Use chain(...).enqueue(), or task(...)"),
    "a part alone": (lambda: remind.s(7).enqueue(), AttributeError, "Use chain(...).enqueue() or task.enqueue(...)"),
    "options of a part": (lambda: remind.s(7).set(queue="a"), AttributeError, "Use task.using(...).s(...)"),
}
#: Near to what is refused, and right.
RIGHT = {
    "a key that was computed": lambda: remind.schedule_in(HOUR, 7, key=None, on_conflict="keep").outcome == "created",
    "the default policy": lambda: remind.schedule_at(NOW, 7, on_conflict="replace").outcome == "created",
    "an argument of that name": lambda: tasks.echo.schedule_at(NOW, when=7).outcome == "created",
    "fair turns only": lambda: task(channel="number", limit=Limit())(defined_for).limit == Limit(),
    "a translated reason": lambda: str(Fail(gettext_lazy("why"))) == "why",
    "a code as reason": lambda: (str(Fail(404)), str(Cancel(3))) == ("404", "3"),
    "limited live only": lambda: task(limit=Limit())(defined).limit == Limit(),
}
#: Attributes that stored flows do not have.
OF_FLOWS = {"get": "Use flow.wait(timeout).result().", "status": "Use flow.state.", "other": "no attribute 'other'."}
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


@pytest.mark.parametrize("right", [*RIGHT.values()], ids=[*RIGHT])
def test_what_only_looks_wrong_is_taken(alias, right):
    assert right()


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


@pytest.mark.parametrize(("name", "cure"), [*OF_FLOWS.items()])
def test_a_stored_flow_names_what_it_has_instead(alias, name, cure):
    flow = chain(remind.s(7)).enqueue()
    with pytest.raises(AttributeError) as raised:
        getattr(flow, name)
    assert cure in str(raised.value)


def test_a_hint_does_not_name_what_the_task_takes(alias):
    with pytest.raises(TypeError) as raised:
        tasks.any_name.enqueue(countdown=5)
    assert "schedule_in" not in str(raised.value)
    assert tasks.any_name.enqueue(7, countdown=5).kwargs == {"countdown": 5}


def test_the_signature_of_a_verb_is_readable():
    assert "key: 'str | None' = <no key>" in str(inspect.signature(remind.schedule_at))
    assert "object object" not in str(inspect.signature(remind.schedule_at))


@pytest.mark.parametrize("one", [Limit(concurrency=5), Rate(5, HOUR), Call((7,), {}, key="a")], ids=repr)
def test_what_checks_its_options_is_copied_like_other_values(one):
    assert copy.deepcopy(one) == one
    assert type(copy.copy(one)) is type(one)


@pytest.mark.parametrize(
    ("verb", "call"),
    [
        ("aenqueue", lambda: remind.enqueue(7)),
        ("aschedule_at", lambda: remind.schedule_in(HOUR, 7)),
        ("aenqueue_many", lambda: remind.enqueue_many([((7,), {})])),
        ("aenqueue_bulk", lambda: remind.enqueue_bulk([((7,), {})])),
        ("aunschedule", lambda: remind.unschedule(key="a")),
    ],
)
def test_a_sync_call_in_async_code_names_its_async_version(alias, verb, call):
    async def view():
        call()

    with pytest.raises(SynchronousOnlyOperation, match=rf"In async code: await task.{verb}\("):
        asyncio.run(view())


@pytest.mark.parametrize(
    ("name", "cure"),
    [("shared_task", "delayedq.contrib.celery.shared_task"), ("crontab", "DELAYEDQ"), ("run_due", "delayedq.testing")],
)
def test_an_import_of_another_framework_names_ours(name, cure):
    with pytest.raises(ImportError, match=f"delayedq has no '{name}'. Use .*{cure}"):
        exec(f"from delayedq import {name}")
    assert not hasattr(delayedq, name)
    assert not hasattr(delayedq, "another_name")


@pytest.mark.parametrize("wrong", ["x", None, "", 1.5, "7f3c", 0], ids=repr)
def test_a_result_that_is_not_there_says_why(alias, wrong):
    with pytest.raises(
        TaskResultDoesNotExist, match=r"is not the id of a message, which is a number|No message has the id"
    ):
        tasks.remind.get_backend().get_result(wrong)


@pytest.mark.parametrize(
    ("configured", "error", "said"),
    [
        ({"BACKEND": "django.tasks.backends.immediate.ImmediateBackend", "QUEUES": ["a"]}, InvalidTask, BACKEND),
        ({"BACKEND": "delayedq.DelayedQBackend"}, InvalidTaskBackend, "TASKS['default'] has a BACKEND that can't be"),
        (None, InvalidTaskBackend, f"TASKS['default'] is missing. Tasks of delayedq need the BACKEND {BACKEND!r}"),
    ],
    ids=["another backend", "a backend that is not there", "no backend"],
)
def test_a_wrong_setting_of_tasks_names_the_cure(settings, configured, error, said):
    if configured and task_backends["default"].__module__.startswith("django_tasks"):
        configured["BACKEND"] = configured["BACKEND"].replace("django.tasks", "django_tasks")
    settings.TASKS = {} if configured is None else {"default": configured}
    with pytest.raises(error) as raised:
        task(queue_name="mail")(defined)
    assert said in str(raised.value)


def test_without_tasks_in_the_settings_nothing_is_run_in_silence(settings):
    if BUILT_IN:
        settings.TASKS = global_settings.TASKS
    else:
        del settings.TASKS
    with pytest.raises(InvalidTask, match=r"^remind can't be enqueued: TASKS is not set. Set TASKS = "):
        remind.enqueue(7)
    with pytest.raises(InvalidTask, match=r"TASKS is not set"):
        asyncio.run(remind.aenqueue(7))
    with pytest.raises(InvalidTask, match=r"Use delayedq.backend.DelayedQBackend"):
        remind.schedule_in(HOUR, 7)


def test_what_a_hint_names_is_there():
    hints = [one for given in vars(other_names).values() if isinstance(given, dict) for one in given.values()]
    named = {name for one in hints if isinstance(one, str) for name in re.findall(r"delayedq(?:\.\w+)+", one)}
    assert len(named) > 3
    for name in named:
        pkgutil.resolve_name(name)
