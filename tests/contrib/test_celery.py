"""Tasks with the names of Celery do here what they did there, and what has no equal is refused."""

from __future__ import annotations

import inspect
import re
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import celery.result
import pytest
from django.db import transaction

from delayedq.compat import TaskResultDoesNotExist
from delayedq.contrib import celery as shim
from delayedq.contrib.celery import AsyncResult, Self, TaskFailed, shared_task
from delayedq.exceptions import InvalidTime
from delayedq.models import Message
from delayedq.testing import clock, run_due
from tests.contrib.celery_tasks import add, fetch, handled, hopeless, limited, patient, second_of_mail, unstable

SECOND = timedelta(seconds=1)
MOVING = Path(__file__).parents[2] / "docs/moving.md"
NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)

pytestmark = [pytest.mark.usefixtures("alias"), pytest.mark.parametrize("alias", ["sqlite"], indirect=True)]


@pytest.fixture(autouse=True)
def frozen(alias):
    with clock(NOON) as frozen:
        yield frozen


def due():
    return Message.objects.get().scheduled_at


#: What docs/moving.md says of `apply_async` and `shared_task`: never dropped in silence.
REFUSED_BY_APPLY = [
    *("link", "link_error", "task_id", "serializer", "compression", "routing_key", "exchange", "headers", "retry"),
    *("retry_policy", "soft_time_limit", "time_limit", "shadow", "group_id", "chord", "reply_to", "connection"),
]
REFUSED_BY_TASK = [
    *("serializer", "base", "throws", "compression", "pydantic", "resultrepr_maxsize", "abstract", "retry_kwargs"),
    *("on_failure", "before_start"),
]


def test_delay_stores_a_message_and_its_result_is_read_by_its_id():
    result = add.delay(2, y=3)
    assert (result.state, result.ready(), result.result) == ("PENDING", False, None)
    run_due()
    assert (result.state, result.ready(), result.successful(), result.failed()) == ("SUCCESS", True, True, False)
    assert AsyncResult(result.id).get(timeout=1) == 5
    assert AsyncResult(result.id) == result
    assert (str(result), f"{result}", result == result.id, result == "") == (result.id, result.id, True, False)
    assert {result.id: 7}[result] == 7
    assert add(2, 3) == 5, "it can be called"


def test_what_is_stored_in_a_transaction_that_is_rolled_back_never_was(alias):
    with transaction.atomic(using=alias):
        result = add.delay_on_commit(1, 1)
        transaction.set_rollback(True, using=alias)
    assert result.state == "PENDING", "as for any id that is not known"
    with pytest.raises(TaskResultDoesNotExist):
        result.get()


@pytest.mark.parametrize(
    ("options", "when"),
    [
        ({}, NOON),
        ({"countdown": 90}, NOON + 90 * SECOND),
        ({"eta": NOON + timedelta(hours=1)}, NOON + timedelta(hours=1)),
    ],
)
def test_apply_async_schedules_it(options, when):
    add.apply_async((1,), {"y": 2}, **options)
    assert due() == when


def test_apply_async_chooses_queue_and_priority():
    add.apply_async((1, 2), queue="mail", priority=9)
    message = Message.objects.get()
    assert (message.queue, message.priority) == ("mail", 9)


@pytest.mark.parametrize("expires", [10, NOON + 10 * SECOND])
@pytest.mark.parametrize(("late", "state"), [(9, "SUCCESS"), (11, "REVOKED")])
def test_expires_counts_from_the_call(frozen, expires, late, state):
    result = add.apply_async((1, 2), countdown=5, expires=expires)
    frozen.move_to(NOON + late * SECOND)
    run_due(raise_failures=False)
    assert result.state == state


def test_a_bound_task_retries_by_itself(frozen):
    result = fetch.delay("https://example.org")
    for number in (1, 2):
        run_due(raise_failures=False, follow=False)
        assert (result.state, due()) == ("RETRY", NOON + number * 60 * SECOND)
        frozen.move_to(due())
    run_due()
    assert result.get() == ["tests.contrib.celery_tasks.fetch", result.id, 2, "mail"]
    assert (fetch.max_attempts, fetch.timeout) == (3, 10 * SECOND)


def test_a_retry_without_a_time_waits_for_default_retry_delay_whatever_retry_backoff_says():
    result = patient.delay()
    run_due(raise_failures=False, follow=False)
    assert (result.state, due()) == ("RETRY", NOON + 30 * SECOND)


def test_the_last_retry_raises_the_error_itself():
    result = hopeless.delay()
    run_due(raise_failures=False)
    assert result.failed(), "it was tried again at once"
    with pytest.raises(TaskFailed, match="OSError: down"):
        result.get()
    assert isinstance(result.get(propagate=False), TaskFailed)


