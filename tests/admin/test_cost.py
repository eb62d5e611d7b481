"""What a page costs at 500 tasks and 60 queues: statements, and the bytes of an empty list beside the admin's frame."""

from __future__ import annotations

import re

import pytest
from django.test.utils import CaptureQueriesContext

from delayedq.operations import counting
from delayedq.operations import queues as queue_counts
from delayedq.store import worker_registry
from delayedq.store.protocol import ClaimRequest, Lane
from delayedq.tasks import registered
from tests.admin.given import HISTORY, MESSAGES, dead, keys_on, offer, text_of
from tests.admin.test_lists import AS_FRAGMENT
from tests.app.tasks import deliver, nothing
from tests.operations.test_limited_waits import offer as offer_late
from tests.store.given import LEASE
from tests.store.test_worker_registry import worker

QUEUES = "/admin/delayedq/pausedqueue/"
SCHEDULES = "/admin/delayedq/cronschedule/"
LISTS = {
    "messages": MESSAGES,
    "due": f"{MESSAGES}?state=due",
    "running": f"{MESSAGES}?state=running",
    "paused": f"{MESSAGES}?state=paused",
    "of a task": f"{MESSAGES}?kind=tests.work",
    "of a queue": f"{MESSAGES}?queue=queue-07",
    "history": HISTORY,
    "dead letters": f"{HISTORY}?outcome=failed",
}
#: Of these databases, each finds the lanes by one statement.
pytestmark = pytest.mark.parametrize("alias", ["sqlite", "postgresql"], indirect=True)


@pytest.fixture
def many_tasks(monkeypatch):
    for number in range(500):
        monkeypatch.setitem(registered, f"shop.customers.tasks.task_{number:03}", nothing)


@pytest.fixture
def many_queues(store, monkeypatch):
    """60 queues of two lanes, with more messages than are counted one by one."""
    monkeypatch.setattr(counting, "FEW", 50)
    for number in range(60):
        for priority in (0, 1):
            offer(store, f"{number}/{priority}", queue=f"queue-{number:02}", priority=priority)
    worker_registry(store.alias).heartbeat([worker(f"web-{number}:1", held=1) for number in range(5)])
    dead(store, "dead")


def cost(client, connection, url):
    with CaptureQueriesContext(connection) as captured:
        assert client.get(url).status_code == 200
    return len(captured)


@pytest.mark.parametrize("url", LISTS.values(), ids=LISTS)
def test_a_list_takes_at_most_15_statements(operator, store, connection, many_tasks, many_queues, url):
    assert cost(operator, connection, url) <= 15


def test_rows_of_what_runs_take_no_statement_each(operator, store, connection, many_tasks, many_queues):
    lanes = [Lane(f"queue-{number:02}", 0) for number in range(60)]
    store.claim(ClaimRequest(lanes, 60, LEASE, "worker-1"))
    url = f"{MESSAGES}?state=running"
    assert len(operator.get(url).context["rows"]) == 50
    assert cost(operator, connection, url) <= 15


@pytest.mark.parametrize("most", [1, 20_000])
def test_the_page_of_queues_takes_at_most_20_statements(operator, store, connection, many_queues, monkeypatch, most):
    monkeypatch.setattr(queue_counts, "MOST", most)
    monkeypatch.setattr(queue_counts, "LEAST", min(most, queue_counts.LEAST))
    assert cost(operator, connection, QUEUES) <= 20
    (row,) = operator.get(QUEUES, {"q": "queue-07"}).context["rows"]
    assert row.due == "2" if most > 1 else row.due.startswith(("at least 1", "about "))


def test_it_takes_at_most_30_if_messages_of_many_channels_are_late(operator, store, connection, many_queues):
    for number in range(60):
        offer_late(store, deliver, 2, f"tenant {number}")
    assert cost(operator, connection, QUEUES) <= 30
    (row,) = operator.get(QUEUES, {"q": "webhooks"}).context["rows"]
    assert row.state == "late"


@pytest.mark.parametrize(
    "url", [MESSAGES, HISTORY, QUEUES, SCHEDULES], ids=["messages", "history", "queues", "schedules"]
)
def test_an_empty_list_has_at_most_10_kb_beside_the_frame(operator, many_tasks, url):
    """Ours is what stands in the content of the page, and what we add to its head."""
    page = operator.get(url).content
    head = re.search(rb'<script id="dq-words".*?</script>', page, re.DOTALL)
    assert len(operator.get(url, **AS_FRAGMENT).content) + len(head[0]) <= 10_000


def test_names_have_a_page_of_links_that_keep_the_other_filters(operator, store, many_tasks):
    offer(store, "a", kind="shop.customers.tasks.task_007")
    offer(store, "b", kind="shop.customers.tasks.task_008")
    field = operator.get(MESSAGES, {"priority": "0"}).content.decode()
    assert 'data-names="names/?of=kind&amp;priority=0"' in field
    page = operator.get(f"{MESSAGES}names/?of=kind&priority=0")
    (link,) = re.findall(r'href="([^"]*)" data-name="shop.customers.tasks.task_007"', page.content.decode())
    assert keys_on(operator.get(f"{MESSAGES}{link.removeprefix('../').replace('&amp;', '&')}")) == ["a"]


def test_names_of_queues_and_workers(operator, store, many_queues):
    for number in range(20):
        worker_registry(store.alias).heartbeat([worker(f"more-{number}:1")])
    assert "queue-59" in text_of(operator.get(f"{HISTORY}names/?of=queue"))
    assert "more-19:1" in text_of(operator.get(f"{MESSAGES}names/?of=worker"))
    assert operator.get(f"{MESSAGES}names/?of=payload").status_code == 404


def test_names_are_shown_to_who_may_use_them(member):
    """Each name of a task on the page of queues is a link that pauses it."""
    viewer, pauser = member("view_pausedqueue"), member("view_pausedqueue", "pause_queue", name="eve")
    assert member(name="carl").get(f"{QUEUES}names/?of=task").status_code == 403
    assert viewer.get(QUEUES).status_code == 200
    assert "names/?of=task" not in viewer.get(QUEUES).content.decode()
    assert viewer.get(f"{QUEUES}names/?of=task").status_code == 403
    assert "names/?of=task" in pauser.get(QUEUES).content.decode()
    assert pauser.get(f"{QUEUES}names/?of=task").status_code == 200
