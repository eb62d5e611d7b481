"""Crafted addresses and posts end in an answer, texts are spelled out, and every post needs its permission."""

from __future__ import annotations

import json
from datetime import timedelta
from itertools import product

import pytest
import time_machine
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.core import signing
from django.utils import timezone

from delayedq.admin.bulk import GOOD_FOR, SALT
from delayedq.models import CronSchedule, Edit, FinishedMessage, Message, PausedQueue, Worker
from delayedq.operations.pauses import pause
from tests.admin.given import EDITS, HISTORY, MESSAGES, choose_all, dead, do, offer, said, text_of, tick
from tests.app.tasks import echo

QUEUES = "/admin/delayedq/pausedqueue/"
SCHEDULES = "/admin/delayedq/cronschedule/"
#: A text that turns the rest of a line around, an escape of terminals, and a NUL.
TURNED = "a\u202eb\x1b[31m"

FILTERS = ["q", "queue", "kind", "state", "outcome", "since", "until", "after", "priority", "worker", "page"]
VALUES = ["a%00b", "%E2%80%AE", "x" * 300, "9999-12-31T23:59:59", "0001-01-01T00:00:00%2B14:00~1", "9" * 30]


@pytest.mark.parametrize("where", [MESSAGES, HISTORY, QUEUES, SCHEDULES, EDITS])
def test_no_value_of_a_filter_breaks_a_page(operator, store, where):
    offer(store, "a")
    for name, value in product(FILTERS, VALUES):
        assert operator.get(f"{where}?{name}={value}").status_code in {200, 302}, (name, value)


@pytest.mark.parametrize("id_", ["0", "9" * 30, "-1", "%00", "%E2%80%AE", "x"])
def test_no_id_breaks_a_page(operator, store, id_):
    for where in (MESSAGES, HISTORY, EDITS):
        assert operator.get(f"{where}{id_}/change/").status_code in {302, 404}
    for path in (f"{MESSAGES}{id_}/arguments/", f"{MESSAGES}{id_}/stop/", f"{EDITS}{id_}/undo/"):
        assert operator.get(path).status_code in {302, 404}
        assert operator.post(path, {"seen": "x", "ongoing": "x"}).status_code in {302, 404}


@pytest.mark.parametrize("queue", ["%00", "x" * 300, "", "a|b", "%E2%80%AE"])
@pytest.mark.parametrize("verb", ["pause", "resume"])
def test_no_name_of_a_queue_breaks_a_page(operator, store, verb, queue):
    url = f"{QUEUES}{verb}/?queue={queue}"
    for page in (operator.get(url), operator.post(url, follow=True)):
        assert page.status_code == 200
        assert "\u202e" not in page.content.decode()


@pytest.mark.parametrize("running", ["", "null", "7", "{}", '["x", null, 1.5, -1, 99999999999999999999]', "[" * 5_000])
def test_a_row_of_a_worker_that_is_no_json_breaks_no_page(operator, store, running):
    id_ = offer(store, "a")
    now = store.now()
    Worker.objects.create(name="w", host="h", pid=1, threads=1, lease=60, running=running, started_at=now, seen_at=now)
    for url in (QUEUES, MESSAGES, f"{MESSAGES}{id_}/change/", "/admin/delayedq/dashboard/"):
        assert operator.get(url).status_code == 200


def test_a_nul_in_a_reason_is_left_out_and_a_reason_that_was_typed_stays(operator, store):
    id_ = offer(store, "a")
    do(operator, "cancel", id_, why=" no\0 more ")
    assert Edit.objects.get().why == "no more"
    page = operator.post(f"{QUEUES}limit/?scope={echo.module_path}", {"rate": "often", "why": "for now"})
    assert 'name="why" value="for now"' in page.content.decode()


# Forged choices


def test_all_that_match_are_not_changed_before_the_bound_of_their_confirmation_is_known(operator, store):
    offer(store, "a")
    given = {"action": "cancel", "confirmed": "yes", "everything": "on", "query": ""}
    page = operator.post(f"{MESSAGES}act/", given)
    assert page.context["preview"].changing == (1, True)
    assert Message.objects.count() == 1


def act(client, chosen):
    return said(client.post(f"{MESSAGES}act/", {"action": "cancel", "confirmed": "yes", "chosen": chosen}, follow=True))


