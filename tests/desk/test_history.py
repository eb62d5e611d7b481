"""The history of an item: what was done, by whom; and the team desk: search, and several assigned at once."""

from __future__ import annotations

import re
from datetime import timedelta
from html import unescape

import pytest
from django.contrib.auth.models import Group
from django.utils import timezone

from delayedq.desk import views
from delayedq.desk.display import history_of
from delayedq.desk.models import DeskQueue, Item, ItemChange
from delayedq.desk.rounds import withdraw
from delayedq.models import Message
from delayedq.testing import run_due
from tests.desk.given import ALL, PAID, QUEUE, opened, person, refund, reviewed
from tests.desk.test_pages import signed_in, text_of

pytestmark = [pytest.mark.usefixtures("store"), pytest.mark.urls("tests.desk.urls")]


def history(item):
    return [step.what for step in history_of(item)]


def several(*keys):
    """Items with these keys."""
    for key in keys:
        refund.schedule_at(timezone.now(), 100, key=key)
    run_due()
    return [Item.objects.get(key=key) for key in keys]


def ticked(client, to, *items, **more):
    values = [f"{item.pk}.{item.assignment}" for item in items]
    return client.post("/desk/team/assign/", {"queue": QUEUE, "user": to.pk, "items": values, **more}, follow=True)


def plain(page):
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", text_of(page))).split())


def test_an_item_tells_who_did_what_in_its_order():
    ann, bob, lea = (person(name, *ALL) for name in ("ann", "bob", "lea"))
    item = opened(reviewed)
    item.take(ann)
    item.assign(bob, by=lea)
    until = timezone.now() + timedelta(days=1)
    item.postpone(until, "no receipt yet", by=bob)
    item.unassign()
    item.take(ann)
    item.renew(ann)
    item.finish(PAID, by=ann)
    item.send_back("too much", by=bob)
    item.finish(PAID, by=ann)
    item.approve(by=bob)
    assert history(item) == [
        "ann took it",
        "lea assigned it to bob",
        "bob postponed it",
        "code gave it back",
        "ann took it",
        "ann decided it",
        "bob sent it back",
        "ann decided it",
        "bob approved the decision",
    ]
    steps = history_of(item)
    assert (steps[2].until, steps[2].why, steps[6].why) == (until, "no receipt yet", "too much")
    page = plain(signed_in(lea).get(f"/desk/{item.pk}/"))
    assert "lea assigned it to bob" in page
    assert "no receipt yet" in page


def test_what_a_verb_refuses_is_not_in_the_history():
    ann, bob = person("ann", *ALL), person("bob", "view")
    item = opened()
    item.take(ann)
    with pytest.raises(Exception, match="may not"):
        item.assign(ann, by=bob)
    assert history(item) == ["ann took it"]


def test_whoever_was_deleted_is_not_named():
    ann, lea = person("ann", *ALL), person("lea", *ALL)
    item = opened()
    item.assign(ann, by=lea)
    ann.delete()
    lea.delete()
    assert history(item) == ["somebody who was deleted assigned it to somebody who was deleted"]


def test_what_workers_do_is_in_the_history(store):
    item = opened()
    Message.objects.all().delete()
    withdraw(store, [item.pk])
    assert history(item) == ["closed: its message has ended"]


def test_the_history_goes_with_its_item():
    item = opened()
    item.take(person("ann", *ALL))
    item.delete()
    assert ItemChange.objects.count() == 0


def test_the_team_desk_is_searched_by_key_and_number():
    client = signed_in(person("ann", *ALL))
    one, _two, closed = several("UA1545/Grace", "UA1546/Ivan", "LH400")
    closed.finish(PAID)

    def found(text):
        return [row.name for row in client.get("/desk/team/", {"q": text}).context["rows"]]

    assert found("1545") == found("grace") == found(f"#{one.message_id}") == ["UA1545/Grace"]
    assert found("UA") == ["UA1545/Grace", "UA1546/Ivan"]
    assert found("LH400") == ["LH400"]  # which is decided
    assert found("LH4") == found("9" * 19) == []


def test_a_search_finds_what_is_decided_where_nothing_is_open_any_more():
    (closed,) = several("LH400")
    closed.finish(PAID)
    client = signed_in(person("ann", *ALL))
    for given in ({"q": "LH400"}, {"q": str(closed.message_id)}, {"q": "LH400", "queue": QUEUE}):
        assert [row.name for row in client.get("/desk/team/", given).context["rows"]] == ["LH400"]
    assert client.get("/desk/team/", {"q": "LH400", "queue": "other"}).context["rows"] == []


