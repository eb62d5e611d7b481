"""Nobody learns what is masked by asking: a right guess and a wrong one are answered alike, on every page."""

from __future__ import annotations

import json
import re
from urllib.parse import quote

import pytest
from django.contrib.auth.models import Permission, User
from django.utils import timezone

from delayedq import schedules
from delayedq.admin.finished import query_of
from delayedq.core.errors import as_hex, fingerprint
from delayedq.cron.operator import recorded
from delayedq.models import CronSchedule, Edit, FinishedMessage, Message
from delayedq.operations import browsing
from tests.admin.given import EDITS, HISTORY, MESSAGES, confirm, do, offer, said, tick
from tests.admin.given import dead as dead_letter
from tests.app.tasks import echo, pay

SCHEDULES = "/admin/delayedq/cronschedule/"
SECRET, WRONG = "tok4c11e9", "tok000000"
ECHO, PAY = echo.module_path, pay.module_path


def errors(**more):
    record = {"attempt": 1, "failed_at": "2026-03-08T06:59:30+00:00", "exception": "app.Full", "message": SECRET}
    return json.dumps([{**record, "traceback": SECRET, **more}])


@pytest.fixture
def ids(store):
    """A live message and a dead letter of a task, with the secret wherever it can be."""
    payload = json.dumps({"args": [7, SECRET]})
    lost = dead_letter(store, "dead", payload, errors(notes=SECRET), kind=ECHO)
    live = offer(store, "live", payload, kind=ECHO, seconds=3_600)
    Message.objects.update(errors=errors(notes=SECRET), metadata=json.dumps({"by": SECRET}))
    done = dead_letter(store, "done", payload, kind=ECHO)
    FinishedMessage.objects.filter(id=done).update(
        outcome="succeeded", result=json.dumps(SECRET), error=None, fingerprint=None
    )
    return live, lost, done


@pytest.fixture
def everything_else(member):
    """A client whose user has each permission but `view_payload`."""
    client = member(name="eve")
    all_of_them = Permission.objects.filter(content_type__app_label="delayedq").exclude(codename="view_payload")
    User.objects.get(username="eve").user_permissions.set(all_of_them)
    return client


def answer(page, guess):
    """What a page says, without the guess itself, tokens and times."""
    streamed = getattr(page, "streaming_content", None)
    text = (b"".join(streamed) if streamed else page.content).decode()
    for form in {guess, quote(guess), as_hex(fingerprint(f"app.Full: {guess}"))}:
        text = text.replace(form, "GUESS")
    text = re.sub(r'name="(csrfmiddlewaretoken|chosen)" value="[^"]*"', "", text)
    return page.status_code, re.sub(r"\d\d:\d\d:\d\d|\d+ m?s\b|\d{4}-\d\d-\d\dT[\d:.+]+|\b\d{10}\.0\b", "", text)


#: Ways to ask for a guess: each makes a page.
ASK = {
    "search": lambda client, guess: client.get(MESSAGES, {"q": guess}),
    "search in the history": lambda client, guess: client.get(HISTORY, {"q": guess}),
    "filter by error": lambda client, guess: client.get(HISTORY, {"outcome": "failed", "error": guess}),
    "filter by error, twice": lambda client, guess: client.get(f"{HISTORY}?outcome=failed&error={guess}&error="),
    "error groups": lambda client, guess: client.get(f"{HISTORY}errors/", {"q": guess}),
    "class of an error": lambda client, guess: client.get(f"{HISTORY}errors/", {"class_name": f"app.Full: {guess}"}),
    "error group": lambda client, guess: client.get(HISTORY, {"group": as_hex(fingerprint(f"app.Full: {guess}"))}),
    "argument by name": lambda client, guess: client.get(MESSAGES, {"argument": guess}),
    "a lookup of the admin": lambda client, guess: client.get(MESSAGES, {"payload__contains": guess}),
    "order": lambda client, guess: client.get(MESSAGES, {"o": "payload", "q": guess}),
    "act on a search": lambda client, guess: act(client, MESSAGES, "cancel", f"q={guess}"),
    "act on an error": lambda client, guess: act(client, HISTORY, "retry", f"outcome=failed&error={guess}"),
    "export a search": lambda client, guess: export(client, MESSAGES, f"q={guess}"),
    "export an error": lambda client, guess: export(client, HISTORY, f"outcome=failed&error={guess}"),
    "export what failed": lambda client, _: export(client, HISTORY, "outcome=failed"),
    "figures": lambda client, guess: client.get("/admin/delayedq/dashboard/", {"span": "hour", "kind": guess}),
}