def test_a_choice_of_another_user_or_an_altered_one_changes_nothing(operator, member, store):
    id_ = offer(store, "a")
    other = member("change_message", "delete_message", "cancel_message")
    own = tick(operator, "cancel", id_).context["chosen"]
    theirs = tick(other, "cancel", id_).context["chosen"]
    signed = own.rpartition(":")[2]

    for crafted in (theirs, f"{theirs.rpartition(':')[0]}:{signed}", f"x{own}", own[:-1]):
        assert act(operator, crafted) == ["The selection could not be read, or is another user's. Choose again."]
    assert act(other, own) == ["The selection could not be read, or is another user's. Choose again."]
    assert Message.objects.count() == 1
    assert act(other, theirs)[0].startswith("Cancel")
    assert Message.objects.count() == 0


def test_a_choice_of_the_day_before_changes_nothing(operator, store):
    chosen = tick(operator, "cancel", offer(store, "a")).context["chosen"]

    with time_machine.travel(timezone.now() + GOOD_FOR + timedelta(seconds=1)):
        assert act(operator, chosen) == ["The selection is older than a day. Choose again."]
    assert Message.objects.count() == 1


# Forged progress


def forged():
    yield "x"
    yield signing.dumps([1, 0, {}], salt=SALT)
    yield signing.dumps([1, 0, {}], salt="other")
    yield signing.dumps({"ids": None, "query": "", "upto": 9, "as_of": "2026-01-01T00:00:00+00:00"}, salt=SALT)


@pytest.mark.parametrize("number", range(4))
def test_a_forged_progress_changes_nothing(operator, store, number):
    ongoing = [*forged()][number]
    id_ = offer(store, "a")
    do(operator, "priority", id_, priority=3)
    chosen = tick(operator, "cancel", id_).context["chosen"]
    given = {"action": "cancel", "confirmed": "yes", "chosen": chosen, "ongoing": ongoing}

    page = operator.post(f"{MESSAGES}act/", given, follow=True)

    assert "could not be read" in text_of(page)
    assert Message.objects.count() == 1
    edit = Edit.objects.get()
    assert operator.post(f"{EDITS}{edit.pk}/undo/", {"ongoing": ongoing}, follow=True).status_code == 200


def test_the_progress_of_one_choice_is_not_that_of_another(operator, store, monkeypatch):
    monkeypatch.setattr("delayedq.operations.browsing.CHUNK", 1)
    monkeypatch.setattr("delayedq.operations.edits.CHUNKS", 1)
    ids = [offer(store, key) for key in "abc"]
    first, second = tick(operator, "cancel", *ids), tick(operator, "run_now", *ids)
    given = {"action": "cancel", "confirmed": "yes", "chosen": first.context["chosen"]}
    ongoing = operator.post(f"{MESSAGES}act/", given).context["ongoing"]

    for crafted in ({"action": "run_now"}, {"chosen": second.context["chosen"]}):
        page = operator.post(f"{MESSAGES}act/", {**given, **crafted, "ongoing": ongoing}, follow=True)
        assert "could not be read" in text_of(page)
    assert Message.objects.count() == 2


# Texts


def turned(store):
    """A row with the text in each of its columns, in each table that pages show."""
    error = {"attempt": 1, "failed_at": "2026-03-08T06:59:30+00:00", "exception": TURNED, "message": TURNED}
    id_ = offer(store, TURNED, queue=TURNED, kind=TURNED)
    lost = dead(store, TURNED, json.dumps({"args": [TURNED]}), json.dumps([error]), kind=TURNED)
    pause(TURNED, TURNED)
    now = store.now()
    Message.objects.update(leased_by=TURNED, lease_token=1, leased_until=now)
    edit = Edit(action="reschedule", description=TURNED, made_by=TURNED, made_at=now, undone_by=TURNED, undone_at=now)
    edit.save()
    worker = Worker(name=TURNED, host=TURNED, pid=1, threads=1, lease=60, problems=TURNED, queues=TURNED)
    worker.started_at = worker.seen_at = now
    worker.save()
    CronSchedule.objects.create(name=TURNED, covered_until=now)
    return id_, lost, edit.pk


