"""Permissions, CSRF, and hostile contents of messages."""

from __future__ import annotations

import json
import sys

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from delayedq.admin.texts import PREVIEW_LENGTH
from delayedq.models import Edit, FinishedMessage, Message
from delayedq.operations import browsing
from delayedq.operations.browsing import Selection
from tests.admin.given import EDITS, HISTORY, MESSAGES, choose_all, dead, do, offer, text_of, tick

ACTIONS = {
    "run_now": "reschedule_message",
    "reschedule": "reschedule_message",
    "shift": "reschedule_message",
    "spread": "reschedule_message",
    "priority": "reschedule_message",
    "queue": "reschedule_message",
    "cancel": "cancel_message",
}
PERMISSIONS = sorted({*ACTIONS.values(), "retry_message"})


def offered(client, url):
    return {action.name for action in client.get(url).context["actions"]}


# Permissions


def test_view_permission_alone_shows_no_actions_and_changes_nothing(member, store):
    id_, lost = offer(store, "a"), dead(store, "b")
    looker = member()

    for url in (MESSAGES, HISTORY, f"{MESSAGES}{id_}/change/", f"{HISTORY}{lost}/change/"):
        page = looker.get(url)
        assert page.status_code == 200
        assert 'name="action"' not in page.content.decode()
        assert 'type="checkbox"' not in page.content.decode()
    for action in ACTIONS:
        assert tick(looker, action, id_).status_code == 403
        assert choose_all(looker, action).status_code == 403
    assert tick(looker, "retry", lost, where=HISTORY).status_code == 403
    assert (Message.objects.count(), FinishedMessage.objects.count()) == (1, 1)


@pytest.mark.parametrize("permission", PERMISSIONS)
def test_each_permission_allows_its_own_actions_and_no_others(member, store, permission):
    id_, lost = offer(store, "a"), dead(store, "b")
    client = member(permission)

    assert offered(client, MESSAGES) == {name for name, needed in ACTIONS.items() if needed == permission}
    assert offered(client, HISTORY) == ({"retry"} if permission == "retry_message" else set())
    for action, needed in ACTIONS.items():
        assert tick(client, action, id_).status_code == (200 if needed == permission else 403)
    assert tick(client, "retry", lost, where=HISTORY).status_code == (200 if permission == "retry_message" else 403)


@pytest.mark.parametrize(("action", "permission"), [("cancel", "cancel_message"), ("run_now", "reschedule_message")])
def test_undo_needs_the_permission_of_the_edit(operator, member, store, action, permission):
    do(operator, action, offer(store, "a", seconds=3_600))
    url = f"{EDITS}{Edit.objects.get().pk}/"
    looker, other = member(name="carl"), member(permission, name="dora")

    assert "Undo…" not in text_of(looker.get(f"{url}change/"))
    assert "Undo…" in text_of(other.get(f"{url}change/"))
    assert looker.get(f"{url}undo/").status_code == 403
    assert looker.post(f"{url}undo/").status_code == 403
    assert Edit.objects.get().undone_at is None
    other.post(f"{url}undo/")
    assert Edit.objects.get().undone_at is not None


@pytest.mark.parametrize("path", ["", "act/", "1/change/"])
def test_pages_need_view_permission(member, store, path):
    offer(store, "a")
    user = member(name="fred")
    User.objects.get(username="fred").user_permissions.clear()
    for where in (MESSAGES, HISTORY):
        assert user.get(where + path).status_code in {302, 403, 404}
    assert user.get(MESSAGES).status_code == 403
    assert user.post(f"{MESSAGES}act/", {"action": "cancel", "ids": ["1"]}).status_code == 403


def test_anonymous_users_are_redirected_to_the_login(alias, admin_site_urls, store):
    offer(store, "a")
    for url in (MESSAGES, HISTORY, EDITS, f"{MESSAGES}act/", f"{EDITS}1/undo/"):
        answer = Client().post(url, {"action": "cancel", "ids": ["1"], "confirmed": "yes"})
        assert answer.status_code == 302
        assert "/login/" in answer["Location"]
    assert Message.objects.count() == 1


def test_actions_need_view_permission_too(member, store):

    id_ = offer(store, "a")
    client = member(name="gina")
    User.objects.get(username="gina").user_permissions.set(Permission.objects.filter(codename="cancel_message"))
    answer = client.post(f"{MESSAGES}act/", {"action": "cancel", "ids": [id_], "confirmed": "yes"})
    assert answer.status_code == 403
    assert Message.objects.count() == 1


def test_the_admins_add_change_and_delete_forms_are_disabled(operator, store):
    id_ = offer(store, "a")
    assert operator.get(f"{MESSAGES}add/").status_code == 403
    assert operator.post(f"{MESSAGES}{id_}/delete/", {"post": "yes"}).status_code == 403
    operator.post(f"{MESSAGES}{id_}/change/", {"payload": "x"})
    operator.post(MESSAGES, {"action": "delete_selected", "_selected_action": [id_], "post": "yes"})
    assert Message.objects.get().payload == "{}"


# POST and CSRF


def test_nothing_is_changed_without_a_csrf_token(operator, store):
    id_ = offer(store, "a")
    do(operator, "priority", id_, priority=3)
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = operator.cookies
    chosen = tick(operator, "cancel", id_).context["chosen"]

    for url, given in (
        (f"{MESSAGES}act/", {"action": "cancel", "chosen": chosen, "confirmed": "yes"}),
        (f"{EDITS}{Edit.objects.get().pk}/undo/", {}),
    ):
        assert strict.post(url, given).status_code == 403
    assert Message.objects.get().priority == 3


