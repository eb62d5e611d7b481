"""Who lacks `view_payload` sees no argument, no result and no text of an error on any page; secrets nobody sees."""

from __future__ import annotations

import json

import pytest

from delayedq.models import Edit, FinishedMessage, Message
from delayedq.results import errors_with
from tests.admin.given import EDITS, HISTORY, MESSAGES, dead, do, offer, tick
from tests.app.tasks import echo, pay
from tests.worker.attempts import claimed

SECRET = "tok_4c11e9"
ERRORS = json.dumps(
    [
        {
            "attempt": 1,
            "failed_at": "2026-03-08T06:59:30+00:00",
            "worker": "w",
            "exception": "builtins.ValueError",
            "message": f"refused {SECRET}",
            "traceback": f"Traceback {SECRET}",
        }
    ]
)


def fill(store, kind, errors=ERRORS):
    """A live message, a dead letter and one that succeeded, with the secret wherever it can be."""
    payload = json.dumps({"args": [7, SECRET]})
    id_ = offer(store, "a", payload, kind=kind, seconds=3_600)
    Message.objects.update(errors=ERRORS)
    lost, done = dead(store, "b", payload, errors, kind=kind), dead(store, "c", payload, kind=kind)
    FinishedMessage.objects.filter(id=done).update(outcome="succeeded", result=json.dumps(SECRET))
    return id_, lost, done


def pages(client, id_, lost, done):
    for url in (MESSAGES, HISTORY, f"{HISTORY}?outcome=failed", f"{MESSAGES}{id_}/change/"):
        yield client.get(url)
    yield from (client.get(f"{HISTORY}{ended}/change/") for ended in (lost, done))
    yield from (client.get(f"{where}?q={key}") for where, key in ((MESSAGES, "a"), (HISTORY, "b")))


def test_without_the_permission_no_page_shows_a_payload_a_result_or_an_error(member, operator, store):
    ids = fill(store, echo.module_path)
    looker = member("retry_message", "reschedule_message")
    do(operator, "shift", ids[0], amount=1, unit="hours")
    do(operator, "retry", ids[1], where=HISTORY, amount=0, unit="minutes", jitter=0)

    shown = [*pages(looker, ids[0], ids[1], ids[2]), tick(looker, "run_now", ids[0])]
    shown += [looker.get(f"{EDITS}{edit.pk}/change/") for edit in Edit.objects.all()]
    shown.append(looker.get(f"{MESSAGES}{ids[1]}/change/"))

    assert {page.status_code for page in shown} <= {200, 302, 404}
    assert [page.request["PATH_INFO"] for page in shown if SECRET in page.content.decode()] == []
    assert SECRET in operator.get(f"{MESSAGES}{ids[0]}/change/").content.decode()


def test_nobody_sees_the_secrets_of_a_sensitive_task(operator, store):
    recorded = errors_with(claimed(pay, 7, SECRET), ValueError(f"refused {SECRET}"), "w", 1.0)
    ids = fill(store, pay.module_path, recorded)
    FinishedMessage.objects.filter(id=ids[2]).update(result=None)
    seen = [*pages(operator, *ids)]
    assert [page.request["PATH_INFO"] for page in seen if SECRET in page.content.decode()] == []
    assert "[masked]" in seen[3].content.decode()


@pytest.mark.parametrize("missing", ["view_payload", "edit_payload"])
def test_arguments_are_edited_only_by_who_may_see_them(member, store, missing):
    id_ = offer(store, "a", '{"args":[1]}', kind=echo.module_path)
    client = member(*{"view_payload", "edit_payload"} - {missing})
    assert client.get(f"{MESSAGES}{id_}/arguments/").status_code == 403
    assert client.post(f"{MESSAGES}{id_}/arguments/", {"argument_args": "[2]"}).status_code == 403
    assert Message.objects.get().payload == '{"args":[1]}'


def test_a_copy_is_made_only_by_who_may_see_the_payload(member, store):
    id_ = offer(store, "a", '{"args":[1]}', kind=echo.module_path)
    client = member("send_message")
    assert client.get(f"{MESSAGES}send/?copy={id_}").status_code == 403
    assert client.post(f"{MESSAGES}send/?copy={id_}", {"queue": "mail", "priority": "0"}).status_code == 403
    assert Message.objects.count() == 1
