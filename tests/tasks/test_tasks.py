"""`@task`: what it makes of a function, what it refuses, and where the result is found again."""

from __future__ import annotations

import asyncio
import copy
import pickle
import sys
from datetime import timedelta
from inspect import signature

import pytest

from delayedq import Task, current_message, task
from delayedq.compat import InvalidTask
from delayedq.compat import Task as DjangoTask
from delayedq.compat import task as django_task
from delayedq.core.backoff import Constant, Exponential
from delayedq.exceptions import UnknownTask
from delayedq.models import Message
from delayedq.tasks import registered, task_at
from tests.app import tasks

pytestmark = pytest.mark.usefixtures("registry")
MINUTE = timedelta(minutes=1)


def add(first, second=0):
    return first + second


async def aadd(first, second=0):
    return first + second


def with_context(context, number):
    return number


def without_context(number):
    return number


module_level_lambda = lambda: None  # noqa: E731


class Desk:
    def method(self):
        """Not a function of the module."""

    @staticmethod
    def static():
        """Looks like one."""


# Making


def test_the_bare_decorator_makes_a_task_with_the_defaults():
    made = task(add)
    assert type(made) is Task
    assert isinstance(made, DjangoTask)
    assert (made.priority, made.queue_name, made.backend, made.run_after) == (0, "default", "default", None)
    assert (made.max_attempts, made.backoff, made.timeout, made.metadata) == (8, Exponential(), None, None)
    assert (made.name, made.module_path) == ("add", "tests.tasks.test_tasks.add")


def test_the_decorator_takes_options():
    made = task(
        priority=-5, queue_name="mail", max_attempts=3, backoff=MINUTE, timeout=2 * MINUTE, metadata={"team": [1]}
    )(add)
    assert (made.priority, made.queue_name) == (-5, "mail")
    assert (made.max_attempts, made.backoff, made.timeout) == (3, MINUTE, 2 * MINUTE)
    assert made.metadata == {"team": [1]}


OPTIONS = {"max_attempts": 2, "timeout": MINUTE, "backoff": Constant(MINUTE)}
#: The decorator of Django 6.0 passes on no options but its own.
PASSED_ON = [{}, OPTIONS] if "kwargs" in signature(django_task).parameters else [{}]


@pytest.mark.parametrize("options", PASSED_ON)
def test_djangos_decorator_makes_the_same_task(options):
    assert django_task(**options)(add) == task(**options)(add) == Task(func=add, **options)


def test_an_async_function_makes_a_task():
    assert task(aadd).func is aadd


def test_a_context_is_asked_for_by_name():
    assert task(takes_context=True)(with_context).takes_context
    with pytest.raises(InvalidTask, match="'context'"):
        task(takes_context=True)(without_context)


# Refusing


@pytest.mark.parametrize(
    ("option", "value", "reason"),
    [
        ("max_attempts", 0, "max_attempts must be a number from 1 to 32,000, not 0"),
        ("max_attempts", -1, "max_attempts"),
        ("max_attempts", "3", "max_attempts .* not '3'"),
        ("max_attempts", 2.0, "max_attempts"),
        ("max_attempts", 40_000, "max_attempts .* not 40000"),
        ("timeout", timedelta(), "timeout must be a timedelta over zero"),
        ("timeout", -MINUTE, "timeout"),
        ("timeout", 5, "timeout .* not 5"),
        ("backoff", 5, "backoff is a timedelta"),
        ("backoff", -MINUTE, "backoff.* negative"),
        ("backoff", Exponential, r"Exponential\(\)"),
        ("metadata", {"to": object()}, r"\['to'\]: <object> can't be stored"),
        ("priority", 101, "priority"),
        ("priority", 1.5, "priority"),
    ],
)
def test_a_wrong_option_is_refused_by_name(option, value, reason):
    with pytest.raises(InvalidTask, match=reason):
        task(**{option: value})(add)
    assert "tests.tasks.test_tasks.add" not in registered


@pytest.mark.parametrize("option", ["max_attempts", "metadata"])
def test_a_wrong_option_is_refused_by_using_too(option):
    with pytest.raises(InvalidTask):
        tasks.remind.using(**{option: object()})


def test_an_unknown_option_is_a_type_error():
    with pytest.raises(TypeError, match="max_retries"):
        task(max_retries=3)(add)
    with pytest.raises(TypeError, match="run_after"):
        django_task(run_after=None)(add)


