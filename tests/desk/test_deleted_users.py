"""Users, and items, deleted while a page of theirs does something: it is refused, and nothing is left of it."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import transaction
from django.test import Client

from delayedq import desk
from delayedq.desk.errors import NotAllowed
from delayedq.desk.models import Comment, DeskQueue, Item, State
from delayedq.desk.signals import item_changed
from delayedq.testing import run_due
from tests.desk.given import ALL, PAID, QUEUE, opened, person, refund, reviewed

pytestmark = [pytest.mark.usefixtures("store"), pytest.mark.urls("tests.desk.urls")]
GONE = "The user was deleted meanwhile."


@pytest.fixture(autouse=True)
def media(settings, tmp_path):
    settings.MEDIA_ROOT = tmp_path
    return tmp_path


def files_in(media):
    return [path for path in media.rglob("*") if path.is_file()]


def signed_in(user):
    client = Client()
    client.force_login(user)
    return client


@contextmanager
def deleted_once_read(connection, rows):
    """These rows are deleted as soon as a page has read the item, and before it changes anything."""
    begun = []

    def delete(execute, sql, *given):
        answer = execute(sql, *given)
        if not begun and sql.startswith("SELECT") and "delayedq_desk_item" in sql:
            begun.append(sql)
            rows.delete()
        return answer

    with connection.execute_wrapper(delete):
        yield
    assert begun


@contextmanager
def heard(receiver):
    item_changed.connect(receiver)
    try:
        yield
    finally:
        item_changed.disconnect(receiver)


def of(user):
    return type(user).objects.filter(pk=user.pk)


@pytest.mark.parametrize("file", [None, "passport.pdf"], ids=["a text", "a file"])
def test_a_comment_of_a_user_who_is_deleted_is_refused_and_its_file_is_not_kept(connection, media, file):
    ann, item = person("ann", *ALL), opened()
    given = {"text": "hello"} | ({"attachment": SimpleUploadedFile(file, b"1")} if file else {})
    client = signed_in(ann)
    with deleted_once_read(connection, of(ann)):
        answer = client.post(f"/desk/{item.pk}/comment/", given)
    assert answer.status_code == 422
    assert GONE in answer.content.decode()
    assert not Comment.objects.exists()
    assert files_in(media) == []


def test_a_comment_on_an_item_that_is_deleted_finds_none(connection, media):
    ann, item = person("ann", *ALL), opened()
    client, file = signed_in(ann), SimpleUploadedFile("passport.pdf", b"1")
    with deleted_once_read(connection, Item.objects.filter(pk=item.pk)):
        answer = client.post(f"/desk/{item.pk}/comment/", {"attachment": file})
    assert answer.status_code == 404
    assert not Comment.objects.exists()
    assert files_in(media) == []


@pytest.mark.parametrize("verb", ["finish", "postpone", "unassign", "renew", "take"])
def test_what_the_holder_does_who_is_deleted_is_refused(connection, verb):
    ann, item = person("ann", *ALL), opened()
    item.take(ann)
    client = signed_in(ann)
    given = PAID | {"until": "2030-01-01T10:00", "dq-assignment": item.assignment}
    with deleted_once_read(connection, of(ann)):
        answer = client.post(f"/desk/{item.pk}/{verb}/", given)
    assert answer.status_code in {302, 409, 422}
    item.refresh_from_db()
    assert (item.state, item.holder_id, item.decided_at) == (State.WAITING, None, None)


@pytest.mark.parametrize("verb", ["approve", "send_back"])
def test_a_review_of_a_user_who_is_deleted_is_refused(connection, verb):
    ann, bob, item = person("ann", *ALL), person("bob", *ALL), opened(reviewed)
    item.take(bob)
    item.finish(PAID, by=bob)
    client = signed_in(ann)
    with deleted_once_read(connection, of(ann)):
        answer = client.post(f"/desk/{item.pk}/{verb}/", {"why": "less", "dq-assignment": item.assignment})
    assert answer.status_code in {302, 422}
    item.refresh_from_db()
    assert (item.state, item.reviewed_by_id) == (State.REVIEW, None)


@pytest.mark.parametrize("path", ["next/", "team/deal/"])
def test_whoever_is_deleted_is_given_nothing_by_a_button(connection, path):
    ann = person("ann", *ALL)
    opened()
    client = signed_in(ann)
    with deleted_once_read(connection, of(ann)):
        answer = client.post(f"/desk/{path}", {"queue": QUEUE, "deal": "least_loaded"})
    assert answer.status_code == 302
    assert not Item.objects.exclude(holder=None).exists()


def test_who_is_deleted_as_they_were_assigned_what_they_held_breaks_no_page():
    lead, ann, item = person("lead", *ALL), person("ann", *ALL), opened()
    item.take(ann)
    client = signed_in(lead)

    def delete(**_):
        transaction.on_commit(lambda: of(ann).delete(), using=item._state.db)

    given = {"user": ann.pk, "dq-assignment": item.assignment}
    with heard(delete):
        answer = client.post(f"/desk/{item.pk}/assign/", given, follow=True)
    assert "Assigned to ann." in answer.content.decode()
    assert Item.objects.get().state == State.WAITING


def test_what_was_said_by_who_is_deleted_stays():
    ann, bob, item = person("ann", *ALL), person("bob", *ALL), opened()
    item.comment("a passport is missing", by=ann)
    ann.delete()
    said = signed_in(bob).get(f"/desk/{item.pk}/").content.decode()
    assert "<strong>somebody</strong>" in said
    assert "a passport is missing" in said


def test_who_may_not_see_an_item_says_nothing_of_it(media):
    item, file = opened(), SimpleUploadedFile("passport.pdf", b"1")
    with pytest.raises(NotAllowed, match="guest may not see items of the queue refunds"):
        item.comment("hello", file, by=person("guest", "take"))
    assert not Comment.objects.exists()
    assert files_in(media) == []


@pytest.mark.parametrize("change", ["permission", "group", "is_active", "deleted"])
def test_who_may_work_no_more_is_dealt_nothing_by_a_deal_that_goes_on(change):
    """Of six items ann and bob would get three each; ann may work no more once one of them has the first."""
    ann, bob = person("ann", *ALL), person("bob", *ALL)
    group = DeskQueue.objects.create(queue=QUEUE).groups.create(name="clerks")
    for user in (ann, bob):
        user.groups.add(group)
    for _ in range(6):
        refund.enqueue(1)
    run_due()
    withdrawals = {
        "permission": ann.user_permissions.clear,
        "group": ann.groups.clear,
        "is_active": partial(of(ann).update, is_active=False),
        "deleted": of(ann).delete,
    }
    holders = []

    def withdraw(item, **_):
        holders.append(item.holder)
        if len(holders) == 1:
            withdrawals[change]()

    with heard(withdraw):
        assert desk.distribute(QUEUE, [bob, ann]) == 6
    assert holders == [bob] * 6
