"""What is done to one message: its arguments are edited, it is stopped, sent anew or copied, discarded."""

from __future__ import annotations

import json

import pytest
from django.contrib.admin.models import LogEntry

from delayedq.admin.one_message import seen_text
from delayedq.models import Edit, FinishedMessage, Message
from tests.admin.given import HISTORY, MESSAGES, confirm, dead, do, live, offer, run, said, text_of, tick, undo
from tests.app.tasks import depart, echo, pay
from tests.store.given import settle, succeed

DEPART, ECHO, PAY = depart.module_path, echo.module_path, pay.module_path
SEND = f"{MESSAGES}send/"


def arguments_of(id_):
    return json.loads(live(id_).payload)


def edit(client, id_, seen=None, **fields):
    """Post the form of a message as it is shown now."""
    given = {f"argument_{name}": value for name, value in fields.items()}
    return client.post(f"{MESSAGES}{id_}/arguments/", {"seen": seen or seen_text(live(id_)), **given}, follow=True)


# Arguments


def test_the_form_has_the_arguments_of_the_signature_with_their_values(operator, store):
    id_ = offer(store, "a", '{"args":["UA1"],"kwargs":{"departure":517}}', kind=DEPART)
    form = operator.get(f"{MESSAGES}{id_}/arguments/").context["form"]
    assert [(field.label, field.initial) for field in form] == [("code", "UA1"), ("departure", "517")]


def test_arguments_are_edited_logged_and_the_edit_is_undone(operator, store):
    id_ = offer(store, "a", '{"args":["UA1",517]}', kind=DEPART, seconds=3_600)

    page = edit(operator, id_, code="UA2\r\nx", departure="600")

    assert said(page) == [f"The arguments of message {id_} are changed."]
    assert arguments_of(id_) == {"args": ["UA2\nx", 600]}
    assert LogEntry.objects.get().change_message.startswith("Edit the arguments of")
    assert "arguments by ann" in text_of(page)
    page = operator.get(f"/admin/delayedq/edit/{Edit.objects.get().pk}/change/")
    assert "argument departure: 517" in text_of(page)
    assert "argument departure: 600" in text_of(page)
    assert "scheduled_at" not in text_of(page)
    assert undo(operator) == ["Undone: 1 message changed."]
    assert arguments_of(id_) == {"args": ["UA1", 517]}
    assert (Edit.objects.get().undone_by, Edit.objects.get().messages.get().undone) == ("ann", True)
    assert "arguments undone by ann" in text_of(operator.get(f"{MESSAGES}{id_}/change/"))


@pytest.mark.parametrize(
    ("kind", "fields", "problem"),
    [
        (DEPART, {"code": "UA1", "departure": "noon"}, "This is not a whole number."),
        (DEPART, {"code": "a\0b", "departure": "1"}, "Null characters are not allowed."),
        (ECHO, {"args": "[1", "kwargs": "{}"}, "This is not JSON."),
        (ECHO, {"args": "7", "kwargs": "{}"}, "args is a list, not int."),
        (ECHO, {"args": '[{"$":"uuid","v":"no"}]', "kwargs": "{}"}, "badly formed hexadecimal"),
        (ECHO, {"args": "[" * 5_000, "kwargs": "{}"}, "This is not JSON."),
        (ECHO, {"args": f'["{"x" * 1_000_001}"]', "kwargs": "{}"}, "MAX_PAYLOAD_BYTES"),
        (ECHO, {"args": '[{"$":"model","v":{"model":"auth.user","pk":10000}}]', "kwargs": ""}, "was deleted after"),
    ],
)
def test_what_enqueue_would_refuse_is_refused(operator, store, kind, fields, problem):
    payload = '{"args":["UA1",517]}'
    id_ = offer(store, "a", payload, kind=kind)
    page = edit(operator, id_, **fields)
    assert problem in text_of(page)
    assert live(id_).payload == payload


