"""Lists of schedules, workers, queues and flows: each has a search, filters and pages, which work together."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from delayedq import Flow, schedules
from delayedq.flows import operator as flows_operator
from delayedq.models import Flow as FlowRow
from delayedq.models import PausedQueue
from delayedq.store import worker_registry
from tests.admin.given import offer, text_of
from tests.app import tasks
from tests.store.test_worker_registry import worker

ROOT = "/admin/delayedq/"
SCHEDULES, QUEUES, WORKERS, FLOWS = (
    f"{ROOT}{name}/" for name in ("cronschedule", "pausedqueue", "pausedqueue/workers", "flow")
)

pytestmark = pytest.mark.parametrize("alias", ["sqlite"], indirect=True)


def pages_of(client, url, query, read):
    """What `read` finds on each page, along the links to the next one."""
    found = []
    while query is not None:
        page = client.get(f"{url}?{query}")
        found.append(read(page))
        following = page.context["next"]
        query = f"{page.context['query']}&after={following}" if following else None
    return found


def names(key="rows"):
    return lambda page: [row.name for row in page.context[key]]


@pytest.fixture
def many_schedules(store):
    schedules.create_many(
        {"name": f"tenant-{number:03}-report", "task": "tests.app.tasks.nothing", "every": timedelta(hours=1)}
        for number in range(120)
    )
    schedules.create("100% other", task="tests.app.tasks.remind", every=timedelta(hours=1), args=[1])
    schedules.disable("tenant-007-report")


def test_schedules_are_searched_filtered_and_paged_together(operator, many_schedules, settings):
    settings.DELAYEDQ = {"CRON": {
        "tenant-of-settings": {"task": "tests.app.tasks.nothing", "every": timedelta(hours=2)},
        "off": {"task": "tests.app.tasks.nothing", "every": timedelta(hours=2), "enabled": False},
    }}  # fmt: skip
    sizes = [len(found) for found in pages_of(operator, SCHEDULES, "q=TENANT", names())]
    assert sizes == [50, 50, 21]
    pages = pages_of(operator, SCHEDULES, "q=tenant&state=enabled&kind=tests.app.tasks.nothing", names())
    found = [name for page in pages for name in page]
    assert len(found) == 120
    assert "tenant-007-report" not in found
    assert pages_of(operator, SCHEDULES, "state=disabled", names()) == [["off", "tenant-007-report"]]
    assert pages_of(operator, SCHEDULES, "kind=tests.app.tasks.remind", names()) == [["100% other"]]
    assert pages_of(operator, SCHEDULES, "q=0%25", names()) == [["100% other"]]
    page = operator.get(SCHEDULES, {"q": "tenant", "kind": "no.such.task"})
    assert "No schedule fits." in text_of(page)
    assert "0 schedules" in text_of(page)
    assert operator.get(SCHEDULES, {"state": "x"}).context["rows"] == []


@pytest.fixture
def many_workers(store):
    registry = worker_registry(store.alias)
    registry.heartbeat([worker(f"web-{number:03}:1", held=1) for number in range(60)])
    registry.heartbeat([worker("mail-1:1", queues="mail"), worker("slow:1", problems="a thread hangs")])


def test_workers_are_searched_filtered_and_paged_together(operator, many_workers):
    first, second = pages_of(operator, WORKERS, "", names("workers"))
    assert (len(first), len(second), first[0]) == (50, 12, "slow:1")
    assert pages_of(operator, WORKERS, "q=WEB-05&queue=default", names("workers")) == [
        [f"web-05{number}:1" for number in range(10)]
    ]
    assert pages_of(operator, WORKERS, "queue=mail&q=mail", names("workers")) == [["mail-1:1"]]
    assert pages_of(operator, WORKERS, "q=mail&queue=other", names("workers")) == [[]]
    assert pages_of(operator, WORKERS, "state=problems", names("workers")) == [["slow:1"]]
    assert pages_of(operator, WORKERS, "state=silent", names("workers")) == [[]]
    assert "No worker fits." in text_of(operator.get(WORKERS, {"state": "silent"}))


def test_beside_the_queues_the_worst_workers_come_first_and_the_others_have_a_page(operator, many_workers):
    page = operator.get(QUEUES)
    assert [row.name for row in page.context["workers"]][:2] == ["slow:1", "mail-1:1"]
    assert len(page.context["workers"]) == 10
    assert "All workers: 52 more" in text_of(page)
    assert f'href="{WORKERS}"' in page.content.decode()


def test_queues_are_searched_filtered_and_paged_together(operator, store):
    for number in range(60):
        offer(store, queue=f"tenant-{number:02}")
    offer(store, queue="mail")
    PausedQueue.objects.create(queue="tenant-07", paused_at=timezone.now())
    assert [len(found) for found in pages_of(operator, QUEUES, "q=Tenant", names())] == [50, 10]
    assert pages_of(operator, QUEUES, "state=paused", names()) == [["tenant-07"]]
    assert [len(found) for found in pages_of(operator, QUEUES, "q=tenant&state=no+live+worker", names())] == [50, 9]
    (mail,) = operator.get(QUEUES, {"q": "mail"}).context["rows"]
    assert (mail.name, mail.due) == ("mail", "1")
    assert "No queue fits." in text_of(operator.get(QUEUES, {"q": "x"}))


def test_flows_are_searched_by_name_and_state_as_far_as_the_page_says(operator, store, monkeypatch):
    FlowRow.objects.create(pk=1_000, name="an earlier one", created_at=timezone.now()).delete()
    for number in range(3):
        flow = Flow(f"import {number}")
        flow.add("only", tasks.nothing.s())
        flow.enqueue()
    FlowRow.objects.filter(name="import 1").update(outcome="failed", ended_at=timezone.now())

    def read(page):
        return [name for _, name, _ in page.context["rows"]]

    assert pages_of(operator, FLOWS, "q=IMPORT&state=running", read) == [["import 2", "import 0"]]
    assert pages_of(operator, FLOWS, "state=failed", read) == [["import 1"]]
    monkeypatch.setattr(flows_operator, "SEARCHED", 1)
    assert pages_of(operator, FLOWS, "state=failed", read) == [[], ["import 1"], []]
    assert "Search further" in text_of(operator.get(FLOWS, {"state": "failed"}))
    assert "No flow fits." in text_of(operator.get(FLOWS, {"q": "x"}))
