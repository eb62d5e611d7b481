"""Saved views: the filters of the team desk, kept by a name, for one user."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import Group
from django.db import connections

from delayedq.desk import views
from delayedq.desk.models import DeskQueue, SavedView
from tests.desk.given import ALL, QUEUE, opened, person
from tests.desk.test_pages import signed_in, text_of

pytestmark = [pytest.mark.usefixtures("store"), pytest.mark.urls("tests.desk.urls")]
TEAM, VIEW = "/desk/team/", "/desk/team/view/"
HEBREW = "\u05d3\u05d7\u05d5\u05e3 & <b>"


def save(client, name, **filters):
    return client.post(VIEW, {"name": name, **filters})


def saved(client):
    """The views that the page offers: name, query string, and whether it is shown."""
    return [(view.name, query, is_shown) for view, query, is_shown in client.get(TEAM).context["views"]]


@pytest.mark.parametrize("name", ["late refunds", HEBREW])
def test_filters_are_kept_by_a_name_and_found_again(name):
    client = signed_in(person("ann", *ALL))
    answer = save(client, f" {name} ", queue=QUEUE, only="late")
    assert answer.status_code == 302
    assert answer.url == f"{TEAM}?queue={QUEUE}&only=late"
    assert saved(client) == [(name, f"queue={QUEUE}&only=late", False)]
    page = client.get(answer.url)
    assert [shown for *_, shown in page.context["views"]] == [True]
    assert "<b>" not in text_of(page).partition('aria-label="Saved views"')[2].partition("</nav>")[0]


def test_the_link_of_a_view_shows_the_same_to_a_colleague():
    item, ann, bob = opened(), person("ann", *ALL), person("bob", *ALL)
    save(signed_in(ann), "mine", q=str(item.message_id))
    [(_, query, _)] = saved(signed_in(ann))
    assert [row.item for row in signed_in(bob).get(f"{TEAM}?{query}").context["rows"]] == [item]
    assert saved(signed_in(bob)) == []


def test_a_link_shows_nothing_of_queues_of_others():
    opened()
    client = signed_in(person("ann", *ALL))
    save(client, "refunds", queue=QUEUE)
    DeskQueue.objects.create(queue=QUEUE).groups.add(Group.objects.create(name="others"))
    [(_, query, _)] = saved(client)
    assert client.get(f"{TEAM}?{query}").context["rows"] == []


def test_the_same_name_replaces_the_filters_of_its_owner_alone():
    ann, bob = signed_in(person("ann", *ALL)), signed_in(person("bob", *ALL))
    for client in (ann, bob, ann):
        save(client, "today", only="late" if client is bob else "assigned")
    save(ann, "today", queue=QUEUE)
    save(ann, "Today", only="postponed")
    assert {(name, query) for name, query, _ in saved(ann)} == {
        ("today", f"queue={QUEUE}"),
        ("Today", "only=postponed"),
    }
    assert saved(bob) == [("today", "only=late", False)]


def test_a_view_is_deleted_by_its_owner_alone():
    ann, bob = signed_in(person("ann", *ALL)), signed_in(person("bob", *ALL))
    save(ann, "today", only="late")
    view = SavedView.objects.get()
    for client, left in ((bob, 1), (ann, 0)):
        assert client.post(VIEW, {"delete": view.pk, "name": "", "only": "late"}).url == f"{TEAM}?only=late"
        assert SavedView.objects.count() == left


@pytest.mark.parametrize("name", ["", "   ", "x" * 201, "a\0b"])
def test_a_name_that_is_none_is_refused_at_its_field(name):
    client = signed_in(person("ann", *ALL))
    page = save(client, name, queue=QUEUE, only="late")
    assert page.status_code == 422
    assert page.context["saving"].errors.keys() == {"name"}
    assert (page.context["queue"], page.context["only"]) == (QUEUE, "late")
    assert f'data-from="{TEAM}?queue={QUEUE}&amp;only=late"' in text_of(page)
    assert SavedView.objects.count() == 0


def test_what_no_filter_is_is_not_kept():
    client = signed_in(person("ann", *ALL))
    assert save(client, "odd", queue="\0", only="\0late", q="x" * 201).status_code == 302
    assert saved(client) == [("odd", "", True)]
    assert client.post(VIEW, {"delete": "9" * 40, "name": ""}).status_code == 422


def test_there_are_so_many_views_and_no_more(monkeypatch):
    monkeypatch.setattr(views, "MOST_VIEWS", 2)
    client = signed_in(person("ann", *ALL))
    for name in ("one", "two", "two"):
        assert save(client, name).status_code == 302
    page = save(client, "three")
    assert page.status_code == 422
    assert "You have 2 views: delete one before." in text_of(page)


def test_who_may_not_see_the_desk_saves_no_view():
    client = signed_in(person("eve"))
    assert save(client, "all").status_code == 403
    assert SavedView.objects.count() == 0
    assert "Save this view" not in text_of(client.get(TEAM))


@pytest.mark.parametrize(
    ("query", "most"),
    [("", 15), (f"?queue={QUEUE}", 15), ("?only=late", 15), ("?only=unassigned", 15), ("?q={number}", 17)],
)
def test_what_the_list_asks_is_bounded(query, most, django_assert_max_num_queries):
    """A search asks for number, key and part of a key."""
    ann = person("ann", *ALL)
    item = opened()
    opened().take(ann)
    client = signed_in(ann)
    for number in range(20):
        save(client, f"view {number}", only="late")
    with django_assert_max_num_queries(most, connection=connections[item._state.db]):
        assert client.get(TEAM + query.format(number=item.message_id)).status_code == 200


@pytest.mark.parametrize("alias", ["sqlite", "postgresql"], indirect=True)
def test_a_queue_that_no_database_stores_is_none(alias):
    client = signed_in(person("ann", *ALL))
    assert save(client, "long", queue="q" * 201).status_code == 302
    assert [query for _, query, _ in saved(client)] == [""]


def test_a_refused_view_is_reloaded_as_the_team_desk():
    refused = save(signed_in(person("ann", *ALL)), "", queue=QUEUE)
    assert refused.status_code == 422
    assert f'href="{TEAM}?queue={QUEUE}"' in refused.content.decode()
