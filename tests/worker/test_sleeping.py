"""Tasks that sleep for days hold no thread, and async tasks have steps too."""

from __future__ import annotations

import asyncio
import gc
from datetime import UTC, datetime, timedelta

from delayedq import current_message
from delayedq.compat import task_backends
from delayedq.models import FinishedMessage, Message, RecordedStep
from delayedq.testing import clock, run_due, run_until
from tests.app import tasks
from tests.app.models import Mark
from tests.worker.stepping_attempts import marks, play

NOW = datetime(2026, 3, 8, 6, 55, tzinfo=UTC)
DAY = timedelta(days=1)


def write(name):
    Mark.objects.create(name=name)
    return name


def names():
    return list(RecordedStep.objects.order_by("id").values_list("name", flat=True))


def test_it_sleeps_without_a_thread_and_passes_when_it_is_time(alias):
    def body():
        message = current_message()
        message.step("a", write, "a")
        message.sleep(3 * DAY)
        message.step("b", write, "b")
        message.sleep_until(NOW + 10 * DAY)
        return message.attempt

    with clock(NOW):
        play(body, max_attempts=1)
        (slept,) = run_due()
        assert (slept.outcome, Message.objects.get().scheduled_at, marks()) == ("snoozed", NOW + 3 * DAY, ["a"])
        attempts = run_until(NOW + 30 * DAY)
    assert [one.outcome for one in attempts] == ["snoozed", "succeeded"]
    assert names() == ["a", "sleep", "b", "sleep#2"]
    assert (FinishedMessage.objects.get().result, FinishedMessage.objects.get().finished_at) == ("1", NOW + 10 * DAY)


def test_who_runs_it_too_early_does_not_wake_it_and_a_later_attempt_does_not_move_its_time(alias):
    def body():
        current_message().sleep(DAY)

    with clock(NOW) as frozen:
        play(body)
        run_due()
        frozen.advance(DAY / 2)
        Message.objects.update(scheduled_at=frozen())
        run_due()
        assert Message.objects.get().scheduled_at == NOW + DAY
        frozen.advance(DAY / 2)
        assert [one.outcome for one in run_due()] == ["succeeded"]


def test_async_tasks_have_steps_and_sleep(alias):
    async def fetch(name):
        await asyncio.sleep(0)
        return name

    def fails():
        write("gone")
        raise ValueError

    async def body():
        message = current_message()
        got = [await message.astep("fetch", fetch, "f"), await message.astep("write", write, "w")]
        got += await asyncio.gather(*(message.astep(fetch, name) for name in "xyz"))
        await message.asleep(DAY)
        await message.asleep_until(NOW)
        got.append(await message.astep(len, got))
        return got

    with clock(NOW) as frozen:
        play(body, task=tasks.aplay)
        run_due()
        frozen.advance(DAY)
        run_due()
    assert FinishedMessage.objects.get().result == '["f","w","x","y","z",5]'
    assert sorted(names()) == ["fetch", "fetch#2", "fetch#3", "fetch#4", "len", "sleep", "sleep#2", "write"]
    assert marks() == ["w"]

    async def fail():
        await current_message().astep(fails)

    play(fail, task=tasks.aplay)
    run_due(limit=1, raise_failures=False)
    assert marks() == ["w"]
    gc.collect()  # asgiref ends its thread when nothing refers to it; the traceback of an error does


def test_without_a_database_steps_are_kept_in_memory(settings):
    settings.TASKS = {"default": {"BACKEND": "delayedq.testing.ImmediateBackend"}}
    calls = []

    def body():
        message = current_message()
        got = [message.step("a", calls.append, "a"), message.step("b", len, "bc")]
        if message.attempt < 3:
            raise ValueError
        message.sleep_until(NOW)
        return got

    tasks.bodies["in memory"] = body
    result = tasks.play.enqueue("in memory")
    assert (result.return_value, calls) == ([None, 2], ["a"])
    assert task_backends["default"].results == [result]
