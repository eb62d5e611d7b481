"""Who else has an item open: told to whoever has it open, and no business of other pages."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.auth.models import Group
from django.db import connections

from delayedq.desk import presence
from delayedq.desk.models import DeskQueue, Item, Presence
from delayedq.testing import clock
from tests.desk.given import ALL, PAID, QUEUE, opened, person
from tests.desk.test_pages import signed_in, text_of

pytestmark = [pytest.mark.usefixtures("store"), pytest.mark.urls("tests.desk.urls")]
START = datetime(2026, 3, 2, 9, tzinfo=UTC)
TEN = timedelta(seconds=10)


def with_whom(client, item, page=""):
    """Who else has it open, as the page says, and for how long."""
    answer = client.get(f"/desk/{item.pk}/{page}")
    assert answer.status_code == 200
    return [(str(user), how_long) for user, how_long in answer.context["others"]]


def test_who_opens_an_item_reads_who_else_has_it_open():
    item, ann, bob = opened(), signed_in(person("ann", "view")), signed_in(person("bob", *ALL))
    with clock(START) as clocked:
        assert with_whom(ann, item) == []
        clocked.advance(TEN)
        assert with_whom(bob, item) == [("ann", TEN)]
        assert with_whom(ann, item, "present/") == [("bob", timedelta())]
        page = text_of(ann.get(f"/desk/{item.pk}/present/"))
        assert "Also has it open:" in page
        assert 'id="desk-present"' in page


def test_who_goes_on_calling_is_there_since_they_came_and_who_does_not_is_gone():
    item, ann, bob = opened(), signed_in(person("ann", *ALL)), signed_in(person("bob", *ALL))
    with clock(START) as clocked:
        with_whom(ann, item)
        for _ in range(6):
            clocked.advance(TEN)
            with_whom(ann, item, "present/")
        assert with_whom(bob, item) == [("ann", 6 * TEN)]
        clocked.advance(presence.GONE)
        assert with_whom(bob, item, "present/") == []
        with_whom(ann, item)
        assert with_whom(bob, item, "present/") == [("ann", timedelta())]


def test_each_item_has_its_own_readers():
    one, other = opened(), opened()
    with_whom(signed_in(person("ann", *ALL)), one)
    assert with_whom(signed_in(person("bob", *ALL)), other) == []


def test_who_may_not_see_the_item_reads_nothing_and_is_not_named():
    item, ann = opened(), person("ann", *ALL)
    DeskQueue.objects.create(queue=QUEUE).groups.add(Group.objects.create(name="others"))
    assert signed_in(ann).get(f"/desk/{item.pk}/present/").status_code == 404
    assert Presence.objects.count() == 0


def test_nobody_is_named_on_what_is_closed():
    item, ann = opened(), person("ann", *ALL)
    item.finish(PAID)
    assert with_whom(signed_in(ann), item) == with_whom(signed_in(ann), item, "present/") == []
    assert Presence.objects.count() == 0


def test_rows_of_a_user_go_when_they_are_old_and_with_the_item_and_the_user():
    ann, bob = person("ann", *ALL), person("bob", *ALL)
    one, two = opened(), opened()
    with clock(START) as clocked:
        with_whom(signed_in(ann), one)
        with_whom(signed_in(bob), one)
        clocked.advance(presence.KEPT + TEN)
        with_whom(signed_in(ann), two)
    assert {(row.item_id, row.user_id) for row in Presence.objects.all()} == {(one.pk, bob.pk), (two.pk, ann.pk)}
    one.delete()
    ann.delete()
    assert Presence.objects.count() == 0


def test_an_item_that_is_deleted_meanwhile_breaks_no_page(caplog):
    item, ann = opened(), person("ann", *ALL)
    gone = Item.objects.get()
    item.delete()
    assert presence.others(gone, ann, START) == []


def test_whoever_opens_no_item_pays_nothing(django_assert_max_num_queries):
    item, client = opened(), signed_in(person("ann", *ALL))
    connection = connections[item._state.db]
    with django_assert_max_num_queries(60, connection=connection) as asked:
        for page in ("", "team/", "review/"):
            client.get(f"/desk/{page}")
    assert not any("presence" in one["sql"] for one in asked.captured_queries)
    with_whom(client, item)
    with django_assert_max_num_queries(12, connection=connection) as asked:
        with_whom(client, item, "present/")
    # A savepoint and its end, the row of the reader, and the others.
    assert sum("presence" in one["sql"] for one in asked.captured_queries) == 2


def test_a_page_that_was_refused_is_reloaded_as_that_of_the_item():
    ann = person("ann", *ALL)
    item = opened()
    item.take(ann)
    refused = signed_in(ann).post(f"/desk/{item.pk}/postpone/", {"until": "never"})
    assert refused.status_code == 422
    assert f'href="/desk/{item.pk}/" class="dq-reload"' in refused.content.decode()
    assert "Who has it open: refreshed every 10 s" in refused.content.decode()


@pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
def test_a_page_waits_for_nobody_who_decides_its_item(alias):
    item, ann = opened(), person("ann", *ALL)
    deciding = connections[alias].copy()
    with connections[alias].cursor() as mine, deciding.cursor() as theirs:
        theirs.execute("BEGIN")
        theirs.execute("SELECT 1 FROM delayedq_desk_item WHERE id = %s FOR UPDATE", [item.pk])
        mine.execute("SET lock_timeout = '1s'")
        try:
            assert with_whom(signed_in(ann), item) == []
            assert Presence.objects.filter(user=ann).exists()
        finally:
            mine.execute("RESET lock_timeout")
            deciding.close()
