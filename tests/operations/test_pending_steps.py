"""`check-pending` compares the recorded steps of what waits with those that its task declares."""

from __future__ import annotations

from datetime import timedelta

from django.utils import timezone

from delayedq import Flow, chain
from delayedq.models import FlowStep, RecordedStep
from delayedq.operations.doctor import Unrunnable, check_pending
from delayedq.tasks import registered
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


def test_calls_of_flows_that_wait_for_others_are_looked_at_too(store, monkeypatch):
    fits = chain(tasks.echo.s(1), tasks.remind.s(), tasks.remind.si(7, gate="A")).enqueue()
    flow = Flow("late", on_failure=tasks.call)
    flow.add("first", tasks.echo.si(1))
    flow.add("next", tasks.remind.si(7, gate="A"), after=["first"])
    late = flow.enqueue()
    assert check_pending(store) == (2, [])

    steps = FlowStep.objects.filter(flow_id=late.id, name="next")
    (calls,) = steps.values_list("calls", flat=True)
    steps.update(calls=calls.replace("gate", "door"))
    monkeypatch.delitem(registered, tasks.call.module_path)
    checked, (unknown, unfit) = check_pending(store)

    assert checked == 2
    assert unknown[:1] + unknown[2:] == (tasks.call.module_path, late.id, 1, True)
    assert unfit == (tasks.remind.module_path, "got an unexpected keyword argument 'door'", late.id, 1, True)

    late.cancel()
    fits.cancel()
    assert check_pending(store)[1] == []
