"""Edits are recorded, logged and undone."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from django.contrib.admin.models import LogEntry
from django.utils import timezone

from delayedq.models import Edit, EditedMessage, FinishedMessage, Message
from delayedq.operations import edits
from tests.admin.given import EDITS, HOUR, MESSAGES, do, live, offer, run, said, soon, text_of, undo


@pytest.mark.parametrize(
    ("action", "fields", "described"),
    [
        ("run_now", {}, "Run now"),
        ("reschedule", {"at": "2030-01-02T03:04:05"}, "Reschedule to Wed 2030-01-02 03:04:05 EST"),
        ("shift", {"amount": "-2", "unit": "hours"}, "Shift 2 h earlier"),
        ("spread", {"amount": "3", "unit": "minutes", "jitter": "0"}, "Spread over 3 min from now"),
        ("queue", {"queue": "elsewhere"}, "Move to elsewhere"),
        ("cancel", {}, "Cancel"),
    ],
)
def test_the_description_of_an_edit_names_the_action_and_its_parameters(operator, store, action, fields, described):
    do(operator, action, offer(store, "a", seconds=90_000), **fields)
    assert Edit.objects.get().description == described


def test_an_edit_is_recorded_and_logged(operator, store):
    id_ = offer(store, "a")
    do(operator, "priority", id_, priority=5)

    edit, entry, record = Edit.objects.get(), LogEntry.objects.get(), EditedMessage.objects.get()
    assert (edit.description, edit.made_by, edit.changed, edit.skipped) == ("Change priority to 5", "ann", 1, 0)
    assert entry.get_admin_url() == f"/admin/delayedq/edit/{edit.pk}/change/"
    assert "1 message changed" in entry.get_change_message()
    assert (record.message_id, json.loads(record.before)["priority"], json.loads(record.after)["priority"]) == (
        id_,
        0,
        5,
    )
    assert "Undo…" in text_of(operator.get(f"{EDITS}{edit.pk}/change/"))
    assert "Change priority to 5" in text_of(operator.get(EDITS))
    assert "Change priority to 5" in text_of(operator.get(f"{MESSAGES}{id_}/change/"))


@pytest.mark.parametrize(
    ("action", "fields"),
    [
        ("run_now", {}),
        ("reschedule", {"at": "2126-01-01T00:00"}),
        ("shift", {"amount": "2", "unit": "days"}),
        ("spread", {"amount": "2", "unit": "days", "jitter": "50"}),
        ("priority", {"priority": "5"}),
        ("queue", {"queue": "slow"}),
        ("cancel", {}),
    ],
)
def test_every_edit_can_be_undone(operator, store, action, fields):
    ids = [offer(store, key, '{"args":[1]}', seconds=HOUR) for key in "ab"]
    before = list(Message.objects.order_by("id").values())
    (note,) = do(operator, action, *ids, **fields)
    assert "Undo" in note
    assert list(Message.objects.order_by("id").values()) != before

    assert undo(operator) == ["Undone: 2 messages changed."]

    assert list(Message.objects.order_by("id").values()) == before
    assert not FinishedMessage.objects.exists()
    assert LogEntry.objects.count() == 2


def test_undo_skips_messages_that_changed_after_the_edit(operator, store):
    ran, moved, replaced, late, left = (offer(store, key, queue=key, seconds=HOUR) for key in "abcde")
    do(operator, "run_now", ran, moved, replaced, late, left)
    run(store, "a")
    do(operator, "priority", moved, priority=3)
    do(operator, "shift", late, amount=3, unit="hours")
    shifted = live(late).scheduled_at
    offer(store, "c", "[2]", queue="c")

    edit = Edit.objects.earliest("id")
    page = operator.post(f"{EDITS}{edit.pk}/undo/", follow=True)

    assert said(page) == ["Undone: 1 message changed, 4 skipped (4 changed meanwhile)."]
    assert not soon(live(left).scheduled_at)
    assert soon(live(moved).scheduled_at)
    assert live(late).scheduled_at == shifted


def test_undo_skips_a_cancelled_message_whose_key_is_live_again(operator, store):
    do(operator, "cancel", offer(store, "a", "[1]"))
    offer(store, "a", "[2]")
    assert undo(operator) == ["Undone: 0 messages changed, 1 skipped (1 changed meanwhile)."]
    assert Message.objects.get().payload == "[2]"


def test_an_edit_is_undone_once(operator, store):
    id_ = offer(store, "a", seconds=HOUR)
    do(operator, "shift", id_, amount=1, unit="hours")
    edit = Edit.objects.get()
    operator.post(f"{EDITS}{edit.pk}/undo/")

    page = operator.post(f"{EDITS}{edit.pk}/undo/", follow=True)

    assert said(page)[-1].startswith("This edit was undone already")
    assert "Undo…" not in text_of(page)


def test_old_edits_are_deleted(operator, store):
    id_ = offer(store, "a")
    do(operator, "priority", id_, priority=1)
    Edit.objects.update(made_at=timezone.now() - edits.KEPT_FOR - timedelta(minutes=1))
    do(operator, "priority", id_, priority=2)
    assert [edit.description for edit in Edit.objects.all()] == ["Change priority to 2"]
    assert EditedMessage.objects.count() == 1