def test_a_bound_task_that_is_called_as_a_function_has_no_request_and_raises_the_error_itself():
    with pytest.raises(OSError, match="down"):
        hopeless()
    with pytest.raises(OSError, match=r"https://example\.org"):
        fetch("https://example.org")
    assert (Self().request.id, Self().request.retries) == (None, 0)


def test_a_decorator_may_be_used_twice():
    result = second_of_mail.delay()
    run_due()
    assert (result.get(), second_of_mail.queue_name) == (9, "mail")


def test_a_retry_keeps_the_error_that_is_handled():
    result = handled.delay()
    run_due(raise_failures=False)
    first, last = result._read().errors
    assert (first.exception_class_path, first.message) == ("delayedq.exceptions.Retry", "down")
    assert any("OSError: down" in one for one in first.chain)
    assert last.exception_class_path == "builtins.OSError"


@pytest.mark.parametrize(("error", "state"), [("OSError", "RETRY"), ("ValueError", "FAILURE")])
def test_only_what_autoretry_for_names_is_retried(error, state):
    result = unstable.delay(error)
    run_due(raise_failures=False, follow=False)
    assert result.state == state


def test_retry_backoff_doubles_up_to_its_maximum():
    assert [unstable.backoff(attempt) for attempt in (1, 2, 3)] == [2 * SECOND, 4 * SECOND, 5 * SECOND]


def test_a_rate_is_one_of_all_workers_and_an_option_without_effect_is_taken():
    (limit,) = limited.limit if isinstance(limited.limit, list | tuple) else (limited.limit,)
    assert (limit.rate.count, limit.rate.per, limit.rate.burst) == (10, timedelta(minutes=1), 1)
    assert limited.expires == 30 * SECOND


def test_revoke_cancels_what_waits():
    result = add.delay(1, 2)
    result.revoke()
    assert (result.state, run_due()) == ("REVOKED", [])


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (
            lambda: shared_task(serializer="pickle")(limited.func),
            "shared_task.. knows no serializer; see docs/moving.md",
        ),
        (lambda: shared_task(rate_limit="often")(add.func), "'10/s', '10/m' or '10/h', not 'often'"),
        *(
            (partial(add.apply_async, (1, 2), **{name: "x"}), f"apply_async.. of add knows no {name}; see docs/moving")
            for name in REFUSED_BY_APPLY
        ),
        *(
            (partial(shared_task(**{name: "x"}), limited.func), f"shared_task.. knows no {name}; see docs/moving.md")
            for name in REFUSED_BY_TASK
        ),
        (lambda: add.apply_async((1, 2), link=add, task_id="x"), "apply_async.. of add knows no link, task_id"),
        (lambda: add.apply_async("text"), "too many positional arguments"),
        (lambda: AsyncResult("1").get(on_message=print), r"get.. knows no on_message.*Use delayedq.signals"),
        (lambda: AsyncResult("1").revoke(terminate=True), "revoke.. knows no terminate.*without it: a task that runs"),
        (lambda: AsyncResult("1", app=None), "AsyncResult.. knows no app.*manage.py knows the project"),
        (lambda: Self().retry(args=[1]), r"self.retry.. knows no args.*Use the arguments of the message"),
        (lambda: Self().retry([1]), r"self.retry.. knows no args"),
        (lambda: Self().retry(max_retries=9), r"knows no max_retries.*Use max_retries= of shared_task"),
        (lambda: Self().retry(throw=False), r"knows no throw.*which always raises"),
        (lambda: add.delay(1), "missing a required argument: 'y'"),
    ],
)
def test_what_has_no_equal_is_refused_where_it_is_written(wrong, said):
    with pytest.raises(TypeError, match=said):
        wrong()
    assert not Message.objects.exists()


