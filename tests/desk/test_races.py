"""Several at once, on real connections: one winner, nobody above their capacity, nothing decided twice."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.auth.models import User
from django.db import IntegrityError, connections, transaction

from delayedq import desk
from delayedq.desk import assignment
from delayedq.desk.errors import DeskError, NotAllowed, NotOpen, Taken
from delayedq.desk.models import HELD, DeskQueue, Item, State
from delayedq.desk.rounds import let_wait
from delayedq.desk.signals import item_changed
from delayedq.models import FinishedMessage, Message
from delayedq.testing import clock, run_due
from tests.desk.given import ALL, PAID, QUEUE, opened, person, refund, reviewed, skilled, told

pytestmark = pytest.mark.usefixtures("store")
START = datetime(2026, 3, 2, 9, tzinfo=UTC)


def at_once(*acts):
    """Call them in threads that begin together; what each returned, or the DeskError that it raised."""
    barrier, results = threading.Barrier(len(acts)), [None] * len(acts)

    def call(number, act):
        barrier.wait()
        try:
            results[number] = act()
        except DeskError as error:
            results[number] = error
        finally:
            connections.close_all()

    threads = [threading.Thread(target=call, args=[number, act]) for number, act in enumerate(acts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def many(count, task=refund):
    results = [task.enqueue(1) for _ in range(count)]
    run_due()
    return [Item.objects.get(message_id=result.id) for result in results]


def test_j9_of_leads_who_reassign_what_they_see_at_once_one_wins():
    lead, *people = (person(name, *ALL) for name in ("lead", "ann", "bob", "eve", "joe"))
    item = opened()
    for _ in range(5):
        item.assign(people[0], by=lead)
        seen = [Item.objects.get(pk=item.pk) for _ in people[1:]]
        acts = [
            lambda one=one, user=user: one.assign(user, by=lead) for one, user in zip(seen, people[1:], strict=True)
        ]
        refused = [result for result in at_once(*acts) if result is not None]
        item.refresh_from_db()
        assert [str(error) for error in refused] == [f"Taken by {item.holder} 0 s ago."] * 2
        assert {type(error) for error in refused} == {Taken}
        item.unassign()


def test_whoever_takes_several_at_once_never_holds_more_than_one_may():
    ann = person("ann", *ALL)
    DeskQueue.objects.create(queue=QUEUE, capacity=7)
    items = many(6, skilled)  # of weight 3
    refused = [result for result in at_once(*(lambda item=item: item.take(ann) for item in items)) if result]
    assert {type(error) for error in refused} == {NotAllowed}
    assert len(refused) == 4
    assert sum(item.weight for item in desk.items().assigned(ann)) == 6


def test_all_who_ask_for_the_next_one_at_once_get_one_and_each_another(monkeypatch):
    monkeypatch.setattr(assignment, "TRIED", 2)
    people, items = [person(f"p{number}", *ALL) for number in range(6)], many(6)
    taken = at_once(*(lambda user=user: desk.take_next(user, QUEUE) for user in people))
    assert sorted(item.pk for item in taken) == [item.pk for item in items]
    assert {item.holder for item in taken} == set(people)


def test_of_a_decision_and_what_replaces_its_message_at_once_each_is_whole():
    """Either the old case ended with the decision and the new one is another message, or nobody decided the old one."""
    ann = person("ann", *ALL)
    for number in range(5):
        key = f"case {number}"
        refund.schedule_at(START, 100, key=key)
        run_due()
        item = desk.items().open().get()
        item.take(ann)
        decided, _ = at_once(
            lambda item=item: item.finish(PAID, by=ann),
            lambda key=key: refund.schedule_at(START + timedelta(days=1), 50, key=key),
        )
        run_due()
        item.refresh_from_db()
        message = Message.objects.get(key=key)
        assert (message.pk == item.message_id) == (decided is not None)
        assert FinishedMessage.objects.filter(pk=item.message_id).exists() == (decided is None)
        if decided is not None:
            assert isinstance(decided, NotOpen)
            assert (item.state, item.replaced_at is not None) == (State.WAITING, True)
            item.take(ann)
            item.finish(PAID, by=ann)
        else:
            new = desk.items().open().get()
            assert (new.message_id, new.state) == (message.pk, State.WAITING)
            new.take(ann)
            new.finish(PAID, by=ann)
    counts = Counter(FinishedMessage.objects.filter(kind=told.module_path).values_list("payload", flat=True))
    assert set(counts.values()) <= {1}, "what follows a decision follows it once"


def test_what_was_replaced_falls_back_with_a_mark_whoever_holds_or_reviews_it():
    ann, bob, heard = person("ann", *ALL), person("bob", *ALL), []

    def hear(verb, **_):
        heard.append(verb)

    with clock(START) as time:
        reviewed.schedule_at(START, 100, key="case")
        run_due()
        item = desk.items().get()
        item.take(ann)
        item.finish(PAID, by=ann)
        item.send_back("look again", by=bob)
        item_changed.connect(hear)
        reviewed.using(priority=3).schedule_at(time.advance(hours=1), 50, key="case")
        for verb in (lambda: item.finish(PAID, by=ann), lambda: item.assign(bob, by=ann)):
            with pytest.raises(NotOpen, match="replaced since"):
                verb()
        run_due()
        item_changed.disconnect(hear)
        item.refresh_from_db()
    assert heard == ["replace"]
    assert (item.state, item.holder, item.replaced_at, item.opened_at) == (State.WAITING, None, time(), time())
    assert (item.decision, item.decided_by, item.decided_at, item.reviewed_by) == (None, None, None, None)
    assert (item.rejections, item.why, item.priority) == (0, "", 3)


def test_take_next_leaves_to_others_what_is_too_heavy():
    ann, bob = person("ann", *ALL), person("bob", *ALL)
    DeskQueue.objects.create(queue=QUEUE, capacity=4)
    first, heavy, light = opened(skilled, 1, priority=1), opened(skilled, 2, priority=1), opened()
    assert [desk.take_next(ann, QUEUE), desk.take_next(ann, QUEUE)] == [first, light]
    with pytest.raises(NotAllowed, match="holds as much of the queue refunds as one may: 4"):
        desk.take_next(ann, QUEUE)
    assert desk.take_next(bob, QUEUE) == heavy
    assert desk.take_next(bob, QUEUE) is None


def test_what_fell_back_counts_again_when_it_is_renewed():
    """Ann was away, has taken another one since, and comes back to the page of the first."""
    ann = person("ann", *ALL)
    DeskQueue.objects.create(queue=QUEUE, capacity=1)
    with clock(START) as time:
        first, second = opened(), opened()
        first.take(ann)
        time.advance(hours=2)
        second.take(ann)
        with pytest.raises(NotAllowed, match="as one may: 1"):
            first.renew(ann)
        second.finish(PAID, by=ann)
        first.renew(ann)
        assert list(desk.items().assigned(ann)) == [first]


def test_dealing_ends_when_nobody_may_hold_more():
    people = [person(name, *ALL) for name in ("ann", "bob")]
    DeskQueue.objects.create(queue=QUEUE, capacity=4)
    many(2, skilled.using(priority=1))
    many(5)
    assert desk.distribute(QUEUE, people) == 4
    assert [sum(item.weight for item in desk.items().assigned(user)) for user in people] == [4, 4]
    assert desk.distribute(QUEUE, people) == 0


def test_what_a_person_holds_who_was_deleted_is_taken_by_others():
    ann, bob = person("ann", *ALL), person("bob", *ALL)
    first, second = opened(), opened()
    for item in (first, second):
        item.take(ann)
    ann.delete()
    Item.objects.get(pk=first.pk).take(bob)
    assert desk.take_next(bob, QUEUE) == second


@pytest.mark.parametrize("alias", ["postgresql", "mariadb"], indirect=True)
@pytest.mark.parametrize("number", [0, 1])
def test_what_is_assigned_to_a_person_while_they_are_deleted_is_not_held_by_nobody(alias, connection, number):
    """Between the statements of the deletion: it waits, or that person is still there and holds it."""
    ann, bob, seen = person("ann", *ALL), person("bob", *ALL), []
    items = [opened() for _ in range(2)]
    items[0].take(ann)

    def assign(execute, sql, *given):
        """As another connection does before the first or the second statement on what the person holds."""
        if sql.startswith("UPDATE") and "delayedq_desk_item" in sql and "holder_id" in sql.partition("WHERE")[2]:
            seen.append(sql)
            if len(seen) == number + 1:
                at_once(lambda: items[1].assign(ann))
        return execute(sql, *given)

    with connection.execute_wrapper(assign), contextlib.suppress(IntegrityError):
        ann.delete()
    assert len(seen) > number
    held = Item.objects.filter(state__in=HELD)
    assert set(held.values_list("holder")) <= {(ann.pk,)} if User.objects.filter(username="ann") else not held.exists()
    for item in held:
        item.unassign()
    assert [desk.take_next(bob, QUEUE) for _ in items] == items


def test_who_was_deleted_meanwhile_is_given_nothing_and_has_reviewed_nothing():
    gone, bob = person("gone", superuser=True), person("bob", *ALL)
    items, decided = [opened() for _ in range(2)], opened(reviewed)
    decided.take(bob)
    decided.finish(PAID, by=bob)
    User.objects.get(pk=gone.pk).delete()
    for act in (lambda: items[0].assign(gone), lambda: items[0].take(gone), lambda: decided.approve(by=gone)):
        with pytest.raises(NotAllowed, match="The user was deleted meanwhile"):
            act()
    assert Item.objects.get(pk=decided.pk).state == State.REVIEW
    assert desk.distribute(QUEUE, [gone, bob]) == 2
    assert set(desk.items().assigned(bob)) == set(items)


@pytest.mark.parametrize("alias", ["postgresql", "mariadb"], indirect=True)
def test_the_round_of_a_worker_waits_for_nobody_who_decides(alias, store):
    ann = person("ann", *ALL)
    with clock(START) as time:
        decided, lapsed = opened(), opened()
        for item in (decided, lapsed):
            item.take(ann)
        time.advance(hours=2)
        with transaction.atomic(using=store.alias):
            decided.finish(PAID, by=ann)  # and more happens in this transaction, as in a request
            thread = threading.Thread(target=lambda: (let_wait(store), connections.close_all()))
            thread.start()
            thread.join(timeout=20)
            assert not thread.is_alive()
    states = dict(Item.objects.values_list("pk", "state"))
    assert states == {decided.pk: State.DONE, lapsed.pk: State.WAITING}


def test_who_may_no_longer_work_on_the_queue_can_only_give_back():
    ann = person("ann", *ALL)
    item = opened()
    item.take(ann)
    ann.user_permissions.clear()
    ann = type(ann).objects.get(pk=ann.pk)
    for verb in (
        lambda: item.finish(PAID, by=ann),
        lambda: item.renew(ann),
        lambda: item.report(1, by=ann),
        lambda: item.postpone(datetime.now(UTC) + timedelta(days=9), by=ann),
    ):
        with pytest.raises(NotAllowed, match="ann may not work on the queue refunds"):
            verb()
    item.unassign(by=ann)
    assert item.state == State.WAITING