def test_a_value_that_is_not_touched_is_kept_exactly(operator, store):
    payload = json.dumps({"args": [{"$": "uuid", "v": "2f6d0e62-9a2f-4a11-8e63-1e5b7a1f1d11"}, 1.50, "\u202e"]})
    id_ = offer(store, "a", payload, kind=ECHO)
    page = operator.get(f"{MESSAGES}{id_}/arguments/")
    form = page.context["form"]
    assert "\u202e" not in page.content.decode()
    edit(operator, id_, args=form["argument_args"].value(), kwargs='{"a": 1}')
    assert arguments_of(id_) == {**json.loads(payload), "kwargs": {"a": 1}}


def test_a_masked_argument_is_not_shown_and_stays_if_nothing_is_entered(operator, store):
    id_ = offer(store, "a", '{"args":[7,"tok_4c11e9"]}', kind=PAY)
    assert "tok_4c11e9" not in text_of(operator.get(f"{MESSAGES}{id_}/arguments/"))
    edit(operator, id_, amount="8", token="")
    assert arguments_of(id_) == {"args": [8, "tok_4c11e9"]}
    edit(operator, id_, amount="8", token="tok_new")
    assert arguments_of(id_) == {"args": [8, "tok_new"]}
    page = operator.get(f"/admin/delayedq/edit/{Edit.objects.latest('id').pk}/change/")
    assert 'argument token: "[masked]"' in text_of(page)
    assert "tok_" not in page.content.decode()


@pytest.mark.parametrize("change", ["claimed", "replaced", "edited", "forged"])
def test_a_form_that_is_older_than_the_message_changes_nothing(operator, store, change):
    id_ = offer(store, "a", '{"args":["UA1",517]}', kind=DEPART)
    seen = seen_text(live(id_))
    if change == "claimed":
        run(store)
    elif change == "replaced":
        offer(store, "a", '{"args":["UA3",1]}', kind=DEPART)
    elif change == "edited":
        edit(operator, id_, code="UA3", departure="1")
    before = live(id_).payload

    page = edit(operator, id_, "0.0.0" if change == "forged" else seen, code="UA2", departure="600")

    assert said(page)[-1].startswith("Nothing was changed")
    assert live(id_).payload == before


def test_a_message_of_an_unknown_task_has_no_form(operator, store):
    id_ = offer(store, "a")
    assert operator.get(f"{MESSAGES}{id_}/arguments/").status_code == 404
    assert "Edit arguments" not in text_of(operator.get(f"{MESSAGES}{id_}/change/"))


# Stop


def test_a_running_message_is_stopped_and_its_worker_loses_it(operator, store):
    id_ = offer(store, "a", kind=ECHO)
    claimed = run(store)
    assert "Ask it to stop" in text_of(operator.get(f"{MESSAGES}{id_}/change/"))
    assert "no undo" in text_of(operator.get(f"{MESSAGES}{id_}/stop/"))

    page = operator.post(f"{MESSAGES}{id_}/stop/", {"seen": seen_text(live(id_))}, follow=True)

    assert said(page) == [f"Message {id_} is cancelled, and its task is told to stop."]
    assert FinishedMessage.objects.get().outcome == "cancelled"
    assert settle(store, succeed(claimed)).lost == {id_}
    assert "stop by ann" in text_of(page)
    assert "Undo" not in text_of(operator.get(f"/admin/delayedq/edit/{Edit.objects.get().pk}/change/"))


def test_what_does_not_run_is_not_stopped(operator, store):
    id_ = offer(store, "a", kind=ECHO)
    page = operator.post(f"{MESSAGES}{id_}/stop/", {"seen": seen_text(live(id_))}, follow=True)
    assert said(page) == ["Nothing was stopped: the attempt has ended, or another one runs."]
    assert Message.objects.get().pk == id_


# Send


