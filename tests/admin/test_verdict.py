"""The first screen: what is wrong, and one step from it to what can be done."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.contrib.auth.models import Permission, User
from django.urls import reverse

from delayedq.models import CronSchedule, FinishedMessage, Message, PausedQueue
from delayedq.operations.pauses import pause, pause_task
from delayedq.store import worker_registry
from tests.admin.given import HISTORY, HOUR, MESSAGES, choose_all, confirm, keys_on, offer, text_of
from tests.admin.test_errors import dead
from tests.app import tasks
from tests.store.test_worker_registry import worker

DASHBOARD = "/admin/delayedq/dashboard/"
QUEUES = "/admin/delayedq/pausedqueue/"


@pytest.fixture
def working(store):
    worker_registry(store.alias).heartbeat([worker("w1")])


def test_nothing_is_wrong(operator, working):
    page = operator.get(DASHBOARD)
    assert page.context["verdict"].worst is None
    assert "Right now Nothing is wrong." in text_of(page)


def test_the_worst_comes_first_with_its_evidence_and_what_can_be_done(operator, store):
    offer(store, seconds=-600)
    text = text_of(operator.get(DASHBOARD))
    assert "No worker is running, and messages are due. Since: 10 min ago" in text
    assert "manage.py run_workers" in text


def test_of_an_error_the_first_screen_shows_the_messages_before_they_are_retried(operator, store, working):
    for number in range(12):
        dead(store, f"{number}", f"app.<Full>: Seat {number} is taken")
    dead(store, "other", "app.Other: no seat")
    page = operator.get(DASHBOARD)
    step = page.context["verdict"].worst.step
    assert "app.<Full>: 12 messages failed of it for good in the last 10 min." in text_of(page)

    assert step.label == "Look at this error"
    assert sorted(keys_on(operator.get(step.url)), key=int) == [str(number) for number in range(12)]
    confirmation = choose_all(operator, "retry", step.url.partition("?")[2], HISTORY)
    confirm(operator, confirmation, HISTORY, amount=0, unit="minutes", jitter=0)
    assert Message.objects.count() == 12


def test_the_message_that_the_evidence_names_is_one_click_away(operator, member, store, working):
    for number in range(12):
        dead(store, f"{number}", "app.<Full>: Seat 7 is taken")
    link = f'<a href="{HISTORY}{FinishedMessage.objects.latest("pk").pk}/change/">#'
    assert link in operator.get(DASHBOARD).content.decode()
    assert operator.get(f"{HISTORY}{FinishedMessage.objects.latest('pk').pk}/change/").status_code == 200
    viewer = member("view_dashboard")
    User.objects.get(username="bob").user_permissions.remove(Permission.objects.get(codename="view_finishedmessage"))
    assert link not in viewer.get(DASHBOARD).content.decode()


def test_three_pages_agree_that_a_queue_is_late(operator, store, working):
    id_ = offer(store, seconds=-12 * HOUR, kind=tasks.remind.module_path)
    assert "The queue mail is late" in text_of(operator.get(DASHBOARD))
    (row,) = operator.get(QUEUES).context["rows"]
    assert row.state == "late"
    page = operator.get(f"{MESSAGES}{id_}/change/")
    assert "no worker has taken it for 12 h. Look at the workers" in text_of(page)


def test_they_agree_that_a_queue_is_not_late_whose_task_is_paused(operator, store, working):
    pause_task("app.charge", "", store)
    offer(store, seconds=-420, kind="app.charge")
    assert "is late" not in text_of(operator.get(DASHBOARD))
    (row,) = operator.get(QUEUES).context["rows"]
    assert row.state == "served"


def test_a_queue_whose_first_message_is_due_just_now_is_served(operator, store, working):
    offer(store, seconds=-1)
    (row,) = operator.get(QUEUES).context["rows"]
    assert row.state == "served"


def test_a_paused_queue_is_resumed_from_there(operator, store, working):
    pause("mail", "<b>", store)
    offer(store, seconds=-600)
    step = operator.get(DASHBOARD).context["verdict"].worst.step
    assert "Resume" in text_of(operator.get(step.url))
    operator.post(step.url)
    assert not PausedQueue.objects.exists()


def test_each_step_leads_to_a_page(operator, store):
    offer(store, seconds=-600)
    worker_registry(store.alias).heartbeat([worker("w1", queues="other", problems="deaf")])
    CronSchedule.objects.create(
        owner="", name="a b", covered_until=store.now(), next_at=store.now() - timedelta(minutes=9)
    )
    page = operator.get(DASHBOARD).context["verdict"]
    urls = [row.step.url for row in (page.worst, *page.others)]
    assert urls == [
        f"{reverse('admin:delayedq_message_changelist')}?queue=mail&state=due",
        f"{reverse('admin:delayedq_cronschedule_schedule')}?name=a+b",
        reverse("admin:delayedq_pausedqueue_changelist"),
    ]
    assert [operator.get(url).status_code for url in urls] == [200, 200, 200]


def test_who_may_only_look_is_offered_nothing_else(member, store, working):
    pause("mail", "", store)
    offer(store, seconds=-600)
    page = member("view_dashboard").get(DASHBOARD)
    assert page.context["verdict"].worst.step is None
    assert not re.search(r"/resume/", page.content.decode())