def act(client, where, action, query):
    return client.post(f"{where}act/", {"action": action, "everything": "on", "query": query}, follow=True)


def export(client, where, query):
    return client.post(f"{where}export/", {"query": query, "format": "json"}, follow=True)


@pytest.mark.parametrize("ask", ASK.values(), ids=ASK)
def test_who_may_not_see_payloads_learns_nothing_from_a_guess(everything_else, ids, ask):
    right, wrong = answer(ask(everything_else, SECRET), SECRET), answer(ask(everything_else, WRONG), WRONG)
    assert right == wrong
    assert SECRET not in answer(ask(everything_else, WRONG), WRONG)[1]


def test_who_may_not_see_payloads_meets_them_on_no_page(everything_else, operator, store, ids):
    live, lost, done = ids
    do(operator, "shift", live, amount=1, unit="hours")
    given = {"task": ECHO, "args": [SECRET], "cron": "0 3 * * *"}
    recorded("s", "Add", lambda: schedules.create("s", **given))
    recorded("s", "Change", lambda: schedules.update("s", args=[SECRET + "2"]))
    urls = [f"{where}{id_}/{page}/" for where, id_ in ((MESSAGES, live), (HISTORY, lost), (HISTORY, done))
            for page in ("change", "history", "delete", "arguments", "again", "stop")]  # fmt: skip
    urls += [f"{EDITS}{edit.pk}/{page}/" for edit in Edit.objects.all() for page in ("change", "undo")]
    urls += [f"{MESSAGES}send/?copy={id_}" for id_ in ids] + [f"{MESSAGES}send/?task={ECHO}", f"{HISTORY}errors/"]
    urls += [f"{SCHEDULES}{page}/?name=s" for page in ("schedule", "edit", "delete", "run", "disable")]
    urls += ["/admin/", "/admin/delayedq/", "/admin/delayedq/dashboard/", "/admin/delayedq/dashboard/durations/"]
    urls.append("/admin/delayedq/dashboard/threads/")

    pages = [everything_else.get(url) for url in urls]
    pages += [everything_else.get(url, HTTP_X_DELAYEDQ_FRAGMENT="yes") for url in urls]
    pages += [tick(everything_else, action, live) for action in ("cancel", "reschedule", "queue")]
    pages += [tick(everything_else, action, lost, where=HISTORY) for action in ("retry", "discard")]
    pages.append(confirm(everything_else, tick(everything_else, "retry", lost, where=HISTORY), HISTORY, amount=0,
                         unit="minutes", jitter=0))  # fmt: skip

    assert {page.status_code for page in pages} <= {200, 302, 403, 404}
    assert [page.request["PATH_INFO"] for page in pages if SECRET in page.content.decode()] == []
    assert SECRET in operator.get(f"{SCHEDULES}edit/?name=s").content.decode()


def test_the_name_of_an_error_group_says_nothing_of_the_error(everything_else, ids):
    page = everything_else.get(f"{HISTORY}errors/")
    (row,) = page.context["rows"]
    number = FinishedMessage.objects.get(outcome="failed").fingerprint
    assert row.query == query_of(number)
    assert as_hex(number) not in page.content.decode()
    assert len(everything_else.get(f"{HISTORY}?{row.query}").context["rows"]) == 1