def test_what_turns_texts_around_is_spelled_out_on_every_page(operator, store):
    id_, lost, edit = turned(store)
    urls = [MESSAGES, HISTORY, QUEUES, SCHEDULES, EDITS, f"{MESSAGES}{id_}/change/", f"{HISTORY}{lost}/change/"]
    urls += [f"{EDITS}{edit}/change/", f"{MESSAGES}?queue={TURNED}", "/admin/delayedq/dashboard/forecast/"]

    pages = [operator.get(url, follow=True) for url in urls]
    pages += [tick(operator, "priority", id_), tick(operator, "retry", lost, where=HISTORY)]
    pages.append(choose_all(operator, "run_now"))

    assert {page.status_code for page in pages} == {200}
    assert [page.request["PATH_INFO"] for page in pages if {"\u202e", "\x1b"} & set(text_of(page))] == []


def test_what_turns_texts_around_is_spelled_out_in_the_log_of_the_admin(operator, store):
    id_ = offer(store, TURNED, kind=TURNED)
    do(operator, "shift", id_, amount=1, unit="hours")
    do(operator, "queue", id_, queue="b\u202e")
    operator.post(f"{QUEUES}pause/?queue=a%E2%80%AE")
    operator.post(f"{QUEUES}resume/?queue=a%E2%80%AE")
    operator.post(f"{MESSAGES}export/", {"query": "q=a%E2%80%AE", "format": "csv"})

    entries = [text for entry in LogEntry.objects.all() for text in (entry.object_repr, entry.change_message)]
    assert len(entries) >= 8
    assert [text for text in entries if {"\u202e", "\x1b"} & set(text)] == []


# Permissions

#: Every address that changes something, with the permission that it needs beside that to view.
POSTS = {
    f"{MESSAGES}1/arguments/": ("edit_payload", "view_payload"),
    f"{MESSAGES}1/stop/": ("stop_message",),
    f"{MESSAGES}send/?task={echo.module_path}": ("send_message",),
    f"{QUEUES}pause/?queue=mail": ("pause_queue",),
    f"{QUEUES}resume/?queue=mail": ("pause_queue",),
    f"{QUEUES}pause-all/": ("pause_queue",),
    f"{QUEUES}resume-all/": ("pause_queue",),
    f"{QUEUES}pause-task/?task=x": ("pause_queue",),
    f"{QUEUES}resume-task/?task=x": ("pause_queue",),
    f"{QUEUES}worker/?name=host:1&ask=stop": ("stop_worker",),
    f"{SCHEDULES}add/": ("edit_schedule",),
    f"{SCHEDULES}edit/?name=s": ("edit_schedule", "view_payload"),
    f"{SCHEDULES}delete/?name=s": ("edit_schedule",),
    f"{SCHEDULES}run/?name=s": ("run_schedule",),
    f"{SCHEDULES}disable/?name=s": ("disable_schedule",),
    f"{SCHEDULES}enable/?name=s": ("disable_schedule",),
}
VIEWS = {"view_message", "view_finishedmessage", "view_edit", "view_pausedqueue", "view_cronschedule"}


def state():
    models = (Message, FinishedMessage, Edit, PausedQueue, CronSchedule)
    return [sorted(map(repr, model.objects.values_list())) for model in models]


@pytest.mark.parametrize("url", POSTS)
@pytest.mark.parametrize("has", ["nothing", "view", "permission"])
def test_every_post_needs_its_permission_and_that_to_view(member, store, url, has):
    offer(store, "a", kind=echo.module_path)
    CronSchedule.objects.create(name="s", covered_until=store.now(), definition='{"task":"tests.app.tasks.echo"}')
    client = member(name="carl")
    names = {"nothing": set(), "view": VIEWS, "permission": {*POSTS[url]}}[has]
    user = User.objects.get(username="carl")
    user.user_permissions.set(Permission.objects.filter(content_type__app_label="delayedq", codename__in=names))
    before = state()

    given = {"argument_args": "[2]", "queue": "mail", "priority": "0", "save": "1", "seen": "x", "name": "t"}
    assert client.post(url, given).status_code == 403
    assert client.get(url).status_code == 403

    assert state() == before


def test_there_are_no_permissions_that_nothing_asks_for(alias):
    names = set(Permission.objects.filter(content_type__app_label="delayedq").values_list("codename", flat=True))
    assert not {name for name in names if name.startswith(("add_", "change_", "delete_"))}
    assert {"view_message", "view_payload", "edit_payload", "send_message", "stop_message", "stop_worker"} <= names
