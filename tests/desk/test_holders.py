"""Who holds an item, when what they may do has changed since."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from delayedq import desk
from delayedq.desk import rounds
from delayedq.desk.errors import NotAllowed, NotOpen, Taken
from delayedq.desk.models import Item, State
from delayedq.desk.rounds import let_wait
from delayedq.testing import clock
from tests.desk.given import ALL, PAID, QUEUE, opened, person, refund, reviewed

pytestmark = [pytest.mark.usefixtures("store"), pytest.mark.urls("tests.desk.urls")]
START = datetime(2026, 3, 2, 9, tzinfo=UTC)


def test_taking_what_one_holds_prolongs_it_for_who_may_still_work_on_it():
    ann, bob = person("ann", *ALL), person("bob", *ALL)
    with clock(START) as time:
        item = opened(reviewed)
        item.take(ann)
        item.finish(PAID, by=ann)
        item.send_back("too much", by=bob)
        time.advance(timedelta(hours=1))
        item.take(ann)
        assert (item.state, item.why) == (State.REJECTED, "too much")
        assert item.until == START + timedelta(hours=1) + reviewed.desk.hold
        ann.user_permissions.clear()
        with pytest.raises(NotAllowed, match="ann may not work on the queue refunds"):
            item.take(type(ann).objects.get(pk=ann.pk))


def test_what_was_sent_back_waits_for_anybody_if_its_maker_may_work_on_it_no_more():
    ann, bob = person("ann", *ALL), person("bob", *ALL)
    item = opened(reviewed)
    item.take(ann)
    item.finish(PAID, by=ann)
    type(ann).objects.filter(pk=ann.pk).update(is_active=False)
    item.refresh_from_db()
    item.send_back("too much", by=bob)
    assert (item.state, item.holder, item.why) == (State.WAITING, None, "too much")
    assert desk.take_next(bob, QUEUE) == item


def test_what_has_run_out_waits_after_the_next_round_and_its_last_holder_may_still_decide_it(store):
    """A round changes nothing of what people may do: lists need not compare times for it."""
    ann, bob = person("ann", *ALL), person("bob", *ALL)
    with clock(START) as time:
        held, taken, renewed, put_off, kept = (opened() for _ in range(5))
        for item in (held, taken, renewed, put_off):
            item.take(ann)
        put_off.postpone(START + timedelta(hours=1), by=ann)
        time.advance(hours=2)
        kept.take(ann)
        assert let_wait(store) == (4, None)
        assert let_wait(store) == (0, None)
        waiting = Item.objects.filter(state=State.WAITING)
        assert set(waiting) == {held, taken, renewed, put_off} == set(desk.items().unassigned())
        assert set(desk.items().assigned(ann)) == {kept}
        taken.take(bob)
        with pytest.raises(Taken):
            taken.finish(PAID, by=ann)
        with pytest.raises(NotOpen):
            held.finish(PAID, by=bob)
        held.finish(PAID, by=ann)
        renewed.renew(ann)
        assert (held.state, renewed.state, renewed.holder) == (State.DONE, State.ASSIGNED, ann)
        assert renewed.until == time() + refund.desk.hold


@pytest.mark.parametrize("is_later", [False, True], ids=["before the round", "after it"])
def test_a_lead_takes_back_what_has_run_out_from_who_held_it_last(store, client, is_later):
    """On a page from when it was held: whether a round has come since changes nothing."""
    ann, lead = person("ann", *ALL), person("lead", "view", "assign")
    client.force_login(lead)
    with clock(START) as time:
        item = opened()
        item.take(ann)
        time.advance(hours=2)
        if is_later:
            let_wait(store)
        with pytest.raises(NotAllowed):
            item.unassign(by=person("eve", "view", "take"))
        answer = client.post(f"/desk/{item.pk}/unassign/", {"dq-assignment": item.assignment}, follow=True)
        assert "Given back: somebody else may take it." in answer.content.decode()
        with pytest.raises(NotOpen, match="The item is waiting"):
            Item.objects.get().finish(PAID, by=ann)
        with pytest.raises(NotOpen, match="The item is waiting"):
            Item.objects.get().unassign(by=lead)


def test_of_what_has_run_out_a_round_takes_a_page_at_a_time(store, monkeypatch):
    ann = person("ann", *ALL)
    with clock(START) as time:
        for _ in range(3):
            opened().take(ann)
        time.advance(hours=2)
        assert let_wait(store, limit=2) == (2, True)
        assert let_wait(store, True, limit=2) == (1, None)


def test_who_renews_an_item_that_a_round_has_found_keeps_it(store, monkeypatch):
    ann, found = person("ann", *ALL), rounds.ended

    def renewed_then(*given):
        """What has run out, which is renewed before the round changes it."""
        keys = list(found(*given))
        for item in Item.objects.filter(pk__in=keys):
            item.renew(ann)
        return keys

    with clock(START) as time:
        item = opened()
        item.take(ann)
        time.advance(hours=2)
        monkeypatch.setattr(rounds, "ended", renewed_then)
        assert let_wait(store) == (0, None)
        item.refresh_from_db()
        assert (item.state, item.until) == (State.ASSIGNED, time() + refund.desk.hold)


def test_what_a_user_holds_who_is_deleted_waits_at_once(store):
    ann, bob = person("ann", *ALL), person("bob", *ALL)
    with clock(START):
        held, pending, done, other = opened(), opened(reviewed), opened(), opened()
        for item in (held, pending, done):
            item.take(ann)
        other.take(bob)
        pending.finish(PAID, by=ann)
        done.finish(PAID, by=ann)
        ann.delete()
        states = dict(Item.objects.values_list("pk", "state"))
        assert [states[item.pk] for item in (held, pending, done, other)] == ["waiting", "review", "done", "assigned"]
        assert desk.take_next(bob, QUEUE) == held


def test_lists_do_not_name_who_held_what_waits_now(store, client):
    ann, boss = person("ann", *ALL), person("boss", superuser=True)
    client.force_login(boss)
    with clock(START) as time:
        opened().take(ann)
        time.advance(hours=2)
        let_wait(store)
        for address in ("/desk/team/", "/admin/delayedq_desk/item/"):
            assert ">ann" not in client.get(address).content.decode()
