"""What somebody has typed is in the answer, in whichever way the item was gone when they sent it."""

from __future__ import annotations

import re

import pytest
from django.contrib.auth.models import Group
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from delayedq.desk.models import Comment, DeskQueue, Item
from delayedq.desk.rounds import close_withdrawn
from delayedq.models import Message
from delayedq.store import default_store
from tests.desk.given import ALL, PAID, QUEUE, opened, person, refund, reviewed

pytestmark = [
    pytest.mark.usefixtures("store"),
    pytest.mark.urls("tests.desk.urls"),
    pytest.mark.parametrize("alias", ["sqlite"], indirect=True),
]
TYPED = "the customer's letter of <May>"
SHOWN = "the customer&#x27;s letter of &lt;May&gt;"
BASES = {"own": "/desk/", "admin": "/admin/delayedq_desk/item/desk/"}
#: Where Django keeps the token of forms: in a cookie that scripts may read, in one that they may not, in a session.
TOKENS = {"cookie": {}, "hidden": {"CSRF_COOKIE_HTTPONLY": True}, "session": {"CSRF_USE_SESSIONS": True}}


@pytest.fixture(params=TOKENS)
def token_kept(request, settings):
    for name, value in TOKENS[request.param].items():
        setattr(settings, name, value)
    return request.param


def taken_back(item, ann, bob):
    item.unassign(by=bob)


def given_to_another(item, ann, bob):
    item.assign(bob)


def decided_by_another(item, ann, bob):
    item.assign(bob)
    item.finish(PAID, by=bob)


def pending_review(item, ann, bob):
    item.assign(bob)
    item.finish(PAID, by=bob)


def withdrawn(item, ann, bob):
    Message.objects.filter(pk=item.message_id).delete()


def withdrawn_and_closed(item, ann, bob):
    withdrawn(item, ann, bob)
    close_withdrawn(default_store())


def replaced(item, ann, bob):
    Message.objects.filter(pk=item.message_id).update(generation=7)


def deleted(item, ann, bob):
    Item.objects.filter(pk=item.pk).delete()


def of_a_closed_group(item, ann, bob):
    DeskQueue.objects.create(queue=QUEUE).groups.add(Group.objects.create(name="others"))


def of_a_task_that_is_gone(item, ann, bob):
    Item.objects.update(kind="shop.tasks.removed")


def without_permission(item, ann, bob):
    ann.user_permissions.clear()


def signed_out(item, ann, bob):
    pass


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize(("gone", "status"), [
    (taken_back, 422), (given_to_another, 422), (decided_by_another, 422), (pending_review, 422), (withdrawn, 422),
    (withdrawn_and_closed, 422), (replaced, 422), (deleted, 404), (of_a_closed_group, 404),
    (of_a_task_that_is_gone, 404), (without_permission, 404), (signed_out, 403),
])  # fmt: skip
@pytest.mark.parametrize(("verb", "sent"), [
    ("finish", {"amount": "4711"}), ("postpone", {"until": "2126-01-01T10:00", "why": TYPED}),
])  # fmt: skip
def test_what_was_typed_is_kept(base, gone, status, verb, sent):
    ann, bob = person("ann", *ALL), person("bob", *ALL)
    item = opened(reviewed if gone is pending_review else refund)
    item.take(ann)
    client, seen = Client(), item.assignment
    if gone is not signed_out:
        client.force_login(ann)
    gone(item, ann, bob)
    before = [*Item.objects.values()]
    answer = client.post(f"{BASES[base]}{item.pk}/{verb}/", {**sent, "dq-assignment": seen})

    assert answer.status_code == status
    page = answer.content.decode()
    assert (SHOWN if verb == "postpone" else "4711") in page
    assert "dq-assignment" not in str(answer.context["typed"])
    assert 'role="alert"' in page
    assert [*Item.objects.values()] == before


def test_what_a_reviewer_or_a_commenter_has_typed_is_kept():
    ann, bob, cat = (person(name, *ALL) for name in ("ann", "bob", "cat"))
    item = opened(reviewed)
    item.take(ann)
    item.finish(PAID, by=ann)
    seen, client = item.assignment, Client()
    client.force_login(bob)
    item.approve(by=cat)
    answer = client.post(f"/desk/{item.pk}/send_back/", {"why": TYPED, "dq-assignment": seen})
    assert (answer.status_code, SHOWN in answer.content.decode()) == (422, True)
    Item.objects.filter(pk=item.pk).delete()
    letter = SimpleUploadedFile("letter.pdf", b"%PDF")
    answer = client.post(f"/desk/{item.pk}/comment/", {"text": TYPED, "attachment": letter})
    assert answer.context["typed"] == [("text", TYPED), ("attachment", "letter.pdf")]
    assert not Comment.objects.exists()


def test_who_was_signed_out_comes_back_to_the_item():
    item = opened()
    for base, login in ((BASES["own"], "/accounts/login/"), (BASES["admin"], "/admin/login/")):
        page = Client().post(f"{base}{item.pk}/finish/", {"amount": "1"}).content.decode()
        assert f'href="{login}?next={base}{item.pk}/"' in page
        assert "AnonymousUser" not in page


def test_a_form_that_is_shown_is_not_repeated():
    ann, item = person("ann", *ALL), opened()
    item.take(ann)
    client = Client()
    client.force_login(ann)
    page = client.post(f"/desk/{item.pk}/finish/", {"amount": "x", "dq-assignment": item.assignment})
    assert page.context["typed"] == []
    assert 'value="x"' in page.content.decode()
    assert client.post("/desk/4711/renew/").status_code == 404