def nested():
    def inner():
        """Gone when `nested` returns."""

    return inner


@pytest.mark.parametrize(
    "function",
    [nested(), lambda: None, module_level_lambda, Desk.method, Desk.static, Desk().method, Desk, print, 7],
    ids=["nested", "lambda", "module-level lambda", "method", "static", "bound", "class", "builtin", "number"],
)
def test_only_a_function_of_a_module_can_be_a_task(function):
    with pytest.raises(InvalidTask, match="module level"):
        task(function) if callable(function) else task()(function)


def test_a_task_of_the_main_module_can_be_called_but_not_enqueued(alias, monkeypatch):
    monkeypatch.setattr(add, "__module__", "__main__")
    made = task(add)
    assert made(1, 2) == 3
    with pytest.raises(InvalidTask, match="__main__"):
        made.enqueue(1)
    with pytest.raises(InvalidTask, match="__main__"):
        made.schedule_in(MINUTE, 1)
    with pytest.raises(InvalidTask, match="__main__"):
        made.enqueue_many([((1,), {})])


# Changing


def test_using_changes_what_is_given_and_keeps_the_rest():
    made = task(max_attempts=3, timeout=MINUTE, backoff=MINUTE, metadata={"a": 1})(add)
    changed = made.using(priority=5, max_attempts=4)
    assert type(changed) is Task
    assert (changed.priority, changed.max_attempts) == (5, 4)
    assert (changed.timeout, changed.backoff, changed.metadata) == (MINUTE, MINUTE, {"a": 1})
    assert (made.priority, made.max_attempts) == (0, 3)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("max_attempts", 1),
        ("metadata", {"b": 2}),
        ("queue_name", "sms"),
        ("priority", -100),
    ],
)
def test_using_changes_any_option_once(option, value):
    assert getattr(tasks.remind.using(**{option: value}), option) == value
    assert getattr(tasks.remind, option) != value


@pytest.mark.parametrize("option", ["func", "takes_context", "timeout", "backoff", "max_retries", "key"])
def test_using_refuses_what_no_message_carries(option):
    with pytest.raises(TypeError, match=rf"using\(\) takes .*max_attempts.*, not {option}"):
        tasks.remind.using(**{option: 1})


def test_a_task_is_frozen():
    with pytest.raises(AttributeError):
        tasks.remind.priority = 5


def test_a_copied_or_pickled_task_is_the_same_task():
    changed = task(timeout=MINUTE)(tasks.remind.func).using(priority=5, max_attempts=2)
    assert pickle.loads(pickle.dumps(changed)) == changed
    assert copy.deepcopy(changed) == changed


# Calling


def test_calling_a_task_calls_its_function_and_stores_nothing(alias):
    assert task(add)(1, second=2) == 3
    assert tasks.remind.call(7) == "7 at None"
    assert not Message.objects.exists()


def test_calling_an_async_task_gives_its_coroutine():
    made = task(aadd)
    assert asyncio.run(made(1, second=2)) == 3
    assert asyncio.run(made.acall(1, 2)) == 3


def test_there_is_no_current_message_outside_of_a_task():
    with pytest.raises(LookupError, match="no current message"):
        current_message()


# The registry


def test_tasks_py_of_each_app_is_found():
    assert task_at("tests.app.tasks.remind") is tasks.remind


def test_a_changed_copy_does_not_take_the_place_of_its_task():
    made = task(add)
    assert made.using(max_attempts=2).max_attempts == 2
    assert task_at("tests.tasks.test_tasks.add") is made


def test_a_function_that_is_defined_again_takes_the_place_of_the_first():
    task(add)
    again = type(add)(add.__code__, add.__globals__, "add", add.__defaults__)
    made = task(again)
    assert task_at("tests.tasks.test_tasks.add") is made


@pytest.mark.parametrize(
    "path", ["os.system", "tests.tasks.test_tasks.add", "tests.app.tasks", "tests.app.tasks.nobody", "", "a b"]
)
def test_what_is_not_registered_is_unknown_whether_it_exists_or_not(path):
    with pytest.raises(UnknownTask, match=r"No task is registered as .*tasks\.py"):
        task_at(path)


def test_looking_up_a_path_never_imports_anything():
    assert "antigravity" not in sys.modules
    with pytest.raises(UnknownTask):
        task_at("antigravity.fly")
    assert "antigravity" not in sys.modules
