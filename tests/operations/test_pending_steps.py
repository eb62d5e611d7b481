"""`check-pending` compares the recorded steps of what waits with those that its task declares."""

from __future__ import annotations

from datetime import timedelta

from django.utils import timezone

from delayedq.models import RecordedStep
from delayedq.operations.pending import Unrunnable, check_pending
from delayedq.testing import run_due
from tests.app import stepping, tasks

HOUR = timedelta(hours=1)


def record(id_, *names):
    for name in names:
        RecordedStep.objects.create(
            message_id=int(id_), generation=0, name=name, result="1", recorded_at=timezone.now()
        )


def test_recorded_steps_that_the_task_no_longer_declares_are_named(store):
    first, second, fits = (stepping.declared.schedule_in(HOUR, ["charge"]).id for _ in range(3))
    record(first, "charge", "refund", "refund#2", "sleep")
    record(second, "refund#2")
    record(fits, "charge", "charge#2", "ship", "sleep#2")
    record(tasks.remind.schedule_in(HOUR, 7).id, "anything")
    record(10**12, "refund")

    reason = "They have recorded the step 'refund'; the steps of the task are charge, ship."
    assert check_pending(store) == (4, [Unrunnable(stepping.declared.module_path, reason, int(first), 2)])


def test_what_has_ended_is_not_in_the_way(store):
    record(stepping.declared.enqueue([]).id, "refund")
    run_due()
    assert check_pending(store) == (0, [])
