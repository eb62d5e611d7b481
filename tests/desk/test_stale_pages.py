"""What is sent from a page that shows what was, of a task that is gone, or with a file; and what the history keeps."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest
from django.core.files.storage import InMemoryStorage, storages
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.utils import timezone

from delayedq.desk.errors import NotOpen
from delayedq.desk.models import Comment, Item, State
from delayedq.desk.rounds import let_wait
from delayedq.models import FinishedMessage
from delayedq.testing import run_due
from tests.desk.given import ALL, PAID, opened, person, refund, reviewed

pytestmark = [pytest.mark.usefixtures("store"), pytest.mark.urls("tests.desk.urls")]
GOOD = {
    "finish": {"amount": 70},
    "postpone": {"until": f"{datetime.now(UTC) + timedelta(days=365):%Y-%m-%dT%H:%M}"},
    "unassign": {},
    "send_back": {"why": "too much"},
}


class OwnStorage(InMemoryStorage):
    """That of a project."""


def signed_in(user):
    client = Client()
    client.force_login(user)
    return client


def changed_hands(verb, ann, bob):
    """An item that the reader may change now as on the page that they still see; and its assignment there."""
    item = opened(reviewed if verb == "send_back" else refund)
    item.take(ann)
    if verb != "send_back":
        shown = item.assignment
        item.unassign(by=ann)
        item.take(ann)
        return item, shown
    item.finish({"amount": 5}, by=ann)
    shown = item.assignment
    item.send_back("more", by=bob)
    item.finish(PAID, by=ann)
    return item, shown


@pytest.mark.parametrize("verb", GOOD)
def test_a_page_that_shows_what_was_changes_nothing(verb):
    ann, bob = person("ann", *ALL), person("bob", *ALL)
    item, shown = changed_hands(verb, ann, bob)
    client, before = signed_in(bob if verb == "send_back" else ann), Item.objects.values().get()
    of_the_version_before = {"assignment": item.assignment}
    for stale in (*({"dq-assignment": one} for one in (shown, "", "x", "9" * 30)), of_the_version_before):
        page = client.post(f"/desk/{item.pk}/{verb}/", GOOD[verb] | stale, follow=True)
        assert "Nothing was changed: " in page.content.decode()
        assert Item.objects.values().get() == before
    client.post(f"/desk/{item.pk}/{verb}/", GOOD[verb] | {"dq-assignment": item.assignment})
    assert Item.objects.values().get() != before


@pytest.mark.parametrize(
    ("verb", "state"),
    [
        ("finish", "done"),
        ("postpone", "postponed"),
        ("unassign", "waiting"),
        ("renew", "assigned"),
        ("take", "assigned"),
    ],
)
def test_a_page_that_was_open_when_the_time_ran_out_holds_until_somebody_else_takes_the_item(store, verb, state):
    ann, bob = person("ann", *ALL), person("bob", *ALL)
    for is_taken in (False, True):
        item = opened()
        item.take(ann)
        sent = GOOD.get(verb, {}) | {"dq-assignment": item.assignment}
        Item.objects.filter(pk=item.pk).update(until=timezone.now() - timedelta(minutes=1))
        assert let_wait(store) == (1, None)
        item.refresh_from_db()
        if is_taken:
            item.take(bob)
        before = Item.objects.filter(pk=item.pk).values().get()
        signed_in(ann).post(f"/desk/{item.pk}/{verb}/", sent)
        after = Item.objects.filter(pk=item.pk).values().get()
        if is_taken:
            assert after == before
        else:
            assert (after["state"], before["state"]) == (state, "waiting")
            assert after != before


@pytest.mark.parametrize("verb", ["approve", "renew"])
def test_an_item_of_a_task_that_is_gone_is_neither_approved_nor_renewed(verb):
    ann, bob = person("ann", *ALL), person("bob", *ALL)
    item = opened(reviewed)
    item.take(ann)
    if verb == "approve":
        item.finish(PAID, by=ann)
    Item.objects.update(kind="shop.tasks.removed")
    user, before = bob if verb == "approve" else ann, Item.objects.values().get()
    with pytest.raises(NotOpen, match=r"No task is registered as 'shop.tasks.removed'"):
        getattr(item, verb)(by=user)
    answer = signed_in(user).post(f"/desk/{item.pk}/{verb}/")
    assert answer.status_code == (302 if verb == "approve" else 409)
    assert Item.objects.values().get() == before


def test_a_file_is_kept_in_the_storage_of_the_project(settings):
    settings.STORAGES = {**settings.STORAGES, "default": {"BACKEND": f"{__name__}.OwnStorage"}}
    ann, item = person("ann", *ALL), opened()
    client, address = signed_in(ann), f"/desk/{item.pk}/comment/"
    page = client.post(address, {"attachment": SimpleUploadedFile("letter.pdf", b"%PDF")}, follow=True)
    comment = Comment.objects.get()
    assert isinstance(storages["default"], OwnStorage)
    with storages["default"].open(comment.attachment.name) as kept:
        assert kept.read() == b"%PDF"
    assert (comment.by, comment.text) == (ann, "")
    assert re.fullmatch(r"desk/[\w-]{22}/letter\.pdf", comment.attachment.name)
    link = f"/desk/{item.pk}/file/{comment.pk}/"
    assert f'<a href="{link}">letter.pdf</a>' in page.content.decode()
    assert b"".join(client.get(link).streaming_content) == b"%PDF"
    empty = client.post(address, {"attachment": SimpleUploadedFile("empty.pdf", b"")})
    assert empty.status_code == 422
    assert "The submitted file is empty." in empty.content.decode()
    assert Comment.objects.count() == 1


def test_each_decision_is_in_the_history_with_who_has_made_it_and_why():
    ann, bob = person("ann", *ALL), person("bob", *ALL)
    item = opened(reviewed)
    item.take(ann)
    item.postpone(timezone.now() + timedelta(days=1), "no receipt", by=ann)
    item.unassign(by=ann)
    item.take(ann)
    item.finish({"amount": 5}, by=ann)
    item.send_back("too little", by=bob)
    item.finish(PAID, by=ann)
    item.approve(by=bob)
    assert item.state == State.DONE
    run_due()
    rows = FinishedMessage.objects.filter(kind="delayedq.desk.tasks.decided").order_by("id")
    said = [row.kwargs for row in rows]
    five = {"amount": 5, "paid": False}
    assert [(one["verb"], one["by"], one["decision"], one["why"]) for one in said] == [
        ("postpone", "ann", None, "no receipt"),
        ("finish", "ann", five, "no receipt"),
        ("send_back", "bob", five, "too little"),
        ("finish", "ann", PAID, "too little"),
        ("approve", "bob", PAID, "too little"),
    ]
    assert {(one["message_id"], one["task"]) for one in said} == {(item.message_id, reviewed.module_path)}
