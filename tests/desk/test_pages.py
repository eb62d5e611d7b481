"""The pages of the desk: what they show, who may do what by POST, and what bad input does."""

from __future__ import annotations

import pytest
from django.test import Client

from delayedq.desk.models import Automation, Item, State
from tests.desk.given import ALL, QUEUE, opened, person, refund, reviewed

pytestmark = [pytest.mark.usefixtures("store"), pytest.mark.urls("tests.desk.urls")]


def signed_in(user):
    client = Client()
    client.force_login(user)
    return client


def text_of(answer):
    return answer.content.decode()


def test_from_the_desk_to_the_decision():
    ann = person("ann", *ALL)
    item = opened()
    client = signed_in(ann)
    assert "Next of refunds" in text_of(client.get("/desk/"))
    page = client.post("/desk/next/", {"queue": QUEUE}, follow=True)
    assert 'name="amount"' in text_of(page)
    client.post(f"/desk/{item.pk}/comment/", {"text": "asked the customer"})
    assert "asked the customer" in text_of(client.get(f"/desk/{item.pk}/"))
    assert client.post(f"/desk/{item.pk}/renew/").status_code == 204
    client.post(f"/desk/{item.pk}/finish/", {"amount": 70, "paid": "on"})
    item.refresh_from_db()
    assert (item.state, item.decision) == (State.DONE, '{"amount":70,"paid":true}')
    assert "70" in text_of(client.get(f"/desk/{item.pk}/"))


def test_figures_and_team():
    ann = person("ann", *ALL)
    opened().take(ann)
    done = opened()
    done.take(ann)
    done.finish({"amount": 1}, by=ann)
    client = signed_in(ann)
    assert "ann" in text_of(client.get("/desk/team/?queue=refunds"))
    assert "nothing compared yet" in text_of(client.get("/desk/figures/"))


def test_the_form_shows_what_the_handler_says_only_where_it_assists():
    ann = person("ann", *ALL)
    for mode, shown in (("assisted", True), ("shadow", False)):
        Automation.objects.update_or_create(kind=refund.module_path, defaults={"mode": mode})
        item = opened(refund, 88)
        item.take(ann)
        assert ('value="88"' in text_of(signed_in(ann).get(f"/desk/{item.pk}/"))) == shown


@pytest.mark.parametrize(
    ("verb", "values", "said"),
    [
        ("finish", {"amount": "much"}, "Enter a whole number."),
        ("postpone", {"until": "2001-01-01T10:00"}, "A follow-up date lies in the future"),
        ("postpone", {"until": "soon"}, "Enter a valid date/time."),
        ("assign", {"user": "999999"}, "Select a valid choice"),
    ],
)
def test_bad_input_is_said_at_its_field_and_changes_nothing(verb, values, said):
    ann = person("ann", *ALL)
    item = opened()
    item.take(ann)
    before = Item.objects.values().get()
    answer = signed_in(ann).post(f"/desk/{item.pk}/{verb}/", values)
    assert answer.status_code == 422
    assert said in text_of(answer)
    assert Item.objects.values().get() == before


def test_assigning_to_somebody_without_the_permission_is_said_at_the_field():
    ann, guest = person("ann", *ALL), person("guest")
    item = opened()
    values = {"user": guest.pk, "assignment": item.assignment}
    answer = signed_in(ann).post(f"/desk/{item.pk}/assign/", values)
    assert answer.status_code == 422
    assert "guest may not work on the queue refunds." in text_of(answer)


@pytest.mark.parametrize("verb", ["take", "unassign", "approve", "send_back", "assign", "finish", "postpone", "renew"])
def test_each_verb_is_refused_without_its_permission(verb):
    ann, viewer, stranger = person("ann", *ALL), person("viewer", "view"), person("stranger")
    item = opened(reviewed if verb in {"approve", "send_back"} else refund)
    item.take(ann)
    if verb in {"approve", "send_back"}:
        item.finish({"amount": 1}, by=ann)
    before = Item.objects.values().get()
    values = {"user": ann.pk, "why": "no", "amount": 1, "until": "2099-01-01T10:00", "assignment": item.assignment}
    for user in (viewer, stranger):
        signed_in(user).post(f"/desk/{item.pk}/{verb}/", values)
        assert Item.objects.values().get() == before
    assert signed_in(stranger).get(f"/desk/{item.pk}/").status_code == 404
    assert Client().get("/desk/").status_code == 302
    assert signed_in(ann).get(f"/desk/{item.pk}/take/").status_code == 405


def test_going_back_is_one_post_in_the_admin():
    boss = person("boss", superuser=True)
    row = Automation.objects.create(kind=refund.module_path, mode="automatic")
    client = signed_in(boss)
    client.post(f"/admin/delayedq_desk/automation/{row.pk}/change/", {"kind": row.kind, "mode": "people"})
    assert opened().state == State.WAITING
    assert client.get("/admin/delayedq_desk/item/").status_code == 200
