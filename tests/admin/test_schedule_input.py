"""What people may enter and ask for on the pages of the schedules, without an error page."""

from __future__ import annotations

import pytest
from django.contrib.admin.models import LogEntry

from delayedq import schedules
from delayedq.models import CronSchedule, Edit
from tests.admin.given import said, text_of
from tests.admin.test_schedules import SCHEDULES, add, now  # noqa: F401  fixture
from tests.store.given import together

VIEWS = ["schedule", "edit", "delete", "run", "disable", "enable"]


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("name", ["%00", "a%00b", "%ED%A0%80", "%F0%9F%98%80", "x" * 5_000, "%20"])
def test_a_name_that_no_schedule_can_have_is_not_found(now, store, operator, view, name):  # noqa: F811
    assert operator.get(f"{SCHEDULES}{view}/?name={name}").status_code == 404


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"args": "[" * 50_000 + "]" * 50_000}, "This is nested too deeply"),
        ({"args": "[" * 500 + "]" * 500}, "it sits inside 100 others"),
        ({"args": f"[{'9' * 5_000}]"}, "This is no JSON"),
        ({"args": '{"a": 1}'}, "It is a list"),
        ({"cron": "", "timezone": "", "every": "99999999999999 00:00:00"}, "longer than all time that can be stored"),
        ({"cron": "", "timezone": "", "every": "-900"}, "one second or more"),
        ({"jitter": "99999999999999999999"}, "longer than all time that can be stored"),
        ({"start": "2026-03-08T02:30:00"}, "an aware datetime"),
        ({"start": "9999-12-31T23:59:59-23:59", "end": "0001-01-01T00:00:00+23:59"}, "must not be before its start"),
        ({"max_runs": "9" * 50}, "It is a whole number"),
        ({"max_runs": "0"}, "It is a whole number"),
        ({"timezone": "../../etc/passwd"}, "There is no time zone"),
        ({"timezone": "/etc/passwd"}, "There is no time zone"),
        ({"cron": ", " * 200}, "fields"),
        ({"cron": f"{'0-59,' * 50_000}0 * * * *"}, "at most 500 characters"),
        ({"task": "os.system"}, "Select a valid choice"),
        ({"misfire": "twice"}, "Select a valid choice"),
        ({"name": "x" * 141}, "at most 140 characters"),
        ({"name": "a\0b"}, "Null characters"),
        ({"queue_name": "x" * 5_000}, "queue"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_hostile_input_is_refused_with_the_reason(now, store, operator, fields, problem):  # noqa: F811
    page = add(operator, **fields)
    assert page.status_code == 200
    assert problem in text_of(page)
    assert not CronSchedule.objects.exists()


def test_what_was_not_deleted_is_not_in_the_log(now, store, operator):  # noqa: F811
    page = operator.post(f"{SCHEDULES}delete/?name=report", follow=True)
    assert "is changed there" in said(page)[0]
    assert not LogEntry.objects.exists()


def test_two_edits_at_once_are_recorded_one_after_the_other(now, store, operator):  # noqa: F811
    """Each record begins where the one before ended, so the last one can be undone."""
    from delayedq.cron.operator import recorded

    add(operator)
    together(
        *[
            lambda priority=priority: recorded("tea", "Change", lambda: schedules.update("tea", priority=priority))
            for priority in (1, 2, 3)
        ]
    )
    records = list(Edit.objects.order_by("id").values_list("messages__before", "messages__after"))
    assert len({before for before, _ in records}) == 4
    assert {before for before, _ in records} - {after for _, after in records} == {records[0][0]}
