"""A deadline holds for people too: the page says when it is, and who is late is told, and has not worked in silence."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.test import Client

from delayedq import desk
from delayedq.desk import desk_task
from delayedq.desk.errors import NotOpen
from delayedq.desk.models import Item, State
from delayedq.desk.rounds import close_withdrawn
from delayedq.models import FinishedMessage, Message
from delayedq.testing import clock, run_due
from tests.desk.given import ALL, PAID, QUEUE, RefundForm, opened, person, refund

pytestmark = [pytest.mark.usefixtures("store"), pytest.mark.urls("tests.desk.urls")]
START = datetime(2026, 3, 2, 9, tzinfo=UTC)


@desk_task(queue_name=QUEUE, form=RefundForm, deadline=timedelta(hours=3), due_in=timedelta(hours=2))
def urgent(order): ...


@desk_task(queue_name=QUEUE, deadline=timedelta(hours=3), sensitive=True)
def secret(order): ...


def signed_in(user):
    client = Client()
    client.force_login(user)
    return client


def test_the_page_shows_the_deadline_and_the_message_ends_then_whoever_holds_it(store):
    ann = person("ann", *ALL)
    with clock(START) as time:
        item, client = opened(urgent), signed_in(ann)
        item.take(ann)
        address = f"/desk/{item.pk}/"
        assert "<dt>Deadline</dt>" in client.get(address).content.decode()
        time.advance(hours=2)
        run_due()  # which warns, and says that it is late
        assert Message.objects.get().scheduled_at == START + timedelta(hours=3)
        time.advance(minutes=59)
        run_due()
        assert client.get(address).context["is_mine"]
        item.renew(ann)
        time.advance(minutes=1)
        run_due(raise_failures=False)
        assert FinishedMessage.objects.get().outcome == "failed"
        typed = {"amount": "4711", "dq-assignment": item.assignment}
        for _ in range(2):  # before the round of a worker has closed the item, and after it
            answer = client.post(f"{address}finish/", typed)
            page = answer.content.decode()
            assert answer.status_code == 422
            assert "Its deadline was over before it was decided." in page
            with pytest.raises(NotOpen, match="Its deadline was over"):
                Item.objects.get().finish(PAID, by=ann)
            close_withdrawn(store)
        item.refresh_from_db()
        assert (item.state, item.is_open) == (State.WITHDRAWN, False)
        page = client.get(address).content.decode()
        assert "Its deadline was over before it was decided." in page
        assert "<dt>Deadline</dt>" not in page


def test_a_decision_before_the_deadline_ends_the_message_with_it():
    ann = person("ann", *ALL)
    with clock(START) as time:
        item = opened(refund, deadline=timedelta(hours=1))
        item.take(ann)
        time.advance(minutes=59)
        run_due()
        item.finish(PAID, by=ann)
        time.advance(days=2)
        run_due()
    assert FinishedMessage.objects.get(pk=item.message_id).outcome == "succeeded"


@pytest.mark.parametrize("task", [urgent, secret])
def test_what_was_cancelled_was_withdrawn_and_what_came_too_late_was_not(store, task):
    ann = person("ann", *ALL)
    with clock(START) as time:
        late = opened(task)
        cancelled = opened(refund)
        time.advance(hours=4)
        run_due(raise_failures=False)
        Message.objects.filter(pk=cancelled.message_id).delete()
        for item, text in ((late, "Its deadline was over"), (cancelled, "it was withdrawn")):
            with pytest.raises(NotOpen, match=text):
                item.take(ann)
        close_withdrawn(store)
        for item, text in ((late, "Its deadline was over"), (cancelled, "it was withdrawn")):
            with pytest.raises(NotOpen, match=text):
                item.take(ann)


def test_what_is_edited_while_it_waits_for_its_deadline_is_opened_anew_at_once(store):
    """The time of the last visit is one that the desk has chosen: the message is brought forward from it."""
    ann = person("ann", *ALL)
    with clock(START) as time:
        item = opened(refund, deadline=timedelta(hours=1))
        time.advance(minutes=1)
        Message.objects.update(payload='{"args":[50],"kwargs":{}}')
        with pytest.raises(NotOpen, match="replaced since"):
            item.take(ann)
        run_due()
        item = desk.take_next(ann, QUEUE)
        assert item.replaced_at == time()
