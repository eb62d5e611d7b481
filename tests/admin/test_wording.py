"""Words of the pages: of times, rates, types and states; and where a form says what is wrong."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from django.utils import translation

from delayedq import limits, schedules
from delayedq.admin.figures import rate_of
from delayedq.core.errors import fingerprint
from delayedq.cron.operator import describe, named_schedule
from delayedq.limits.operator import why_limited
from delayedq.models import Message
from delayedq.operations.group_names import name_of
from delayedq.operations.pauses import pause, pause_task
from delayedq.operations.wording import seconds
from tests.admin.given import HISTORY, choose_all, dead, offer, text_of
from tests.admin.test_channels import fill
from tests.app import tasks

CHANNELS = "/admin/delayedq/pausedqueue/channels/"
DELIVER = "tests.app.tasks.deliver"

pytestmark = pytest.mark.parametrize("alias", ["sqlite"], indirect=True)


@pytest.mark.parametrize(("number", "text"), [(9e-6, "0.009 ms"), (0.006, "6 ms"), (0.5, "500 ms"), (90, "1.5 min")])
def test_a_short_time_has_a_unit_that_can_be_read(store, number, text):
    assert seconds(number) == text


@pytest.mark.parametrize(("number", "minutes", "text"), [
    (300, 60, "5.0 per minute"), (1, 60, "1.0 per hour"), (24, 1_440, "1.0 per hour"), (3, 10_080, "0.4 per day"),
    (0, 60, "0.0 per minute"), (600_000, 60, "10,000 per minute"),
])  # fmt: skip
def test_a_rate_is_told_in_a_time_in_which_something_happens(store, number, minutes, text):
    assert rate_of(number, minutes) == text


def test_a_confirmation_names_an_error_by_its_class_and_a_time_with_its_zone(operator, store):
    line = "app.Full: Seat 1 is taken"
    record = {"attempt": 1, "exception": "app.Full", "message": "Seat 1 is taken", "traceback": ""}
    dead(store, "a", errors=json.dumps([record]))
    group = name_of(fingerprint(line))
    query = f"outcome=failed&group={group}&since=2020-01-02T03:04:05"
    confirmation = choose_all(operator, "retry", query, where=HISTORY)
    assert {*confirmation.context["conditions"]} == {
        ("Outcome", "failed"), ("Error group", "app.Full, tests.remind"), ("From", "Thu 2020-01-02 03:04:05 EST")
    }  # fmt: skip
    assert group not in text_of(confirmation)
    assert group not in text_of(operator.get(f"{HISTORY}?{query}"))


@pytest.mark.parametrize(("stop", "why"), [
    (lambda: pause_task(DELIVER), "its task is paused"), (lambda: pause("webhooks"), "its queue is paused"),
])  # fmt: skip
def test_no_limit_has_room_while_its_task_or_queue_is_paused(operator, store, stop, why):
    fill(store, "acme")
    limits.set(DELIVER, channel="acme", concurrency=5, store=store)
    (channel,) = operator.get(CHANNELS).context["channels"]
    assert channel.state == "has room"
    stop()
    (channel,) = operator.get(CHANNELS).context["channels"]
    assert (channel.state, channel.remark) == ("paused", why)


def test_why_a_message_waits_for_a_limit_is_told_in_the_language_of_the_page(store):
    tasks.deliver.enqueue("acme")
    tasks.deliver.enqueue("acme")
    limits.pause(DELIVER, channel="acme", store=store)
    message = Message.objects.latest("id")
    with translation.override("de"):
        assert [*why_limited(store, message, "acme", store.now())] == [
            "Kanal acme ist angehalten.", "1 des Kanals acme warten davor."
        ]  # fmt: skip


def test_when_a_schedule_ticks_is_told_in_the_language_of_the_page(store):
    schedules.create("a", tasks.nothing, every=timedelta(days=2, hours=1), max_runs=3)
    known = named_schedule(store, {}, "a", store.now())
    assert known is not None
    assert known.definition is not None
    assert describe(known.definition) == ["every 2 d 1:00:00", "at most 3 times"]
    with translation.override("de"):
        assert describe(known.definition) == ["alle 2 d 1:00:00", "höchstens 3-mal"]


@pytest.mark.parametrize(("url", "given", "field"), [
    ("/admin/delayedq/cronschedule/add/", {"name": "a", "task": DELIVER, "cron": "x", "save": "1"}, "cron"),
    ("/admin/delayedq/cronschedule/add/", {"name": "a", "task": DELIVER, "save": "1"}, "cron"),
    (f"/admin/delayedq/pausedqueue/limit/?scope={DELIVER}&channel=acme", {"per": "60"}, "count"),
    (f"/admin/delayedq/pausedqueue/limit/?scope={DELIVER}&channel=acme", {"count": "1"}, "per"),
])  # fmt: skip
def test_a_form_says_what_is_wrong_at_its_field(operator, store, url, given, field):
    form = operator.post(url, given).context["form"]
    assert [*form.errors] == [field]


def test_what_begins_with_a_path_is_not_capitalised(operator, store):
    offer(store, "a")
    page = operator.post(f"/admin/delayedq/pausedqueue/pause-task/?task={DELIVER}", follow=True)
    assert f"Paused: {DELIVER}." in text_of(page)