def test_a_search_with_many_hits_shows_the_first_that_are_due_and_says_that_there_are_more():
    due = timezone.now()
    items = several(*(f"UA/{number:03}" for number in range(60)))
    for number, item in enumerate(reversed(items)):
        Item.objects.filter(pk=item.pk).update(due_or_last=due + timedelta(seconds=number))
    page = signed_in(person("ann", *ALL)).get("/desk/team/", {"q": "UA/"})
    assert [row.name for row in page.context["rows"]] == [f"UA/{number:03}" for number in range(59, 9, -1)]
    assert "There are more" in plain(page)


def test_a_search_finds_nothing_in_queues_of_others():
    several("UA1545")
    DeskQueue.objects.create(queue=QUEUE).groups.add(Group.objects.create(name="others"))
    page = signed_in(person("ann", *ALL)).get("/desk/team/", {"q": "UA1545"})
    assert page.context["rows"] == []


def test_several_are_ticked_and_assigned():
    lea, bob = person("lea", *ALL), person("bob", *ALL)
    one, two, _three = several("1", "2", "3")
    page = plain(ticked(signed_in(lea), bob, one, two))
    assert "2 items were assigned to bob." in page
    assert set(Item.objects.filter(holder=bob)) == {one, two}
    assert history(one) == ["lea assigned it to bob"]


def test_a_tick_that_was_made_up_breaks_no_page():
    lea, bob = person("lea", *ALL), person("bob", *ALL)
    (one,) = several("1")
    odd = [f"00{one.pk}.{one.assignment}", f"{'9' * 18}.1", "x.1", ""]
    page = ticked(signed_in(lea), bob, items=odd)
    assert "1 item was assigned to bob." in plain(page)


def test_all_that_waits_for_review_is_on_some_page(monkeypatch):
    monkeypatch.setattr(views, "SHOWN", 2)
    ann = person("ann", *ALL)
    for amount in range(5):
        item = opened(reviewed, amount)
        item.take(ann)
        item.finish(PAID, by=ann)
    client, found, after = signed_in(person("lea", *ALL)), [], ""
    while after is not None:
        page = client.get("/desk/review/", {"after": after}).context
        found += [row.item.pk for row in page["rows"]]
        after = page["after"]
    assert sorted(found) == sorted(Item.objects.values_list("pk", flat=True))
    assert len(found) == 5


def test_what_has_changed_hands_since_it_was_ticked_is_refused_alone():
    lea, bob, ann = (person(name, *ALL) for name in ("lea", "bob", "ann"))
    one, two = several("1", "2")
    Item.objects.get(pk=one.pk).take(ann)
    page = plain(ticked(signed_in(lea), bob, one, two))
    assert "1 item was assigned to bob." in page
    assert "Not assigned: 1. Taken by ann" in page
    one.refresh_from_db()
    assert one.holder == ann


@pytest.mark.parametrize(
    "given", [{"items": "x"}, {"items": "1"}, {"items": "9" * 30 + ".1"}, {"user": "0"}, {"items": []}]
)
def test_garbage_assigns_nothing(given):
    lea = person("lea", *ALL)
    (one,) = several("1")
    assert ticked(signed_in(lea), lea, one, **given).status_code == 200
    assert not Item.objects.filter(holder__isnull=False).exists()


def test_what_is_pending_review_cannot_be_ticked():
    lea = person("lea", *ALL)
    waiting, decided = opened(), opened(reviewed)
    decided.take(lea)
    decided.finish(PAID, by=lea)
    page = text_of(signed_in(lea).get("/desk/team/", {"queue": QUEUE}))
    assert re.findall(r'name="items" value="(\d+)\.', page) == [str(waiting.pk)]


def test_only_who_may_assign_ticks():
    bob = person("bob", "view", "take")
    (one,) = several("1")
    client = signed_in(bob)
    assert 'name="items"' not in text_of(client.get("/desk/team/", {"queue": QUEUE}))
    assert ticked(client, bob, one).status_code == 404


def test_my_desk_has_pages(monkeypatch):
    monkeypatch.setattr(views, "SHOWN", 2)
    ann = person("ann", *ALL)
    for item in several("1", "2", "3"):
        item.take(ann)
    client = signed_in(ann)
    page = client.get("/desk/")
    rest = client.get("/desk/", {"after": page.context["after"]})
    assert [row.name for row in page.context["held"] + rest.context["held"]] == ["1", "2", "3"]
    assert rest.context["after"] is None
