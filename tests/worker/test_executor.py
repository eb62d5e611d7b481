"""How an attempt ends, whatever its task does."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from delayedq import Cancel, Retry, Snooze, current_message
from delayedq.core.lifecycle import AskedCancel, AskedRetry, AskedSnooze, Impossible, Raised, Returned
from delayedq.core.serialization import loads
from delayedq.exceptions import ArgumentsMismatch, NotStorable, TaskTimeout
from delayedq.worker.executor import aexecute
from tests.app import tasks
from tests.worker.attempts import PATIENCE, attempt_of, playing, run

LATER = datetime(2026, 3, 8, 7, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def as_async(body):
    async def abody(*args):
        await asyncio.sleep(0)
        return body(*args)

    return abody


@pytest.fixture(params=["sync", "async"])
def result_of(request):
    """How an attempt of a function ends, sync and async."""
    return lambda body, **fields: run(playing(body if request.param == "sync" else as_async(body), **fields))


# Returning


def test_returning_nothing(result_of):
    ended = result_of(lambda: None)
    assert (ended.outcome, ended.error) == (Returned(None), None)
    assert 0 <= ended.finished - ended.started < PATIENCE


@pytest.mark.parametrize("value", [7, 0, False, "", [], {"a": [1.5]}, (1, {2}), LATER, b"\0"], ids=repr)
def test_returning_a_value(result_of, value):
    ended = result_of(lambda: value)
    assert ended.error is None
    assert loads(ended.outcome.result) == value


def test_returning_what_can_not_be_stored_is_impossible(result_of):
    ended = result_of(lambda: [1, object()])
    assert ended.outcome == Impossible()
    assert isinstance(ended.error, NotStorable)
    assert str(ended.error).startswith("the result[1]: <object> can't be stored")


# Raising


@pytest.mark.parametrize(
    "error", [ValueError("no fuel"), SystemExit(3), KeyboardInterrupt(), GeneratorExit()], ids=repr
)
def test_whatever_a_task_raises_ends_its_attempt_and_not_the_worker(result_of, error):
    def body():
        raise error

    ended = result_of(body)
    assert (ended.outcome, ended.error) == (Raised(), error)
    assert ended.started is not None


def test_an_async_task_that_is_cancelled_has_failed():
    async def body():
        raise asyncio.CancelledError

    assert run(playing(body)).outcome == Raised()


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (Retry(), AskedRetry()),
        (Retry("busy", delay=MINUTE), AskedRetry(MINUTE)),
        (Retry(delay=timedelta()), AskedRetry(timedelta())),
        (Snooze(MINUTE), AskedSnooze(MINUTE)),
        (Snooze(until=LATER), AskedSnooze(until=LATER)),
        (Cancel("the flight left"), AskedCancel()),
    ],
    ids=repr,
)
def test_a_task_may_say_how_its_message_goes_on(result_of, error, outcome):
    def body():
        raise error

    ended = result_of(body)
    assert (ended.outcome, ended.error) == (outcome, error)


@pytest.mark.parametrize("arguments", [{}, {"delay": MINUTE, "until": LATER}], ids=repr)
def test_a_snooze_takes_a_delay_or_a_time(arguments):
    with pytest.raises(ValueError, match="either a delay or a time"):
        Snooze(**arguments)


@pytest.mark.parametrize(
    "make",
    [
        partial(Retry, delay=5),
        partial(Snooze, 5),
        partial(Snooze, "soon"),
        partial(Snooze, until=datetime(2026, 3, 8, 7)),  # noqa: DTZ001
        partial(Snooze, until="tomorrow"),
    ],
    ids=repr,
)
def test_a_delay_or_time_of_the_wrong_kind_is_refused_where_it_is_raised(make):
    with pytest.raises((TypeError, ValueError)):
        make()


# Arguments that do not fit


@pytest.mark.parametrize("payload", ["{}", '{"args":[1,2,3]}', '{"kwargs":{"flight":7}}'], ids=repr)
@pytest.mark.parametrize("task", [tasks.remind, tasks.aplay], ids=["sync", "async"])
def test_arguments_that_do_not_fit_the_signature_are_impossible(task, payload):
    if task is tasks.aplay and "1,2,3" in payload:
        payload = '{"args":[],"kwargs":{"args":1}}'
    ended = run(attempt_of(task, payload=payload))
    assert ended.outcome == Impossible()
    assert isinstance(ended.error, ArgumentsMismatch)
    assert str(ended.error).startswith(f"The stored arguments do not fit {task.module_path}: ")


def test_the_context_is_none_of_the_arguments():
    assert run(attempt_of(tasks.count_attempts, 10, attempt=3)).outcome == Returned("13")
    ended = run(attempt_of(tasks.count_attempts, payload='{"args":[1,2]}'))
    assert isinstance(ended.error, ArgumentsMismatch)


@pytest.mark.parametrize("body", [lambda: int([]), lambda: tasks.remind.func()], ids=["builtin", "call"])  # noqa: PLW0108
def test_a_type_error_inside_the_task_is_an_error_like_others(result_of, body):
    ended = result_of(body)
    assert ended.outcome == Raised()
    assert type(ended.error) is TypeError


@pytest.mark.parametrize(
    "payload",
    ["", "no json", "[]", "7", '{"args":7}', '{"kwargs":[]}', '{"more":1}', '{"args":[{"$":"unheard"}]}', "[" * 9999],
    ids=lambda payload: payload[:20],
)
@pytest.mark.parametrize("task", [tasks.nothing, tasks.aecho], ids=["sync", "async"])
def test_a_payload_that_can_not_be_read_is_impossible(task, payload):
    ended = run(attempt_of(task, payload=payload))
    assert ended.outcome == Impossible()
    assert isinstance(ended.error, ArgumentsMismatch)


def test_an_error_of_ours_that_a_task_raises_itself_is_an_error_like_others(result_of):
    def body():
        raise ArgumentsMismatch("of something else")

    assert result_of(body).outcome == Raised()


# The current message


def test_the_task_sees_its_message_and_nobody_else_does(result_of):
    seen = []
    ended = result_of(lambda: seen.append(current_message()), key="UA1545", attempt=2, metadata='{"trace":1}')

    assert seen == [ended.attempt]
    assert (seen[0].key, seen[0].attempt, seen[0].metadata) == ("UA1545", 2, {"trace": 1})
    assert repr(seen[0]) == "<tests.app.tasks.play UA1545, attempt 2 of 8>".replace("play", ended.attempt.task.name)
    with pytest.raises(LookupError):
        current_message()


def test_the_message_is_gone_after_an_error_too(result_of):
    result_of(lambda: 1 / 0)
    with pytest.raises(LookupError):
        current_message()


def test_async_tasks_side_by_side_see_their_own_messages():
    async def body(barrier, key):
        await barrier.wait()
        return current_message().key == key

    async def both():
        barrier = asyncio.Barrier(2)
        bodies = [partial_async(body, barrier, key) for key in "ab"]
        attempts = [playing(one, key=key) for one, key in zip(bodies, "ab", strict=True)]
        async with asyncio.timeout(PATIENCE):
            return await asyncio.gather(*map(aexecute, attempts))

    assert [ended.outcome for ended in asyncio.run(both())] == [Returned("true")] * 2


def partial_async(body, *args):
    async def call():
        return await body(*args)

    return call


def test_code_that_an_async_task_runs_in_a_thread_sees_its_message():
    async def body():
        return (await asyncio.to_thread(current_message)).id == current_message().id

    assert run(playing(body)).outcome == Returned("true")


# Timeouts of async tasks; those of sync ones are the pool's


HURRIED = replace(tasks.aplay, timeout=timedelta(milliseconds=10))


def test_an_async_task_that_takes_too_long_fails_with_task_timeout():
    cleaned = []

    async def body():
        try:
            await asyncio.sleep(PATIENCE)
        finally:
            cleaned.append("up")

    ended = run(playing(body, task=HURRIED))
    assert ended.outcome == Raised()
    assert isinstance(ended.error, TaskTimeout)
    assert str(ended.error) == "It took longer than 0:00:00.010000."
    assert cleaned == ["up"]


def test_a_timeout_error_of_the_task_itself_stays_what_it_is():
    async def body():
        raise TimeoutError("the gate did not answer")

    ended = run(playing(body, task=replace(tasks.aplay, timeout=MINUTE)))
    assert type(ended.error) is TimeoutError


def test_an_async_task_within_its_time_succeeds():
    async def body():
        return 7

    assert run(playing(body, task=replace(tasks.aplay, timeout=MINUTE))).outcome == Returned("7")
