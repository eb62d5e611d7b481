"""The pages of the desk: what they show, who may do what by POST, and what bad input does."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import timedelta

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.test import Client
from django.utils import timezone

from delayedq.desk import display, figures
from delayedq.desk.models import Automation, DeskQueue, Item, State
from delayedq.models import Message
from tests.desk.given import ALL, PAID, QUEUE, euros, hand_over, opened, person, refund, reviewed, sure

pytestmark = [pytest.mark.usefixtures("store"), pytest.mark.urls("tests.desk.urls")]


def signed_in(user):
    client = Client()
    client.force_login(user)
    return client


def text_of(answer):
    return answer.content.decode()


def decided(client, item):
    """Who has decided it, as its page says."""
    page = text_of(client.get(f"/desk/{item.pk}/"))
    return re.search(r"<dt>Decided</dt><dd>(.*?),", page)[1]


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


def test_a_form_may_have_fields_of_any_name():
    ann = person("ann", *ALL)
    item = opened(hand_over)
    item.take(ann)
    page = text_of(signed_in(ann).get(f"/desk/{item.pk}/"))
    assert all(f'name="{name}"' in page for name in ("assignment", "then", "dq-assignment", "dq-then"))
    decision = {"assignment": "to bob", "then": "next"}
    signed_in(ann).post(f"/desk/{item.pk}/finish/", {"dq-assignment": item.assignment} | decision)
    item.refresh_from_db()
    assert json.loads(item.decision) == decision


def test_the_capacity_of_a_queue_holds_on_the_pages():
    ann, ben = person("ann", *ALL), person("ben", *ALL)
    DeskQueue.objects.create(queue=QUEUE, capacity=2)
    first, second, third, fourth = (opened() for _ in range(4))
    client = signed_in(ann)
    client.post("/desk/next/", {"queue": QUEUE})
    client.post(f"/desk/{second.pk}/take/")
    refused = [
        client.post("/desk/next/", {"queue": QUEUE}, follow=True),
        client.post(f"/desk/{third.pk}/take/", follow=True),
        signed_in(ben).post(f"/desk/{third.pk}/assign/", {"user": ann.pk}),
    ]
    assert all("ann holds as much of the queue refunds as one may: 2." in text_of(page) for page in refused)
    assert set(Item.objects.assigned(ann)) == {first, second}
    assert set(Item.objects.unassigned()) == {third, fourth}


@pytest.mark.parametrize("value", ["[" * 200 + "]" * 200, "[" * 100_000, "9" * 5_000], ids=len)
def test_json_that_cannot_be_stored_is_refused_on_the_page(value):
    ann = person("ann", *ALL)
    item = opened(sure, 1, 0.5)
    item.take(ann)
    page = signed_in(ann).post(f"/desk/{item.pk}/finish/", {"dq-assignment": item.assignment, "value": value})
    assert page.status_code == 422
    assert page.context["forms"]["finish"].errors
    assert Item.objects.get().state == State.ASSIGNED


@pytest.mark.parametrize("until", ["9999-12-31T23:59", "9999-12-31T12:00", "0001-01-01T00:00"])
def test_a_follow_up_date_at_the_end_of_the_calendar_is_refused_at_its_field(until, settings):
    settings.TIME_ZONE = "America/New_York"
    ann = person("ann", *ALL)
    item = opened()
    item.take(ann)
    page = signed_in(ann).post(f"/desk/{item.pk}/postpone/", {"dq-assignment": item.assignment, "until": until})
    assert page.status_code == 422
    assert page.context["forms"]["postpone"].errors.keys() == {"until"}
    assert Item.objects.get().state == State.ASSIGNED


def test_who_has_decided_is_the_handler_only_where_it_has():
    ann, bob = person("ann", *ALL), person("bob", *ALL)
    Automation.objects.create(kind=reviewed.module_path, mode="reviewed")
    handled, deleted = opened(reviewed), opened(reviewed, 7)
    deleted.send_back("less", by=bob)
    deleted.take(ann)
    deleted.finish(PAID, by=ann)
    ann.delete()
    client = signed_in(bob)
    said = {item.pk: text_of(client.get(f"/desk/{item.pk}/")) for item in (handled, deleted)}
    assert "the handler" in said[handled.pk]
    assert "somebody" in said[deleted.pk]
    assert "the handler" not in said[deleted.pk]
    Automation.objects.update(mode="automatic")
    assert decided(client, opened(reviewed)) == "the handler"


def test_why_a_person_decides_stands_beside_why_it_was_postponed_or_sent_back():
    ann, bob = person("ann", *ALL), person("bob", *ALL)
    Automation.objects.create(kind=reviewed.module_path, mode="reviewed")
    item = opened(reviewed)
    Item.objects.filter(pk=item.pk).update(state=State.WAITING, reason="above the limit")
    item.take(ann)
    client = signed_in(ann)
    item.postpone(timezone.now() + timedelta(days=1), "no receipt", by=ann)

    def said():
        return re.findall(r'<h2>(Why [^<]*)</h2><p dir="auto">([^<]*)</p>', text_of(client.get(f"/desk/{item.pk}/")))

    assert said() == [("Why a person decides", "above the limit"), ("Why it was postponed", "no receipt")]
    assert "no receipt" in text_of(client.get("/desk/team/"))
    item.unassign(by=ann)
    assert said()[1] == ("Why it was postponed or sent back", "no receipt")
    item.take(ann)
    item.finish(PAID, by=ann)
    item.send_back("too much", by=bob)
    assert said() == [("Why a person decides", "above the limit"), ("Why it was sent back", "too much")]


@pytest.mark.parametrize("alias", ["sqlite"], indirect=True)
@pytest.mark.parametrize(("hold", "seconds"), [(1, 1), (6, 2), (90, 30), (14_400, 300)])
def test_how_often_a_page_renews_follows_from_how_long_an_item_is_held(alias, monkeypatch, hold, seconds):
    ann, item = person("ann", *ALL), opened()
    item.take(ann)
    short = replace(refund.desk, hold=timedelta(seconds=hold))
    monkeypatch.setattr("delayedq.desk.item_pages._desk", lambda _: short)
    page = text_of(signed_in(ann).get(f"/desk/{item.pk}/"))
    assert re.search(r'data-renew="/desk/\d+/renew/" data-seconds="(\d+)"', page)[1] == str(seconds)


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


@pytest.mark.parametrize("alias", ["sqlite"], indirect=True)
def test_hostile_texts_are_shown_as_texts(alias):
    hostile = "<script>alert(1)</script>\u202e"
    ann = person("ann", *ALL)
    item = opened(refund, hostile)
    item.take(ann)
    item.comments.create(by=ann, at=item.opened_at, text=hostile)
    Item.objects.update(key=hostile, reason=hostile, due_at=item.opened_at)
    client = signed_in(ann)
    for page in ("", "team/", "review/", f"{item.pk}/"):
        text = text_of(client.get(f"/desk/{page}"))
        assert "<script>alert" not in text
        assert ("&lt;script&gt;alert(1)&lt;/script&gt;\\u202e" in text) == (page != "review/")
    for payload in ("[1]", '{"args": 5}', "no JSON", '{"kwargs": {"order": {"$": "model", "v": 7}}}', "{}"):
        Message.objects.filter(pk=item.message_id).update(payload=payload)
        for page in ("", "team/", f"{item.pk}/"):
            assert client.get(f"/desk/{page}").status_code == 200


def test_going_back_is_one_post_in_the_admin():
    boss = person("boss", superuser=True)
    row = Automation.objects.create(kind=refund.module_path, mode="automatic")
    client = signed_in(boss)
    client.post(f"/admin/delayedq_desk/automation/{row.pk}/change/", {"kind": row.kind, "mode": "people"})
    assert opened().state == State.WAITING
    assert client.get("/admin/delayedq_desk/item/").status_code == 200


@pytest.mark.parametrize("hostile", ["", "9" * 5000, "-3", "x"])
def test_what_is_approved_is_the_decision_that_the_page_has_shown(hostile):
    ann, bob, eve = (person(name, *ALL) for name in ("ann", "bob", "eve"))
    item = opened(reviewed)
    item.take(ann)
    item.finish(PAID, by=ann)
    shown = item.assignment
    item.send_back("too much", by=eve)
    item.finish({"amount": 5}, by=ann)
    client = signed_in(bob)
    for seen in (shown, hostile):
        assert client.post(f"/desk/{item.pk}/approve/", {"dq-assignment": seen}).status_code == 302
        assert Item.objects.get().state == State.REVIEW
    client.post(f"/desk/{item.pk}/approve/", {"dq-assignment": item.assignment})
    assert Item.objects.get().state == State.DONE


@pytest.mark.parametrize("mode", ["shadow", "assisted", "reviewed"])
def test_the_handler_has_not_decided_what_somebody_has_who_agreed_with_it_and_was_deleted(mode):
    """In the mode `reviewed` they agree after what the handler has decided was sent back."""
    ann, bob = person("ann", *ALL), person("bob", *ALL)
    Automation.objects.create(kind=reviewed.module_path, mode=mode)
    item, client = opened(reviewed), signed_in(bob)
    if mode == "reviewed":
        item.send_back("look again", by=bob)
        assert decided(client, item) == "the handler"
    item.take(ann)
    item.finish(PAID, by=ann)
    assert item.decision == item.proposal
    ann.delete()
    assert decided(client, item) == "somebody"


def test_a_form_that_converts_is_read_once():
    ann = person("ann", *ALL)
    item = opened(euros)
    item.take(ann)
    signed_in(ann).post(f"/desk/{item.pk}/finish/", {"euros": 7})
    assert Item.objects.get().decision == '{"cents":700}'


@pytest.mark.parametrize("alias", ["sqlite"], indirect=True)
def test_earlier_decisions_are_those_of_queues_that_the_reader_may_see(alias):
    ann, before = person("ann", *ALL), opened()
    before.take(ann)
    before.finish({"amount": 4711}, by=ann)
    item = opened()
    Item.objects.update(key="order/7")
    Item.objects.filter(pk=before.pk).update(queue="fraud")
    client = signed_in(ann)
    assert "4711" in text_of(client.get(f"/desk/{item.pk}/"))
    DeskQueue.objects.create(queue="fraud").groups.add(Group.objects.create(name="detectives"))
    assert "4711" not in text_of(client.get(f"/desk/{item.pk}/"))


@pytest.mark.parametrize("alias", ["sqlite"], indirect=True)
def test_people_are_named_by_what_their_model_calls_them(alias, monkeypatch):
    ann, item = person("ann", *ALL), opened()
    item.take(ann)
    item.finish({"amount": 1}, by=ann)
    get_user_model().objects.update(email="ann@example.com")
    client = signed_in(ann)
    assert ">ann</th>" in text_of(client.get("/desk/figures/"))
    monkeypatch.setattr(get_user_model(), "USERNAME_FIELD", "email")
    assert ">ann@example.com</th>" in text_of(client.get("/desk/figures/"))


@pytest.mark.parametrize("alias", ["sqlite"], indirect=True)
def test_when_a_queue_is_empty_is_not_known_if_there_is_too_much_to_count(alias, monkeypatch):
    client = signed_in(person("ann", *ALL))
    opened(), opened()
    assert "it does not shrink" in text_of(client.get("/desk/figures/"))
    monkeypatch.setattr(figures, "BOUND", 1)
    page = text_of(client.get("/desk/figures/"))
    assert "unknown" in page
    assert "it does not shrink" not in page


@pytest.mark.parametrize("alias", ["sqlite", "postgresql"], indirect=True)
def test_a_queue_that_no_database_stores_is_none(alias):
    opened()
    client = signed_in(person("ann", *ALL))
    assert "refunds" in text_of(client.get("/desk/team/?queue=%00"))
    assert client.get("/desk/team/?queue=%00").context["queue"] == ""
    assert client.post("/desk/next/", {"queue": "\0"}).status_code == 302


def test_an_address_that_fails_is_none():
    class Order:
        def get_absolute_url(self):
            raise LookupError("no such page")

    assert display._address(Order()) == ""
