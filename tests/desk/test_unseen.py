"""What nobody is to know: which decisions are reviewed, a hidden decision of the handler, and known answers."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from django.test import Client

from delayedq import desk
from delayedq.desk.agreement import Agreement, drawn
from delayedq.desk.models import Automation, Item, State
from delayedq.desk.options import LEAST_BLIND, Desk
from delayedq.desk.visits import measured
from delayedq.models import Message
from delayedq.testing import run_due
from tests.desk.given import ALL, PAID, QUEUE, opened, person, refund, reviewed


def set_mode(mode, task=refund):
    Automation.objects.update_or_create(kind=task.module_path, defaults={"mode": mode})


def recorded(verb):
    """What the record of the last such verb says."""
    messages = Message.objects.filter(kind="delayedq.desk.tasks.decided").order_by("-pk")
    calls = [json.loads(message.payload)["kwargs"] for message in messages]
    return next(call for call in calls if call["verb"] == verb)


def test_lots_cannot_be_computed_from_the_id_alone(settings):
    before = [drawn(number, "review") for number in range(50)]
    settings.SECRET_KEY = "another one"
    after = [drawn(number, "review") for number in range(50)]
    assert not set(before) & set(after)
    assert before != [drawn(number, "people") for number in range(50)]


def test_what_code_decides_is_no_comparison_with_a_person(store):
    set_mode("shadow")
    opened().finish(PAID)
    assert measured(refund.module_path) == Agreement(0, 0)
    desk.plant(refund, (100,), answer=PAID)
    run_due()
    Item.objects.get(truth__isnull=False).finish(PAID)
    assert measured(refund.module_path) == Agreement(1, 1), "a known answer is one, whoever decides"


def test_the_record_of_an_open_item_tells_nobody_what_is_hidden(store):
    ann = person("ann", *ALL)
    set_mode("shadow", reviewed)
    item = opened(reviewed)
    item.take(ann)
    item.postpone(store.now() + timedelta(hours=1), "later", by=ann)
    item.unassign()
    item.finish(PAID)
    for verb in ("postpone", "finish"):
        said = recorded(verb)
        assert [said[name] for name in ("proposal", "agreed", "truth")] == [None, None, None], verb
    item.approve()
    assert recorded("approve")["proposal"] == PAID

    desk.plant(reviewed, (100,), answer=PAID)
    run_due()
    item = Item.objects.get(truth__isnull=False)
    item.take(ann)
    item.postpone(store.now() + timedelta(hours=1), "later", by=ann)
    assert (recorded("postpone")["proposal"], recorded("postpone")["truth"]) == (None, None)
    item.unassign()
    item.finish(PAID)
    assert (recorded("finish")["truth"], recorded("finish")["agreed"]) == (PAID, True)


def test_the_record_has_what_the_handler_says_where_people_see_it(store):
    ann = person("ann", *ALL)
    set_mode("assisted")
    item = opened()
    item.take(ann)
    item.postpone(store.now() + timedelta(hours=1), "later", by=ann)
    assert recorded("postpone")["proposal"] == PAID
    set_mode("reviewed")
    opened().send_back("no", by=ann)
    assert recorded("send_back")["proposal"] == PAID


@pytest.mark.urls("tests.desk.urls")
def test_a_planted_case_is_nowhere_before_a_worker_has_opened_it(store):
    boss = person("boss", superuser=True)
    desk.plant(refund, (100,), answer=PAID)
    item, client = Item.objects.get(), Client()
    client.force_login(boss)
    assert not desk.items(QUEUE).open().exists()
    address = f"/admin/delayedq_desk/item/{item.pk}/change/"
    assert client.get("/admin/delayedq_desk/item/").context["cl"].result_count == 0
    assert client.get(address).status_code == 302, "there is none"
    assert client.get(f"/desk/{item.pk}/").status_code == 404
    assert client.post(f"/desk/{item.pk}/unassign/", {"dq-assignment": item.assignment}).status_code == 404
    run_due()
    assert desk.items(QUEUE).open().get().state == State.WAITING
    assert [client.get(one).status_code for one in (address, f"/desk/{item.pk}/")] == [200, 200]
    assert client.get("/admin/delayedq_desk/item/").context["cl"].result_count == 1


def test_with_a_brake_some_are_compared_for_ever_unless_blind_says_how_many():
    shares = [
        ({}, 0.0),
        ({"required": 0.9}, LEAST_BLIND),
        ({"required": 0.9, "blind": 0.0}, 0.0),
        ({"blind": 0.2}, 0.2),
    ]
    for options, expected in shares:
        assert Desk(handler=len, **options).blind_share == expected
