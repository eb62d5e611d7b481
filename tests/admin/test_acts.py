"""All that somebody did is in one list: who, when and why, with an undo where there is one."""

from __future__ import annotations

from datetime import timedelta
from getpass import getuser

import pytest
from django.core.management import call_command
from django.utils import timezone

from delayedq import chain, schedules
from delayedq.models import Edit, PausedQueue, PausedTask
from delayedq.operations.pauses import pause, resume
from delayedq.store import worker_registry
from tests.admin.given import EDITS, offer, text_of, tick
from tests.admin.given import confirm as confirmed
from tests.app.tasks import nothing
from tests.store.test_worker_registry import worker

QUEUES, SCHEDULES = "/admin/delayedq/pausedqueue/", "/admin/delayedq/cronschedule/"
TASK = "tests.app.tasks.deliver"

pytestmark = pytest.mark.parametrize("alias", ["sqlite"], indirect=True)


@pytest.fixture
def some(store):
    offer(store, queue="mail")
    worker_registry(store.alias).heartbeat([worker("web-1:1")])
    schedules.create("report", task=TASK, every=timedelta(hours=1), args=[1])


ACTS = {
    "pause/?queue=mail": ("Pause queue mail", True),
    "pause-all/": ("Pause", True),
    f"pause-task/?task={TASK}": (f"Pause task {TASK}", True),
    f"pause-channel/?scope={TASK}&channel=acme": (f"Paused: channel acme of {TASK}.", False),
    "worker/?name=web-1:1&ask=restart": ("Restart: worker web-1:1", False),
}


@pytest.mark.parametrize("url", ACTS)
def test_what_was_done_is_listed_with_who_and_why(operator, some, url):
    description, has_undo = ACTS[url]
    before = timezone.now()
    operator.post(f"{QUEUES}{url}", {"why": " the gate is <closed> "})
    edit = Edit.objects.latest("id")

    assert edit.description.startswith(description)
    assert (edit.made_by, edit.why, edit.made_at >= before) == ("ann", "the gate is <closed>", True)
    page = operator.get(EDITS)
    (row,) = [row for row in page.context["rows"] if row[0] == edit]
    assert row[1] is has_undo
    assert "the gate is <closed>" in text_of(page)
    assert operator.get(f"{EDITS}{edit.pk}/change/").status_code == 200
    assert Edit.objects.filter(id__gte=edit.pk).count() == 1


def test_what_was_done_to_a_flow_and_a_schedule_names_it(operator, store, some):
    operator.post(f"{SCHEDULES}run/?name=report")
    flow = chain(nothing.s(), nothing.s()).enqueue(name="import")
    operator.post(f"/admin/delayedq/flow/{flow.id}/cancel/now/")
    operator.post(f"/admin/delayedq/flow/{flow.id}/retry/now/")
    assert [edit.description for edit in Edit.objects.order_by("id")] == [
        "Run schedule report now",
        f"Cancel flow import #{flow.id}",
        f"Retry flow import #{flow.id}, messages that run again: 1",
    ]


@pytest.mark.parametrize(("url", "is_there"), [
    ("pause/?queue=mail", lambda: PausedQueue.objects.filter(queue="mail").exists()),
    (f"pause-task/?task={TASK}", lambda: PausedTask.objects.filter(kind=TASK).exists()),
    ("pause-all/", lambda: PausedQueue.objects.filter(queue="mail").exists()),
])  # fmt: skip
def test_a_pause_and_a_resume_can_be_undone(operator, some, url, is_there):
    operator.post(f"{QUEUES}{url}")
    assert is_there()
    assert _undo(operator) == ["Undone: 1 message changed."] or "all" in url
    assert not is_there()
    operator.post(f"{QUEUES}{url}")
    operator.post(f"{QUEUES}{url}".replace("pause", "resume", 2).replace("resumedqueue", "pausedqueue"))
    assert not is_there()
    _undo(operator)
    assert is_there()


def _undo(operator):
    edit = Edit.objects.latest("id")
    assert "becomes again what it was" in text_of(operator.get(f"{EDITS}{edit.pk}/undo/"))
    page = operator.post(f"{EDITS}{edit.pk}/undo/", follow=True)
    return [str(note) for note in page.context["messages"]]


def test_who_undoes_a_resume_has_paused_it(operator, some):
    pause("mail", "bob")
    operator.post(f"{QUEUES}resume/?queue=mail")
    _undo(operator)
    assert PausedQueue.objects.get().paused_by == "ann"


def test_a_pause_that_is_another_by_now_is_not_undone(operator, some):
    operator.post(f"{QUEUES}pause/?queue=mail")
    resume("mail")
    _undo(operator)
    assert not PausedQueue.objects.exists()
    pause("mail")
    assert Edit.objects.get().undone_at is not None


def test_who_may_not_pause_is_offered_no_undo_of_it(operator, member, some):
    operator.post(f"{QUEUES}pause/?queue=mail")
    edit = Edit.objects.get()
    client = member()
    ((_, may_undo),) = client.get(EDITS).context["rows"]
    assert not may_undo
    assert client.post(f"{EDITS}{edit.pk}/undo/").status_code == 403


def test_edits_of_messages_and_schedules_have_a_reason_too(operator, store, some):
    id_ = offer(store, "a")
    confirmed(operator, tick(operator, "cancel", id_), why="a typo")
    assert Edit.objects.latest("id").why == "a typo"
    operator.post(f"{SCHEDULES}disable/?name=report", {"why": "too often"})
    edit = Edit.objects.latest("id")
    assert (edit.description, edit.why) == ("Disable schedule report", "too often")
    assert 'name="why"' in operator.get(f"{SCHEDULES}disable/?name=report").content.decode()


def test_a_command_is_listed_with_the_name_of_its_user(operator, some, capsys):
    call_command("delayedq", "pause", "mail")
    call_command("delayedq", "channels", "pause", TASK)
    assert text_of(operator.get(EDITS)).count(f"by {getuser()}") == 2
    assert [edit.description for edit in Edit.objects.order_by("id")] == ["Pause queue mail", f"{TASK} is paused."]


def test_the_list_is_filtered_by_person_date_and_words(operator, store):
    now = timezone.now()
    for number in range(120):
        Edit.objects.create(
            action="act", description=f"act {number}", made_at=now - timedelta(hours=number),
            made_by="bob" if number % 2 else "eve", why="gate 7" if number == 3 else "",
        )  # fmt: skip

    def found(**query):
        return [edit.description for edit, _ in operator.get(EDITS, query).context["rows"]]

    first = operator.get(EDITS, {"by": "bob"})
    assert len(found(by="bob")) == 50
    assert len(found(by="bob", after=first.context["next"])) == 10
    assert found(q="GATE") == ["act 3"]
    since, until = (f"{timezone.localtime(now - timedelta(hours=h)):%Y-%m-%dT%H:%M:%S}" for h in (5.5, 1.5))
    assert sorted(found(since=since, until=until, by="eve")) == ["act 2", "act 4"]
    assert found(since="x") == []
