"""What follows the end of a task, or its retry: once, in the transaction that ends it."""

from __future__ import annotations

import pytest
from django.utils import timezone

from delayedq import Cancel, Snooze
from delayedq.compat import default_task_backend
from delayedq.models import FinishedMessage, Message
from delayedq.testing import clock, run_due
from tests.app import lifecycle, tasks
from tests.app.models import Mark
from tests.test_lifecycle import HOUR, MINUTE, START, enqueue, marks, outcomes
from tests.worker.attempts import drained, work


def test_a_worker_enqueues_what_follows(store):
    tasks.bodies["well"] = list
    well, once = lifecycle.followed.enqueue("well"), lifecycle.followed_once.enqueue("well")
    ill = enqueue(lifecycle.followed, ValueError("no"), max_attempts=1)
    drained(store)
    assert sorted(marks()) == sorted([("succeeded", well.id), ("succeeded", once.id), ("failed", ill.id)])


def test_each_retry_is_followed_once(store):
    result = enqueue(lifecycle.followed, ValueError("no"))
    work(store)
    Message.objects.filter(id=result.id).update(scheduled_at=START)
    work(store)
    work(store)
    assert sorted(marks()) == [("failed", result.id), ("tried", result.id)]


@pytest.mark.parametrize("retries", [0, 3])
def test_j1_as_many_retries_as_allowed_are_followed_and_then_the_failure_once(alias, retries):
    with clock(START) as now:
        result = enqueue(lifecycle.followed, ValueError("no"), max_attempts=1 + retries)
        for _ in range(retries + 3):
            run_due(raise_failures=False)
            now.advance(HOUR)
    assert marks() == [("tried", result.id)] * retries + [("failed", result.id)]


def test_j4_who_submits_a_key_shares_its_message_until_that_has_ended(alias):
    with clock(START):
        tasks.bodies["lifecycle"] = lambda: 7
        first, second = (
            lifecycle.followed.schedule_at(START, "lifecycle", key="a", on_conflict="keep") for _ in range(2)
        )
        run_due()
        third = lifecycle.followed.schedule_at(START, "lifecycle", key="a", on_conflict="keep")
        run_due()
    assert first.id == second.id != third.id
    assert [default_task_backend.get_result(one.id).return_value for one in (first, second, third)] == [7, 7, 7]
    assert marks() == [("succeeded", first.id), ("succeeded", third.id)]


def test_a_start_after_the_deadline_is_a_failure_that_is_followed(alias):
    with clock(START) as now:
        result = enqueue(lifecycle.followed, deadline=HOUR)
        now.advance(HOUR)
        assert outcomes() == ["failed", "succeeded"]
    assert marks() == [("failed", result.id)]


def test_a_failure_by_vanished_workers_is_followed(store):
    result = enqueue(lifecycle.followed)
    Message.objects.update(attempt=2, lease_token=1, leased_until=timezone.now() - MINUTE)  # both of its attempts
    drained(store)
    assert "WorkerVanished" in FinishedMessage.objects.failed().get().errors
    assert marks() == [("failed", result.id)]


@pytest.mark.parametrize("task", [lifecycle.followed, lifecycle.followed_once])
def test_a_result_that_is_too_large_is_a_failure_that_is_followed(store, settings, task):
    """It is not tried again, and an exactly-once task has written nothing."""
    settings.DELAYEDQ = {"MAX_PAYLOAD_BYTES": 100}

    def body():
        Mark.objects.create(name="written", value="1")
        return "x" * 100

    tasks.bodies["large"] = body
    result = task.enqueue("large")
    drained(store)
    row = FinishedMessage.objects.failed().get()
    assert (row.attempts, row.result) == (1, None)
    assert "PayloadTooLarge" in row.errors
    assert "The result takes 102 bytes; DELAYEDQ['MAX_PAYLOAD_BYTES'] allows 100." in row.errors
    written = [] if task.exactly_once else [("written", "1")]
    assert sorted(marks()) == sorted([("failed", result.id), *written])


@pytest.mark.parametrize("why", ["cancelled", "expired", "snoozed"])
def test_nothing_follows_what_neither_succeeds_nor_fails(alias, why):
    error = {"cancelled": Cancel("no"), "snoozed": Snooze(HOUR), "expired": None}[why]
    with clock(START) as now:
        enqueue(lifecycle.followed, error, **({"expires": MINUTE} if why == "expired" else {}))
        now.advance(MINUTE)
        assert outcomes() == [why]
    assert marks() == []


def test_a_follow_up_that_cannot_be_made_is_logged_and_the_message_ends(alias, caplog, monkeypatch):
    result = enqueue(lifecycle.followed)
    monkeypatch.setattr("delayedq.tasks.verbs.parameter_names", lambda *_: 1 / 0)
    run_due(follow=False)
    assert FinishedMessage.objects.get().outcome == "succeeded"
    assert f"{lifecycle.followed.module_path} {result.id}, attempt 1 of 2> ends without what follows" in caplog.text


def test_a_follow_up_that_is_too_large_is_logged_and_the_message_ends(alias, caplog, settings):
    """It has the lineage of its message in its metadata, beside that of its task."""
    settings.DELAYEDQ = {"MAX_PAYLOAD_BYTES": 200}
    followed = lifecycle.followed.using(metadata={"x": "y"})
    tasks.bodies["well"] = list
    object.__setattr__(lifecycle.succeeded, "metadata", {"x": "y" * 180})
    try:
        followed.enqueue("well")
        run_due(follow=False)
    finally:
        object.__setattr__(lifecycle.succeeded, "metadata", None)
    assert FinishedMessage.objects.get().outcome == "succeeded"
    assert not Message.objects.exists()
    assert "ends without what follows" in caplog.text
    assert "PayloadTooLarge" in caplog.text


def test_the_immediate_backend_runs_what_follows(settings, db):
    settings.TASKS = {"default": {"BACKEND": "delayedq.testing.ImmediateBackend"}}
    result = enqueue(lifecycle.followed)
    assert marks() == [("succeeded", result.id)]
    assert enqueue(lifecycle.picky, ValueError("no")).errors[0].exception_class is ValueError