def careful(user):
    """A client whose requests are checked as those of a browser."""
    client = Client(enforce_csrf_checks=True)
    sign_in(client, user)
    return client


def sign_in(client, user):
    """As a person does, in any tab: by a form, which makes another token."""
    user.set_password("wonderland")
    user.save()
    page = client.get("/admin/login/").content.decode()
    sent = {"username": user.username, "password": "wonderland", "csrfmiddlewaretoken": token_of(page)}
    assert client.post("/admin/login/", {**sent, "next": "/desk/"}).status_code == 302


def sign_out(client):
    page = client.get("/desk/").content.decode()
    assert client.post("/admin/logout/", {"csrfmiddlewaretoken": token_of(page)}).status_code == 200


def token_of(page):
    return re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page)[1]


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("is_back", [True, False], ids=["signed in again", "signed out"])
def test_what_was_typed_is_kept_though_its_token_holds_no_more(base, token_kept, is_back):
    ann, item = person("ann", *ALL), opened()
    item.take(ann)
    client = careful(ann)
    sent = {"amount": "4711", "dq-assignment": item.assignment}
    sent["csrfmiddlewaretoken"] = token_of(client.get(f"{BASES[base]}{item.pk}/").content.decode())
    sign_out(client)
    if is_back:
        sign_in(client, ann)
    answer = client.post(f"{BASES[base]}{item.pk}/finish/", sent)
    assert (answer.status_code, answer.context["typed"]) == (403, [("amount", "4711")])
    page = answer.content.decode()
    assert ("You have signed in again" if is_back else "You are signed out") in page
    assert (f'href="{BASES[base]}{item.pk}/"' in page) == is_back
    item.refresh_from_db()
    assert item.decision is None


@pytest.mark.parametrize("base", BASES)
def test_a_refresh_brings_a_token_that_holds_after_signing_in_again(base, token_kept):
    ann, item = person("ann", *ALL), opened()
    item.take(ann)
    client = careful(ann)
    sign_out(client)
    sign_in(client, ann)
    sent = {"amount": "70", "dq-assignment": item.assignment}
    sent["csrfmiddlewaretoken"] = token_of(client.get(f"{BASES[base]}{item.pk}/present/").content.decode())
    assert client.post(f"{BASES[base]}{item.pk}/finish/", sent).status_code == 302
    item.refresh_from_db()
    assert item.decision == '{"amount":70,"paid":false}'


@pytest.mark.parametrize("base", BASES)
def test_a_page_names_the_cookie_of_the_token_where_a_script_may_read_it(base, token_kept):
    page = careful(person("ann", *ALL)).get(BASES[base]).content.decode()
    assert ('data-csrf-cookie="csrftoken"' in page) == (token_kept == "cookie")


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("is_signed_in", [True, False])
def test_what_another_site_has_sent_is_not_shown(base, is_signed_in):
    ann, item = person("ann", *ALL), opened()
    item.take(ann)
    client = careful(ann) if is_signed_in else Client(enforce_csrf_checks=True)
    answer = client.post(f"{BASES[base]}{item.pk}/comment/", {"text": TYPED}, headers={"Sec-Fetch-Site": "cross-site"})
    assert (answer.status_code, SHOWN in answer.content.decode()) == (403, False)


@pytest.mark.parametrize("verb", ["take", "finish", "comment"])
def test_a_project_without_the_middleware_is_protected_all_the_same(verb, settings):
    settings.MIDDLEWARE = [name for name in settings.MIDDLEWARE if "Csrf" not in name]
    ann, item = person("ann", *ALL), opened()
    if verb != "take":
        item.take(ann)
    client = careful(ann)
    sent = {"amount": "70", "text": "x", "dq-assignment": item.assignment}
    assert client.post(f"/desk/{item.pk}/{verb}/", sent).status_code == 403
    sent["csrfmiddlewaretoken"] = token_of(client.get(f"/desk/{item.pk}/").content.decode())
    assert client.post(f"/desk/{item.pk}/{verb}/", sent).status_code == 302


@pytest.mark.parametrize("base", BASES.values(), ids=BASES)
def test_what_was_sent_from_a_page_of_another_user_is_not_done(base):
    """Somebody else has signed in in another tab of the browser, whose token the page has taken."""
    ann, bob = person("ann", *ALL, superuser=True), person("bob", *ALL, superuser=True)
    item, client = opened(), Client()
    client.force_login(ann)
    page = client.get(f"{base}{item.pk}/").content.decode()
    assert f'name="dq-user" value="{ann.pk}"' in page
    client.force_login(bob)
    for verb, sent in (("comment", {"text": TYPED}), ("take", {})):
        answer = client.post(f"{base}{item.pk}/{verb}/", {"dq-user": f"{ann.pk}", **sent})
        assert answer.status_code == 403
        assert "Somebody else has signed in" in answer.content.decode()
        assert (SHOWN in answer.content.decode()) is bool(sent)
    answer = client.post(f"{base}team/deal/", {"dq-user": f"{ann.pk}", "queue": QUEUE, "deal": "round_robin"})
    assert answer.status_code == 403
    item.refresh_from_db()
    assert (item.holder, Comment.objects.exists()) == (None, False)
    assert client.post(f"{base}{item.pk}/comment/", {"dq-user": f"{bob.pk}", "text": TYPED}).status_code == 302
