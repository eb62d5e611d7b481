"""A task and all queues are paused, and workers are asked to be quiet, to stop or to be replaced."""

from __future__ import annotations

import pytest
from django.contrib.admin.models import LogEntry

from delayedq.models import PausedQueue, PausedTask, Worker
from delayedq.store.protocol import ClaimRequest, Lane
from tests.admin.given import MESSAGES, offer, said, text_of
from tests.app.tasks import echo
from tests.store.given import LEASE

QUEUES = "/admin/delayedq/pausedqueue/"
ECHO = echo.module_path


def worker(store, name="host:1"):
    now = store.now()
    return Worker.objects.create(name=name, host="h", pid=1, threads=1, lease=60, started_at=now, seen_at=now)


def test_a_task_is_paused_explained_and_resumed(operator, store):
    id_ = offer(store, "a", kind=ECHO)
    url = f"{QUEUES}pause-task/?task={ECHO}"
    assert "until it is resumed" in text_of(operator.get(url))
    assert not PausedTask.objects.exists()

    page = operator.post(url, follow=True)

    assert said(page) == [f"Paused: {ECHO}."]
    assert "paused by ann" in text_of(page)
    assert store.claim(ClaimRequest([Lane("mail", 0)], 1, LEASE, "w")) == []
    assert "Its task was paused by ann" in text_of(operator.get(f"{MESSAGES}{id_}/change/"))
    assert said(operator.post(f"{QUEUES}resume-task/?task={ECHO}", follow=True)) == [f"Resumed: {ECHO}."]
    assert [entry.change_message for entry in LogEntry.objects.order_by("id")] == [
        f"Paused: {ECHO}.", f"Resumed: {ECHO}.",
    ]  # fmt: skip
    assert said(operator.post(f"{QUEUES}resume-task/?task={ECHO}", follow=True)) == [f"Not paused: {ECHO}."]


def test_a_task_that_is_not_registered_is_paused_after_a_warning(operator, store):
    typo, unknown = ECHO.replace("echo", "ehco"), "other.project.tasks.far"
    asked = operator.get(f"{QUEUES}pause-task/?task={typo}")
    assert f"No task is registered here as {typo}. Did you mean this one? {ECHO}" in text_of(asked)
    assert f'href="?task={ECHO}"' in asked.content.decode()
    assert "registered here" not in text_of(operator.get(f"{QUEUES}pause-task/?task={ECHO}"))
    assert "Did you mean" not in text_of(operator.get(f"{QUEUES}pause-task/?task={unknown}"))

    assert said(operator.post(f"{QUEUES}pause-task/?task={unknown}", follow=True)) == [f"Paused: {unknown}."]


def test_all_queues_are_paused_and_resumed(operator, store):
    offer(store, "a")
    assert "mail" in text_of(operator.get(f"{QUEUES}pause-all/"))
    assert "mail" in said(operator.post(f"{QUEUES}pause-all/", follow=True))[0]
    assert PausedQueue.objects.filter(queue="mail", paused_by="ann").exists()
    assert "mail" in text_of(operator.get(f"{QUEUES}resume-all/"))
    operator.post(f"{QUEUES}resume-all/")
    assert not PausedQueue.objects.exists()


@pytest.mark.parametrize(("asked", "label"), [("quiet", "Quiet"), ("stop", "Stop"), ("restart", "Restart")])
def test_a_worker_is_asked_and_that_is_taken_back(operator, store, asked, label):
    worker(store)
    assert label in text_of(operator.get(QUEUES))
    url = f"{QUEUES}worker/?name=host:1&ask="
    assert "within 10 s" in text_of(operator.get(f"{url}{asked}"))

    assert said(operator.post(f"{url}{asked}", follow=True)) == [f"{label}: worker host:1 is told within 10 s."]

    assert (Worker.objects.get().asked, Worker.objects.get().asked_by) == (asked, "ann")
    assert "Go on" in text_of(operator.get(QUEUES))
    operator.post(url)
    assert Worker.objects.get().asked == ""
    assert LogEntry.objects.count() == 2


@pytest.mark.parametrize("query", ["name=other&ask=stop", "name=host:1&ask=dance", "name=%00&ask=stop", ""])
def test_what_there_is_not_is_asked_nothing(operator, store, query):
    worker(store)
    assert operator.get(f"{QUEUES}worker/?{query}").status_code == 404
    assert operator.post(f"{QUEUES}worker/?{query}").status_code == 404
    assert Worker.objects.get().asked == ""


@pytest.mark.parametrize("task", ["%00", "", "x" * 300, "a|b", "%E2%80%AE"])
@pytest.mark.parametrize("verb", ["pause-task", "resume-task"])
def test_no_name_of_a_task_breaks_a_page(operator, store, verb, task):
    url = f"{QUEUES}{verb}/?task={task}"
    for page in (operator.get(url), operator.post(url, follow=True)):
        assert page.status_code == 200
        assert "\u202e" not in text_of(page)