def test_a_message_is_sent_and_the_sending_is_undone(operator, store):
    assert SEND in operator.get(MESSAGES).content.decode()
    assert DEPART in operator.get(SEND).context["tasks"]
    page = operator.get(SEND, {"task": DEPART})
    assert page.context["form"]["queue"].value() == depart.queue_name
    given = {"argument_code": "UA1", "argument_departure": "517", "queue": "mail", "priority": "3", "key": "k"}

    page = operator.post(f"{SEND}?task={DEPART}", given, follow=True)

    row = Message.objects.get()
    assert (row.kind, row.queue, row.priority, row.key) == (DEPART, "mail", 3, "k")
    assert json.loads(row.payload) == {"args": ["UA1", 517]}
    assert f"Message {row.pk} is sent." in said(page)
    assert "send by ann" in text_of(page)
    assert undo(operator) == ["Undone: 1 message changed."]
    assert FinishedMessage.objects.get().outcome == "cancelled"


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"argument_departure": "x"}, "This is not a whole number."),
        ({"queue": "a|b"}, "the name of a task&#x27;s queue can"),
        ({"queue": ""}, "This field is required."),
        ({"priority": "101"}, "less than or equal to 100"),
        ({"key": "taken"}, "A live message of this task has the key"),
        ({"key": "\0"}, "Null characters are not allowed."),
    ],
)
def test_what_can_not_be_sent_says_why(operator, store, fields, problem):
    offer(store, "taken", kind=DEPART)
    given = {"argument_code": "UA1", "argument_departure": "517", "queue": "mail", "priority": "0", "key": ""}
    page = operator.post(f"{SEND}?task={DEPART}", {**given, **fields})
    assert problem in page.content.decode()
    assert Message.objects.count() == 1


@pytest.mark.parametrize("end", [False, True], ids=["live", "ended"])
def test_a_copy_is_sent_with_the_same_arguments_queue_and_attempts(operator, store, end):
    make = dead if end else offer
    fields = {"kind": DEPART, "max_attempts": 5} | ({} if end else {"queue": "mail", "priority": 7})
    id_ = make(store, "a", '{"args":["UA1"],"kwargs":{"departure":517}}', **fields)
    page = operator.get(SEND, {"copy": id_})
    given = {field.html_name: "" if field.value() is None else field.value() for field in page.context["form"]}

    operator.post(f"{SEND}?copy={id_}", given)

    row = Message.objects.latest("id")
    assert row.pk > id_
    assert (row.key, row.max_attempts, row.queue, row.priority) == (
        (None, 5, "dying", 0) if end else (None, 5, "mail", 7)
    )
    assert json.loads(row.payload) == {"args": ["UA1", 517]}


@pytest.mark.parametrize("query", ["task=os.system", "task=%00", "copy=%00", "copy=99999999999999999999999", "copy=x"])
def test_what_there_is_not_can_not_be_sent(operator, store, query):
    assert operator.get(f"{SEND}?{query}").status_code in {200, 404}
    assert operator.post(f"{SEND}?{query}", {"argument_a": "1"}).status_code in {200, 404}
    assert not Message.objects.exists()


# Discard


def test_dead_letters_are_discarded_and_the_discarding_is_undone(operator, store):
    lost, other = dead(store, "a"), dead(store, "b")

    assert "1 message changed" in do(operator, "discard", lost, where=HISTORY)[0]

    assert FinishedMessage.objects.get(id=lost).outcome == "cancelled"
    assert FinishedMessage.objects.get(id=other).outcome == "failed"
    undo(operator)
    assert FinishedMessage.objects.get(id=lost).outcome == "failed"


def test_a_dead_letter_whose_key_is_taken_can_be_discarded_and_the_confirmation_says_so(operator, store):
    lost = dead(store, "a")
    offer(store, "a")
    confirmation = tick(operator, "discard", lost, where=HISTORY)
    assert confirmation.context["preview"][:2] == ((1, True), [])
    assert "1 message changed" in said(confirm(operator, confirmation, HISTORY))[0]