def test_nothing_is_changed_by_a_get(operator, store):
    id_ = offer(store, "a")
    do(operator, "priority", id_, priority=3)
    chosen = tick(operator, "cancel", id_).context["chosen"]

    operator.get(f"{MESSAGES}act/", {"action": "cancel", "chosen": chosen, "confirmed": "yes"})
    operator.get(f"{EDITS}{Edit.objects.get().pk}/undo/")

    assert Message.objects.get().priority == 3


# Contents of messages

MARKUP = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>{{ 7|add:7 }}{% now 'Y' %}"


@pytest.mark.parametrize("end", [False, True], ids=["live", "ended"])
def test_markup_is_escaped_on_every_page(operator, store, end):
    errors = json.dumps(
        [
            {
                "attempt": MARKUP,
                "failed_at": "2026-03-08T06:59:30+00:00",
                "worker": MARKUP,
                "exception": MARKUP,
                "message": MARKUP,
                "traceback": MARKUP,
            }
        ]
    )
    payload, metadata = json.dumps({"args": [MARKUP]}), json.dumps({"cron": {"schedule": MARKUP}, MARKUP: 1})
    where = HISTORY if end else MESSAGES
    fields = {"kind": MARKUP, "metadata": metadata}
    id_ = (
        dead(store, MARKUP, payload, errors, **fields) if end else offer(store, MARKUP, payload, queue=MARKUP, **fields)
    )
    Message.objects.update(errors=errors, leased_by=MARKUP)

    action = "retry" if end else "priority"
    pages = [operator.get(where), operator.get(f"{where}{id_}/change/"), tick(operator, action, id_, where=where)]
    pages += [
        operator.get(where, {"q": MARKUP}),
        operator.get(where, {"queue": MARKUP, "kind": MARKUP, "after": MARKUP}),
    ]

    for page in pages:
        body = page.content.decode()
        assert page.status_code == 200
        assert "<script>alert" not in body
        assert "<img" not in body
    assert "<script>alert(1)</script>" in text_of(pages[1]).replace("< ", "<")


@pytest.mark.parametrize(
    "payload",
    [
        r'{"args":["\ud800"]}',
        r'{"args":["\u0000\u202e\u0007"]}',
        '{"args":["\u202e\ufeff\x07\x1b[31m"]}',
        '{"args": [',
        "",
        "null",
        '{"args": 7, "kwargs": []}',
        "[" * 5_000 + "]" * 5_000,
        '{"args":[' + "9" * 5_000 + "]}",
        r'{"args":[{"$":"model","v":{"model":"auth.user","pk":1}}]}',
    ],
)
@pytest.mark.parametrize("end", [False, True], ids=["live", "ended"])
def test_a_broken_payload_is_shown_as_text(operator, store, payload, end):
    where = HISTORY if end else MESSAGES
    fields = {"kind": "tests.app.tasks.echo", "metadata": payload}
    id_ = dead(store, "a", payload, payload, **fields) if end else offer(store, "a", payload, **fields)

    page = operator.get(f"{where}{id_}/change/")

    assert page.status_code == 200
    body = page.content.decode()
    assert not {"\u202e", "\ufeff", "\x07", "\x1b", "\0"} & set(body)


def test_a_payload_of_200_kb_is_cut_with_a_note(operator, store):
    id_ = offer(store, "a", json.dumps({"args": ["x" * 200_000]}), kind="tests.app.tasks.echo")

    page = operator.get(f"{MESSAGES}{id_}/change/")

    assert len(page.content) < 60_000
    assert "characters in all" in text_of(page)
    assert len(operator.get(MESSAGES).content) < 60_000


def test_the_lists_read_only_the_beginning_of_payloads(operator, store):
    payload = json.dumps({"args": ["x" * 200_000]})
    offer(store, "a", payload)
    dead(store, "b", payload)
    for url in (MESSAGES, HISTORY):
        page = operator.get(url)
        assert [len(row.preview) for row in page.context["rows"]] == [PREVIEW_LENGTH]
        assert len(page.content) < 60_000
    (found,) = browsing.live_page(store, Selection(as_of=store.now())).rows
    assert found.get_deferred_fields() >= {"payload", "metadata", "errors"}
    assert len(found.payload_start) == browsing.PAYLOAD_START


# Code


def test_a_path_in_the_database_is_never_imported(operator, store):
    id_, lost = offer(store, "a", kind="this.s"), dead(store, "b", kind="antigravity.geohash")

    for url in (MESSAGES, HISTORY, f"{MESSAGES}{id_}/change/", f"{HISTORY}{lost}/change/"):
        assert operator.get(url).status_code == 200
    do(operator, "run_now", id_)
    do(operator, "retry", lost, where=HISTORY, amount=0, unit="minutes", jitter=0)

    assert not {"this", "antigravity"} & set(sys.modules)
    assert "not registered here" in text_of(operator.get(f"{MESSAGES}{id_}/change/"))


def test_arguments_are_bound_to_the_signature_and_nothing_is_run(operator, store):
    payload = json.dumps({"args": ["ann@example.com"], "kwargs": {"subject": {"$": "uuid", "v": "2f6d"}}})
    id_ = offer(store, "a", payload, kind="tests.app.tasks.send")
    text = text_of(operator.get(f"{MESSAGES}{id_}/change/"))
    assert 'to "ann@example.com"' in text
    assert 'subject {"$": "uuid", "v": "2f6d"}' in text


def test_arguments_that_do_not_fit_are_reported(operator, store):
    id_ = offer(store, "a", '{"args":[1,2,3]}', kind="tests.app.tasks.send")
    assert "does not fit the signature of its task: too many positional" in text_of(
        operator.get(f"{MESSAGES}{id_}/change/")
    )
