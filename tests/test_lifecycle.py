"""When a task is tried again, when it is given up, and when it is not worth starting."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from delayedq import Retry, Snooze, current_message, task
from delayedq.compat import InvalidTask, TaskResultStatus, default_task_backend
from delayedq.core.metadata import STARTED, with_own
from delayedq.exceptions import DeadlineExceeded
from delayedq.models import FinishedMessage, Message
from delayedq.store import operator_store
from delayedq.store.operator import Revival
from delayedq.tasks import registered
from delayedq.testing import clock, run_due, run_until
from tests.app import lifecycle, tasks
from tests.app.models import Mark
from tests.worker.attempts import playing as attempt_playing
from tests.worker.pools import working

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
START = datetime(2026, 3, 8, 6, 55, tzinfo=UTC)


def enqueue(task, error=None, **options):
    def body():
        if error is not None:
            raise error

    tasks.bodies["lifecycle"] = body
    return task.using(**options).enqueue("lifecycle")


def outcomes(moments=None):
    return [one.outcome for one in (moments or run_due(raise_failures=False))]


def marks():
    return list(Mark.objects.values_list("name", "value"))


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (ConnectionResetError("busy"), "retry"),
        (TimeoutError(), "retry"),
        (Retry("please"), "retry"),
        (ConnectionRefusedError("no"), "failed"),
        (ValueError("other"), "failed"),
    ],
)
def test_only_the_errors_that_are_meant_are_tried_again(alias, error, outcome):
    enqueue(lifecycle.picky, error)
    assert outcomes() == [outcome]


def test_a_choice_that_fails_is_logged_and_the_task_tried_again(alias, caplog):
    enqueue(lifecycle.choosy, ValueError(type("Unprintable", (), {"__str__": lambda _: 1 / 0})()))
    assert outcomes() == ["retry"]
    assert "What retry_on or give_up_on of tests.app.lifecycle.choosy calls failed" in caplog.text


def test_a_list_of_pauses(alias):
    with clock(START) as now:
        enqueue(lifecycle.picky, TimeoutError(), max_attempts=4)
        seen = []
        for _ in range(3):
            run_due(raise_failures=False)
            due = Message.objects.get().scheduled_at
            seen.append(due - now())
            now.move_to(due)
    assert seen == [MINUTE, HOUR, HOUR]


def test_what_expired_is_not_started_and_no_dead_letter(alias):
    with clock(START) as now:
        result = lifecycle.fresh.enqueue()
        lifecycle.fresh.using(expires=2 * HOUR).enqueue()
        now.advance(HOUR)
        assert outcomes() == ["expired", "succeeded"]
    row = FinishedMessage.objects.expired().get()
    assert (str(row.id), row.attempts, row.started_at) == (result.id, 0, None)
    assert "It was not started within 1:00:00 after it was due." in row.errors
    assert default_task_backend.get_result(result.id).status is TaskResultStatus.FAILED
    assert not FinishedMessage.objects.failed().exists()


def test_a_retry_does_not_expire(alias):
    with clock(START) as now:
        enqueue(lifecycle.fresh, ValueError("no"), max_attempts=2)
        assert outcomes() == ["retry"]
        now.advance(24 * HOUR)
        assert outcomes() == ["failed"]


def test_what_was_scheduled_again_expires_from_its_new_time(alias):
    with clock(START) as now:
        lifecycle.fresh.enqueue()
        Message.objects.update(scheduled_at=START + 3 * HOUR)  # as an operator does it
        now.advance(3.5 * HOUR)
        assert outcomes() == ["succeeded"]


def test_what_has_slept_does_not_expire(alias):
    def sleep():
        current_message().step("charge", list)
        current_message().sleep(24 * HOUR)

    tasks.bodies["sleep"] = sleep
    with clock(START) as now:
        lifecycle.fresh.enqueue("sleep")
        assert outcomes() == ["snoozed"]
        now.advance(26 * HOUR)
        assert outcomes() == ["succeeded"]


def test_what_has_started_and_is_snoozed_does_not_expire(alias):
    """A snooze takes back the attempt that the start was charged with; what comes after it is no first start."""
    pauses = [Snooze(24 * HOUR), Snooze(until=START + 50 * HOUR)]

    def check():
        if pauses:
            raise pauses.pop(0)

    tasks.bodies["check"] = check
    with clock(START) as now:
        lifecycle.fresh.enqueue("check")
        lifecycle.fresh.using(expires=2 * HOUR, metadata={"a": 1}).enqueue("check")
        assert outcomes() == ["snoozed"] * 2
        assert [message.metadata_value for message in Message.objects.order_by("id")] == [None, {"a": 1}]
        now.advance(26 * HOUR)
        assert outcomes() == ["succeeded"]
        now.advance(26 * HOUR)
        assert outcomes() == ["succeeded"]
    assert not FinishedMessage.objects.expired().exists()


def test_what_a_former_version_has_started_does_not_expire(alias):
    """It has stored that as true."""
    with clock(START) as now:
        enqueue(lifecycle.fresh)
        Message.objects.update(metadata=with_own(Message.objects.get().metadata, {STARTED: True}))
        now.advance(24 * HOUR)
        assert outcomes() == ["succeeded"]


def test_what_is_scheduled_again_after_a_snooze_may_expire(alias):
    """The message that stands then has not started."""
    tasks.bodies["wait"] = lambda: (_ for _ in ()).throw(Snooze(HOUR))
    with clock(START) as now:
        lifecycle.fresh.schedule_at(START, "wait", key="a")
        assert outcomes() == ["snoozed"]
        lifecycle.fresh.schedule_at(START + 2 * HOUR, "other", key="a")
        now.advance(3 * HOUR)
        assert outcomes() == ["expired"]


@pytest.mark.parametrize("seconds", [0, 0.123456])
def test_what_is_brought_back_after_a_snooze_may_expire(alias, seconds):
    """It has not started since then; not so if it is snoozed once more."""
    errors = [Snooze(HOUR), ValueError("no"), Snooze(24 * HOUR), None]

    def fail():
        if error := errors.pop(0):
            raise error

    tasks.bodies["fail"] = fail
    with clock(START + timedelta(seconds=seconds)) as now:
        for _ in range(2):
            id_ = int(lifecycle.fresh.using(max_attempts=1).enqueue("fail").id)
            assert outcomes() == ["snoozed"]
            now.advance(HOUR)
            assert outcomes() == ["failed"]
            now.advance(HOUR)
            assert operator_store(alias).revive([Revival(id_, now())], "failed") == {id_}
            if len(errors) == 2:
                assert outcomes() == ["snoozed"]
                now.advance(24 * HOUR)
                assert outcomes() == ["succeeded"]
                errors += [Snooze(HOUR), ValueError("no")]
            else:
                now.advance(HOUR)
                assert outcomes() == ["expired"]


def test_a_snooze_writes_nothing_to_what_does_not_expire(alias):
    tasks.bodies["wait"] = lambda: (_ for _ in ()).throw(Snooze(HOUR))
    tasks.play.enqueue("wait")
    assert outcomes() == ["snoozed"]
    assert Message.objects.get().metadata is None


def test_a_deadline_holds_for_all_attempts_together(alias):
    with clock(START):
        enqueue(lifecycle.bounded, ValueError("no"))
        attempts = run_until(START + 3 * HOUR, raise_failures=False)
    assert outcomes(attempts) == ["retry", "failed"]  # at 6:55 and 7:15; the next would be at 8:15
    row = FinishedMessage.objects.failed().get()
    assert row.finished_at == START + 20 * MINUTE
    assert "No attempt follows: it must have ended 1:00:00 after it was first due." in row.errors


def test_what_was_not_started_before_its_deadline_fails(alias):
    with clock(START) as now:
        lifecycle.bounded.enqueue()
        now.advance(HOUR)
        (attempt,) = run_due(raise_failures=False)
    assert (attempt.outcome, type(attempt.error)) == ("failed", DeadlineExceeded)


def test_an_attempt_is_interrupted_at_its_deadline():
    def spin():
        while True:
            pass

    soon = datetime.now(UTC) - HOUR + timedelta(seconds=0.5)
    with working(1) as worker:
        (ended,) = worker.run(attempt_playing(spin, task=lifecycle.bounded, scheduled_at_initially=soon))
    assert (ended.outcome.permanent, type(ended.error)) == (True, DeadlineExceeded)
    assert str(ended.error) == "It did not end within 1:00:00 after it was first due."


def test_options_of_one_call_are_stored_and_come_back_with_its_result(alias):
    changed = tasks.echo.using(expires=MINUTE, deadline=HOUR, metadata={"a": 1})
    result = default_task_backend.get_result(changed.enqueue().id)
    assert (result.task.expires, result.task.deadline, result.task.metadata) == (MINUTE, HOUR, {"a": 1})
    plain = tasks.echo.enqueue()
    assert Message.objects.get(id=plain.id).metadata is None
    assert default_task_backend.get_result(plain.id) == plain


def plain(a):
    return a


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"retry_on": 5}, "retry_on must be an exception class, several of them"),
        ({"give_up_on": [int]}, "give_up_on must be an exception class, several of them"),
        ({"deadline": 5}, "deadline must be a timedelta over zero, not 5"),
        ({"expires": timedelta()}, "expires must be a timedelta over zero"),
        ({"backoff": []}, "list of delays can't be empty"),
        ({"on_success": print}, "on_success must be a task, not <built-in"),
        ({"on_failure": tasks.depart}, "on_failure must be a task that takes the id of a message; depart: missing"),
        ({"metadata": {"delayedq.expires": 1}}, "names that begin with 'delayedq.' are reserved for delayedq"),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_wrong_options_are_refused(options, problem):
    with pytest.raises(InvalidTask, match=problem):
        task(**options)(plain)
    assert f"{__name__}.plain" not in registered


def test_defaults_of_a_queue_go_before_those_of_its_backend(settings):
    settings.TASKS = {
        "default": {
            "BACKEND": "delayedq.backend.DelayedQBackend",
            "QUEUES": [],
            "OPTIONS": {
                "RETRY_ON": OSError,
                "DEADLINE": HOUR,
                "EXPIRES": HOUR,
                "QUEUE_DEFAULTS": {"mail": {"MAX_ATTEMPTS": 2, "EXPIRES": MINUTE}},
            },
        }
    }
    try:
        made = task(queue_name="mail")(plain)
        assert (made.max_attempts, made.expires, made.deadline, made.retry_on) == (2, MINUTE, HOUR, OSError)
        made = task(plain)
        assert (made.max_attempts, made.expires) == (8, HOUR)
    finally:
        registered.pop(f"{__name__}.plain", None)
