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


def in_each_state(ann):
    """Items with keys of one beginning, by the filters that select them."""
    names = ("unassigned", "run out", "assigned", "soon", "postponed", "in_review", "late", "done")
    items = dict(zip(names, several(*(f"UA/{name}" for name in names)), strict=True))
    now = timezone.now()
    for name in ("run out", "assigned", "soon"):
        items[name].take(ann)
    Item.objects.filter(pk=items["run out"].pk).update(until=now - timedelta(minutes=1))
    Item.objects.filter(pk=items["soon"].pk).update(until=now + timedelta(minutes=1))
    items["postponed"].postpone(now + timedelta(days=1), "later")
    Item.objects.filter(pk=items["in_review"].pk).update(state="review")
    past = now - timedelta(hours=1)
    Item.objects.filter(pk=items["late"].pk).update(due_at=past, due_or_last=past)
    items["done"].finish(PAID)
    return items


@pytest.mark.parametrize(
    ("only", "expected"),
    [
        ("unassigned", ["late", "run out", "unassigned"]),
        ("assigned", ["soon", "assigned"]),
        ("postponed", ["postponed"]),
        ("in_review", ["in_review"]),
        ("late", ["late"]),
    ],
)
def test_a_search_and_a_filter_select_together(only, expected):
    """By a part of the key, by the key, and by the number."""
    ann, lea = person("ann", *ALL), person("lea", *ALL)
    items = in_each_state(ann)
    several("LH/1")
    client = signed_in(lea)

    def found(text, **asked):
        rows = client.get("/desk/team/", {"q": text, "only": only, **asked}).context["rows"]
        return [row.name.removeprefix("UA/") for row in rows]

    assert sorted(found("ua/")) == sorted(expected)
    assert only != "assigned" or found("ua/") == expected, "in the order of the filter"
    for name, item in items.items():
        for text in (item.key, str(item.message_id)):
            assert found(text) == found(text, queue=QUEUE) == [name] * (name in expected), text
    assert found("ua/", queue="other") == []


def test_a_search_looks_through_the_first_of_what_the_filter_selects(monkeypatch):
    monkeypatch.setattr("delayedq.desk.open_items.SEARCHED", 2)
    ann = person("ann", *ALL)
    items = several("UA/1", "UA/2", "UA/3", "UA/4")
    items[3].take(ann)
    client = signed_in(ann)
    page = client.get("/desk/team/", {"q": "A/4"})
    assert page.context["rows"] == []
    page = client.get("/desk/team/", {"q": "A/4", "only": "assigned"})
    assert [row.name for row in page.context["rows"]] == ["UA/4"]
    assert "Only “assigned”: items with the key or number “A/4”" in plain(page)


def test_filters_and_search_lead_to_each_other_and_keep_the_others():
    several("UA/1")
    page = text_of(signed_in(person("ann", *ALL)).get("/desk/team/", {"queue": QUEUE, "only": "late", "q": "u a"}))
    links = {unescape(one) for one in re.findall(r'href="(/desk/team/\?[^"]*)"', page)}
    assert {
        "/desk/team/?only=late&q=u+a",  # all queues
        f"/desk/team/?queue={QUEUE}&only=assigned&q=u+a",
        f"/desk/team/?queue={QUEUE}&q=u+a",  # all states
        f"/desk/team/?queue={QUEUE}&only=late",  # no search
    } <= links
    search = page.partition('role="search"')[2].partition("</form>")[0]
    assert f'name="queue" value="{QUEUE}"' in search
    assert 'name="only" value="late"' in search


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


def kept_in(page, form):
    """What a form of the team desk sends besides."""
    found = re.search(rf'<form method="post" action="/desk/team/{form}/".*?</form>', text_of(page), re.DOTALL)[0]
    return dict(re.findall(r'<input type="hidden" name="(queue|only|q|after)" value="([^"]*)">', found))


