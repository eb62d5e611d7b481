"""Every page in several looks: no violation of WCAG AA that axe-core finds, no overflow, and a picture of each."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.auth import get_user_model
from django.utils import timezone

from delayedq import Flow, chain, group, limits
from delayedq.core.edits import Shift
from delayedq.limits import rules_for
from delayedq.limits.channels import Channels
from delayedq.models import FinishedMessage, Message, PausedQueue
from delayedq.operations import archived
from delayedq.operations.browsing import Ticked
from delayedq.operations.edits import RESCHEDULE, begin, reschedule
from delayedq.operations.pauses import pause_task
from delayedq.store import worker_registry
from delayedq.store.protocol import ClaimRequest, Lane
from tests.app import tasks
from tests.browser.accessibility import EACH_READER, READERS, problems
from tests.browser.conftest import PATIENCE, SCREENSHOTS, log_in
from tests.browser.given import a_busy_site
from tests.flows.given import fails, run
from tests.store.given import LEASE, message
from tests.store.test_worker_registry import worker

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("alias", ["sqlite"], indirect=True)]

ROOT = "/admin/delayedq/"
PAGES = {
    "messages": "message/",
    "due": "message/?state=due&queue=mail",
    "names": "message/names/?of=kind",
    "history": "finishedmessage/",
    "dead-letters": "finishedmessage/?outcome=failed",
    "errors": "finishedmessage/errors/",
    "index": "",
    "dashboard": "dashboard/",
    "figures": "dashboard/?span=hour",
    "durations": "dashboard/durations/",
    "threads": "dashboard/threads/?span=hour",
    "forecast": "dashboard/forecast/",
    "find": "dashboard/find/?q=UA15",
    "task": "dashboard/task/?name=tests.app.tasks.remind",
    "queues": "pausedqueue/",
    "workers": "pausedqueue/workers/?state=alive",
    "pause": "pausedqueue/pause/?queue=mail",
    "channels": "pausedqueue/channels/",
    "limit": "pausedqueue/limit/?scope=tests.app.tasks.deliver&channel=acme",
    "schedules": "cronschedule/",
    "schedule": "cronschedule/schedule/?name=nightly-report",
    "add-schedule": "cronschedule/add/",
    "pause-task": "pausedqueue/pause-task/?task=tests.app.tasks.remind",
    "stop-worker": "pausedqueue/worker/?name=web-1:4711&ask=stop",
    "paused": "message/?state=paused",
    "edits": "edit/",
    "edit": "edit/{edit}/change/",
    "undo": "edit/{edit}/undo/",
    "choose-task": "message/send/",
    "send": "message/send/?task=tests.app.tasks.remind",
    "message": "message/{live}/change/",
    "arguments": "message/{live}/arguments/",
    "stop": "message/{running}/stop/",
    "dead-letter": "finishedmessage/{dead}/change/",
    "archived": "finishedmessage/77/change/",
    "send-again": "finishedmessage/77/again/",
    "archive-search": "finishedmessage/?q=LH400/MUC",
    "flows": "flow/",
    "flow": "flow/{flow}/change/",
    "cancel-flow": "flow/{going}/cancel/now/",
    "retry-flow": "flow/{flow}/retry/now/",
}


@pytest.fixture
def ids(store, settings, monkeypatch):
    """A busy site with something on every page."""
    nightly = {"task": "tests.app.tasks.mark", "args": ["x"], "cron": "30 2 * * *", "timezone": "America/New_York"}
    settings.DELAYEDQ = {"CRON": {"nightly-report": nightly}}
    a_busy_site()
    late = timezone.now() - timedelta(minutes=3)
    for number in range(9):
        payload = f'{{"args": [{1545 + number}], "kwargs": {{}}}}'
        store.offer(message(f"UA{1545 + number}/EWR", payload, kind="tests.app.tasks.remind", scheduled_at=late))
    running = store.claim(ClaimRequest([Lane("mail", 0)], 2, LEASE, "web-1:4711"))
    registry = worker_registry(store.alias)
    registry.heartbeat([worker("web-1:4711", queues="mail,sms", running=f"[{running[0].id}]", held=2)])
    registry.at(store.now() - timedelta(minutes=11)).heartbeat([worker("web-3:42")])
    tasks.deliver.enqueue_many([((name,), {}) for name in ("acme", "acme", "paused", "a customer with a long name")])
    Channels.of(store).claim(rules_for(lambda queue: True), 3, LEASE, "web-1:4711")
    limits.pause(tasks.deliver.module_path, channel="paused", by="ann", store=store)
    PausedQueue.objects.create(queue="sms", paused_at=late, paused_by="ann")
    pause_task("reports.tasks.rebuild", "ann")
    monkeypatch.setattr(archived, "_FINDERS", [lambda alias, id, key: archived.Found([an_archived_message(late)])])  # noqa: A006
    live = Message.objects.filter(queue="mail", lease_token=None, key__startswith="UA").first()
    edit = begin(store, RESCHEDULE, "Shift by an amount: 2 h later", "ann")
    reschedule(store, edit, Ticked([live.pk]), Shift(timedelta(hours=2)), store.now())
    dead = FinishedMessage.objects.failed().latest("finished_at")
    flows = {"flow": flows_of_all_states().id, "going": chain(tasks.remind.si(1), tasks.remind.si(2)).enqueue().id}
    return {"live": live.pk, "dead": dead.pk, "running": running[0].id, "edit": edit.pk, **flows}


def flows_of_all_states():
    """One that failed, with a step of each end, a group and a branch."""
    flow = Flow("Close 2013-03-08", policy="continue")
    counted = flow.add("count", group(tasks.echo.s(airline) for airline in ("B6", "UA", "WN")))
    flow.add("missing", fails("missing"))
    report = flow.add("report", tasks.echo.s(counted.result))
    flow.add("apologise, if one of the reminders was late", tasks.echo.s(), after=["missing"])
    flow.add("close", tasks.echo.s(report.result), after=["missing"], when="ended")
    stored = flow.enqueue()
    run(queue="default")
    return stored


def an_archived_message(at):
    times = dict.fromkeys(("finished_at", "started_at", "scheduled_at", "scheduled_at_initially", "created_at"), at)
    given = {"outcome": "succeeded", "queue": "mail", "kind": "tests.app.tasks.remind", "key": "LH400/MUC"}
    return FinishedMessage(id=77, priority=0, attempts=1, max_attempts=1, payload='{"args": [400]}', **times, **given)


def confirmation(page):
    """A confirmation with a form, and what comes after it: a list with a note."""
    page.goto(f"{ROOT}message/?state=scheduled")
    for box in page.locator(".action-select").all()[:3]:
        box.check()
    page.locator("button[value=reschedule]").click()
    page.locator(".dq-form").wait_for()


def pane(page):
    page.goto(f"{ROOT}message/?state=scheduled")
    page.locator("a.dq-open").first.click()
    page.locator("dialog[open]").wait_for()


STEPS = {"confirmation": confirmation, "pane": pane}


@pytest.mark.parametrize("name", EACH_READER)
@pytest.mark.timeout(600)
def test_each_page_can_be_read_and_used_by_everybody(chromium, server, axe, ids, name):
    window, theme, language, rules = READERS[name]
    context = chromium.new_context(
        base_url=server, viewport=window, color_scheme=theme, locale=language, reduced_motion="reduce"
    )
    context.set_default_timeout(PATIENCE)
    log_in(context, get_user_model().objects.create_superuser("ann", password="wonderland"))
    page, folder = context.new_page(), SCREENSHOTS / name
    folder.mkdir(parents=True, exist_ok=True)
    wrong = {}
    for title in (*PAGES, *STEPS):
        if title in PAGES:
            assert page.goto(ROOT + PAGES[title].format(**ids)).status == 200, title
        else:
            STEPS[title](page)
        (folder / f"{title}.png").write_bytes(page.screenshot(full_page=title not in STEPS))
        if found := problems(page, axe, rules):
            wrong[title] = found
    context.close()
    assert wrong == {}
