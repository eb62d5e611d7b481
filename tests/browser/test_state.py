"""An operator views queues, workers and schedules, pauses and resumes queues, and runs and disables schedules."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from delayedq.models import CronSchedule, FinishedMessage, Message, PausedQueue
from delayedq.store import worker_registry
from delayedq.store.protocol import ClaimRequest, Lane
from tests.browser.conftest import EACH_LOOK
from tests.browser.given import a_busy_site
from tests.browser.site import MessagePage, QueuesPage, SchedulesPage
from tests.cron.given import beat_at, claim_due
from tests.store.given import LEASE, fail, message, settle, succeed
from tests.store.test_worker_registry import worker

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("alias", ["sqlite"], indirect=True)]

TASK = {"task": "tests.app.tasks.mark", "args": ["x"]}
CRON = {
    "nightly-report": {**TASK, "cron": "30 2 * * *", "timezone": "America/New_York"},
    "sweep": {**TASK, "every": timedelta(minutes=15), "misfire": "all"},
}


def ticks_to_come(name, now=None):
    """Ticks that were to come at that moment: the only one placed may be due a second later."""
    return Message.objects.filter(key__startswith=f"{name}/", scheduled_at__gt=now or timezone.now()).count()


def confirm(page, verb):
    page.get_by_role("button", name=verb, exact=True).click()
    return page.locator(".messagelist").inner_text()


@pytest.fixture
def busy(store):
    """A busy site with three workers, one of which died, and a queue that is paused."""
    a_busy_site()
    now = store.now()
    late = now - timedelta(minutes=3)
    store.offer_many([message(queue="mail", scheduled_at=late, kind="tests.app.tasks.remind") for _ in range(7)])
    store.offer(message("a", queue="contacts|json", kind="contacts|json", scheduled_at=late))
    claimed = store.claim(ClaimRequest([Lane("mail", 0)], 2, LEASE, "web-1:4711"))
    registry = worker_registry(store.alias)
    registry.heartbeat([worker("web-1:4711", queues="mail,sms", running=f"[{claimed[0].id}, {claimed[1].id}]", held=2)])
    registry.heartbeat([worker("web-2:815", threads=8, age=86_400.0)])
    registry.at(now - timedelta(minutes=11)).heartbeat([worker("web-3:42")])
    PausedQueue.objects.create(queue="sms", paused_at=late, paused_by="ann")
    return claimed


@pytest.mark.parametrize("look", EACH_LOOK)
def test_the_queues_fit_their_window(site, busy):
    queues = QueuesPage(site).open()

    assert "silent" in queues.text()
    assert queues.shoot("queues").overflow() <= 0


def test_a_queue_is_paused_and_resumed(site, busy):
    queues = QueuesPage(site).open()
    queues.row("mail").get_by_role("link", name="Pause").click()
    assert confirm(queues.page, "Pause the queue") == "Queue mail is paused."
    assert "paused by ann" in queues.arrived().row("mail").inner_text()
    assert PausedQueue.objects.filter(queue="mail", paused_by="ann").exists()

    queues.row("mail").get_by_role("link", name="Resume").click()
    queues.shoot("resume")
    assert confirm(queues.page, "Resume the queue") == "Queue mail is resumed."
    assert not PausedQueue.objects.filter(queue="mail").exists()


def test_leaving_the_confirmation_pauses_nothing(site, busy):
    queues = QueuesPage(site).open()
    queues.row("mail").get_by_role("link", name="Pause").click()
    queues.follow("Let it run").arrived()
    assert not PausedQueue.objects.filter(queue="mail").exists()


def test_a_worker_links_to_the_message_that_it_runs(site, busy):
    QueuesPage(site).open().follow(f"#{busy[0].id}")
    panel = site.page.get_by_role("heading", name="Where it runs").locator("..")
    assert "It is leased by web-1:4711 until" in panel.inner_text()


@pytest.mark.parametrize("look", EACH_LOOK)
def test_a_waiting_message_shows_why(site, busy):
    late = Message.objects.filter(queue="mail", lease_token=None).latest("id")
    page = MessagePage(site, late.pk).open()
    assert "It waits behind 4 messages of its own priority, due before it." in page.text()
    assert page.shoot("why").overflow() <= 0


@pytest.fixture
def ticking(store, settings):
    """Two schedules; the last tick of the more frequent one failed."""
    settings.DELAYEDQ = {"CRON": CRON}
    now = store.now()
    for minutes in (60, 50, 40, 30, 20, 10, 0):
        beat_at(store, now - timedelta(minutes=minutes), **CRON)
    sweeps = [claim for claim in claim_due(store, now) if claim.key.startswith("sweep/")]
    settle(store, *map(succeed, sweeps[:-1]), fail(sweeps[-1]), now=now)
    assert FinishedMessage.objects.count() >= 3


@pytest.mark.parametrize("look", EACH_LOOK)
def test_the_schedules_fit_their_window(site, ticking):
    schedules = SchedulesPage(site).open()
    assert schedules.shoot("schedules").overflow() <= 0
    schedules.follow("nightly-report")
    site.page.get_by_role("heading", name="Next 10 ticks").wait_for()
    assert "becomes" in schedules.text()
    assert schedules.shoot("schedule").overflow() <= 0


def test_a_schedule_is_run_disabled_and_enabled(site, ticking):
    page = SchedulesPage(site).open().follow("sweep").page
    page.get_by_role("link", name="Run now").click()
    assert confirm(page, "Run it now").startswith("Schedule sweep is due now, as message ")
    assert Message.objects.filter(key=None, scheduled_at__lte=timezone.now()).exists()

    page.get_by_role("link", name="Disable").click()
    assert confirm(page, "Disable the schedule") == "Schedule sweep is disabled."
    assert not ticks_to_come("sweep")
    assert CronSchedule.objects.get(name="sweep").disabled_at

    page.get_by_role("link", name="Enable").click()
    before = timezone.now()
    assert confirm(page, "Enable the schedule") == "Schedule sweep is enabled."
    assert ticks_to_come("sweep", before)


def test_a_tick_links_to_its_message(site, ticking):
    page = SchedulesPage(site).open().follow("sweep").page
    page.locator("tr", has_text="failed").get_by_role("link").click()
    page.get_by_role("heading", name="How it ended").wait_for()
    assert "It failed for good" in page.locator("#content").inner_text()