def test_who_may_not_see_payloads_finds_error_groups_by_task(everything_else, ids):
    found = [everything_else.get(f"{HISTORY}errors/", {"q": text}).context["rows"] for text in ("app.tasks", "full")]
    assert [len(rows) for rows in found] == [1, 0]


# What is masked for everybody


@pytest.mark.parametrize("chars", [4, len(SECRET)])
def test_a_search_does_not_find_what_is_masked(operator, store, chars):
    offer(store, "a", json.dumps({"args": [7, SECRET]}), kind=PAY)
    offer(store, "b", json.dumps({"args": [7, SECRET]}), kind=ECHO)
    page = operator.get(MESSAGES, {"q": SECRET[:chars]})
    assert [row.key for row in page.context["rows"]] == ["b"]


def test_a_search_says_nothing_of_how_much_is_masked(operator, store, monkeypatch):
    monkeypatch.setattr(browsing, "PAGE", 2)
    for number in range(5):
        offer(store, f"a{number}", json.dumps({"args": [7, SECRET]}), kind=PAY)
    right, wrong = (answer(operator.get(MESSAGES, {"q": guess}), guess) for guess in (SECRET, WRONG))
    assert right == wrong


def test_a_search_does_not_find_what_the_settings_mask(operator, store, settings):
    settings.DELAYEDQ = {"REDACT": lambda kind, name, value: "x" if value == SECRET else value}
    offer(store, "a", json.dumps({"args": [7, SECRET]}), kind=ECHO)
    assert operator.get(MESSAGES, {"q": SECRET}).context["rows"] == []
    assert [row.key for row in operator.get(MESSAGES, {"q": "7"}).context["rows"]] == ["a"]


def entered(client, id_, guess):
    """Enter a guess for the masked argument; returns what is said of it then, and on the page of the edit."""
    url = f"{MESSAGES}{id_}/arguments/"
    context = client.get(url).context
    fields = context["form"].fields.items()
    given = {name: guess if field.keeps_if_empty else field.shown for name, field in fields}
    page = client.post(url, {**given, "seen": context["seen"]}, follow=True)
    edit = Edit.objects.latest("id")
    (row,) = client.get(f"{EDITS}{edit.pk}/change/").context["edited"]
    notes = [re.sub(r"\d+", "N", note) for note in said(page)]
    return notes, row.differences, edit.changed


def test_a_form_does_not_confirm_a_guess_of_what_is_masked(operator, store):
    answers = []
    for key, guess in (("a", SECRET), ("b", WRONG)):
        id_ = offer(store, key, json.dumps({"args": [7, SECRET]}), kind=PAY, seconds=3_600)
        answers.append(entered(operator, id_, guess))
    assert answers[0] == answers[1]
    assert json.loads(Message.objects.get(key="b").payload)["args"] == [7, WRONG]


def test_a_form_masks_what_the_settings_mask(operator, store, settings):
    settings.DELAYEDQ = {"REDACT": lambda kind, name, value: "x" if SECRET in str(value) else value}
    id_ = offer(store, "a", json.dumps({"args": [7, SECRET]}), kind=PAY, seconds=3_600)
    for url in (f"{MESSAGES}{id_}/arguments/", f"{MESSAGES}send/?copy={id_}"):
        assert SECRET not in operator.get(url).content.decode()


def test_pages_of_schedules_do_not_show_the_arguments_of_sensitive_tasks(operator, store):
    at = timezone.now()
    CronSchedule.objects.create(name="s", covered_until=at)
    recorded("t", "Add", lambda: schedules.create("t", task=PAY, args=[7, SECRET], cron="0 3 * * *"))
    edit = Edit.objects.get()
    assert SECRET not in operator.get(f"{EDITS}{edit.pk}/change/").content.decode()
    assert SECRET not in operator.get(f"{SCHEDULES}schedule/?name=t").content.decode()