def test_forms_lead_back_to_the_page_that_was_shown(monkeypatch):
    monkeypatch.setattr(views, "SHOWN", 1)
    lea = person("lea", *ALL)
    one, two, three = several("1", "2", "3")
    client = signed_in(lea)
    after = client.get("/desk/team/", {"queue": QUEUE, "only": "unassigned"}).context["after"]
    page = client.get("/desk/team/", {"queue": QUEUE, "only": "unassigned", "after": after})
    for form, sent in (
        ("assign", {"user": lea.pk, "items": f"{two.pk}.{two.assignment}"}),
        ("deal", {"deal": "by lot"}),
        ("view", {"name": "mine"}),
    ):
        kept = kept_in(page, form)
        assert kept == {"queue": QUEUE, "only": "unassigned", "q": "", "after": after}
        answer = client.post(f"/desk/team/{form}/", {**kept, **sent})
        assert answer.url == f"/desk/team/?queue={QUEUE}&only=unassigned&after={after}"
    assert [row.item for row in client.get(answer.url).context["rows"]] == [three]
    page = client.get("/desk/team/", {"queue": QUEUE, "q": "1"})
    answer = client.post("/desk/team/deal/", {**kept_in(page, "deal"), "deal": "by lot"})
    assert answer.url == f"/desk/team/?queue={QUEUE}&q=1"
    assert one.key == "1"


def test_when_all_of_the_last_page_was_assigned_the_list_begins_again(monkeypatch):
    monkeypatch.setattr(views, "SHOWN", 1)
    lea = person("lea", *ALL)
    one, two = several("1", "2")
    client = signed_in(lea)
    asked = {"queue": QUEUE, "only": "unassigned"}
    after = client.get("/desk/team/", asked).context["after"]
    page = ticked(client, lea, two, only="unassigned", after=after)
    assert [row.item for row in page.context["rows"]] == [one]
    assert kept_in(page, "assign")["after"] == ""


@pytest.mark.parametrize("given", [{"user": ""}, {"user": "0"}, {"items": []}, {"user": "full"}])
def test_what_is_refused_stays_ticked_on_the_page_that_was_shown(given):
    """No person, one that there is not, no tick, and a person who may hold no more."""
    lea, bob = person("lea", *ALL), person("bob", *ALL)
    DeskQueue.objects.create(queue=QUEUE, capacity=1)
    held, one, _two = several("UA/0", "UA/1", "UA/2")
    held.take(bob)
    to = {"user": bob.pk} if given == {"user": "full"} else given
    page = ticked(signed_in(lea), bob, one, only="unassigned", q="UA", **to)
    assert page.status_code == 422
    assert [row.name for row in page.context["rows"]] == ["UA/1", "UA/2"]
    kept = [] if given == {"items": []} else [f"{one.pk}.{one.assignment}"]
    assert re.findall(r'name="items" value="([^"]*)" checked', text_of(page)) == kept
    assert kept_in(page, "assign") == {"queue": QUEUE, "only": "unassigned", "q": "UA", "after": ""}
    assert f'data-from="/desk/team/?queue={QUEUE}&amp;only=unassigned&amp;q=UA"' in text_of(page)
    assert (f'<option value="{bob.pk}" selected>' in text_of(page)) == (given in ({"items": []}, {"user": "full"}))
    described = re.findall(r'aria-describedby="([^"]*user[^"]*)"', text_of(page))
    assert all(f'id="{name}"' in text_of(page) for name in described)


def test_links_of_a_page_that_was_refused_lead_to_pages():
    lea = person("lea", *ALL)
    (one,) = several("UA/1")
    client = signed_in(lea)
    client.post("/desk/team/view/", {"name": "mine", "only": "late"})
    for page in (ticked(client, lea, one, user=""), client.post("/desk/team/view/", {"name": "", "queue": QUEUE})):
        assert page.status_code == 422
        text = text_of(page)
        assert 'href="?' not in text
        assert '<form method="get" action="/desk/team/"' in text
        links = [unescape(link) for link in re.findall(r'href="(/desk/team/[^"]*)"', text)]
        assert "/desk/team/?only=late" in links
        assert {client.get(link).status_code for link in links} == {200}


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


def test_what_has_changed_hands_is_not_ticked_as_it_is_there_then():
    lea, bob, ann = (person(name, *ALL) for name in ("lea", "bob", "ann"))
    one, two = several("1", "2")
    Item.objects.get(pk=one.pk).take(ann)
    page = ticked(signed_in(lea), bob, one, two)
    assert page.status_code == 422
    assert [row.item.holder for row in page.context["rows"]] == [ann, bob]
    assert not re.findall(r'name="items" value="[^"]*" checked', text_of(page))


@pytest.mark.parametrize(
    "given", [{"items": "x"}, {"items": "1"}, {"items": "9" * 30 + ".1"}, {"user": "0"}, {"items": []}]
)
def test_garbage_assigns_nothing(given):
    lea = person("lea", *ALL)
    (one,) = several("1")
    assert ticked(signed_in(lea), lea, one, **given).status_code == 422
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