@pytest.mark.parametrize(
    ("of", "name"),
    [
        *((Self(), name) for name in ("update_state", "apply_async", "backend", "app", "replace")),
        *((Self.request, name) for name in ("headers", "root_id", "chain", "hostname")),
        *((AsyncResult("1"), name) for name in ("info", "traceback", "children", "collect", "then")),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_an_attribute_that_has_no_equal_says_where_to_look(of, name):
    with pytest.raises(AttributeError, match=f"has no '{name}' here; see docs/moving.md"):
        getattr(of, name)


@pytest.mark.parametrize("name", ["apply", "subtask", "chunks", "map", "starmap", "signature"])
def test_a_method_of_a_task_that_has_no_equal_is_missing(name):
    with pytest.raises(AttributeError, match=f"no attribute '{name}'"):
        getattr(add, name)


@pytest.mark.parametrize("name", ["eta", "expires"])
def test_a_time_without_a_zone_is_refused(name):
    with pytest.raises(InvalidTime, match="has no time zone"):
        add.apply_async((1, 2), **{name: datetime(2026, 7, 1, 12)})  # noqa: DTZ001
    assert not Message.objects.exists()


# The real Celery


def names_of(function):
    every = inspect.signature(function).parameters.values()
    return {one.name for one in every if one.kind is not one.VAR_KEYWORD} - {"self", "name"}


OF_APPLY = names_of(celery.Task.apply_async) | names_of(celery.Celery.send_task)
#: What is an internal part of Celery.
INTERNAL = {"result_cls", "task_type", "replaced_task_nesting"}
OF_RESULT = {name for name in dir(celery.result.AsyncResult) if not name.startswith("_")}
INTERNAL_OF_RESULT = {
    *("TimeoutError", "as_list", "as_tuple", "build_graph", "exists", "get_leaf", "graph", "ignored", "maybe_reraise"),
    *("maybe_throw", "revoke_by_stamped_headers", "supports_native_join"),
}


def test_each_argument_of_the_real_apply_async_is_taken_or_refused_with_the_cure():
    taken = names_of(add.apply_async.__func__)
    for name in sorted(OF_APPLY - taken):
        with pytest.raises(
            TypeError, match=rf"knows no {name}; see docs/moving.md" + ("" if name in INTERNAL else ". Use")
        ):
            add.apply_async((1, 2), **{name: None})
    assert not Message.objects.exists()


#: What `shared_task` takes there: class attributes of tasks, and what is read by their names.
OF_TASK = {
    name
    for name, value in vars(celery.Task).items()
    if not name.startswith("_") and not callable(value) and not isinstance(value, classmethod)
}
OF_TASK |= {"base", "bind", "autoretry_for", "dont_autoretry_for", "retry_backoff", "retry_kwargs", "queue", "exchange"}
OF_TASK |= {"routing_key", "after_return", "before_start", "on_failure", "on_retry", "on_success"}
INTERNAL_OF_TASK = {
    *("Request", "Strategy", "abstract", "app", "backend", "from_config", "request", "request_stack", "typing"),
    *("resultrepr_maxsize", "store_errors_even_if_ignored"),
}


def test_each_option_of_the_real_shared_task_is_taken_or_refused_with_the_cure():
    taken = {*shim.NO_EFFECT, *re.findall(r'\.(?:pop|get)\("(\w+)"', inspect.getsource(shim))}
    for name in sorted(OF_TASK - taken - INTERNAL_OF_TASK):
        with pytest.raises(TypeError, match=rf"shared_task.. knows no {name}; see docs/moving.md. Use "):
            shared_task(**{name: None})(limited.func)


def test_each_argument_of_the_real_retry_is_taken_or_refused_with_the_cure():
    for name in sorted(names_of(celery.Task.retry) - {"exc", "countdown", "eta", "throw"}):
        with pytest.raises(TypeError, match=rf"knows no {name}; see docs/moving.md. Use"):
            Self().retry(**{name: None})


def test_each_name_of_the_real_result_is_here_or_refused_with_the_cure():
    result = AsyncResult("1")
    ours = {name for name in OF_RESULT if hasattr(type(result), name)} | {"id", "task_id", "backend"}
    for name in sorted(OF_RESULT - ours - INTERNAL_OF_RESULT):
        with pytest.raises(AttributeError, match=rf"no '{name}' here; see docs/moving.md. Use "):
            getattr(result, name)


def test_a_retry_at_a_time_without_a_zone_is_refused():
    with pytest.raises(InvalidTime, match="has no time zone"):
        Self().retry(eta=datetime(2026, 7, 1, 12))  # noqa: DTZ001


@pytest.mark.parametrize("name", shim.NAMES)
def test_what_is_imported_under_a_name_of_celery_is_refused_with_the_cure(name):
    with pytest.raises(ImportError, match=rf"delayedq.contrib.celery knows no {name}; .* Use "):
        exec(f"from delayedq.contrib.celery import {name}")
    assert not hasattr(shim, name)


@pytest.mark.parametrize("names", ["CALLS", "RETRIES", "RESULTS", "NAMES", "TASKS"])
def test_what_is_refused_is_in_the_table(names):
    rows = [line for line in MOVING.read_text().splitlines() if line.startswith("|")]
    missing = [name for name in getattr(shim, names) if not any(f"`{name}`" in row for row in rows)]
    assert missing == []
