"""Who holds an item, when what they may do has changed since."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from delayedq import desk
from delayedq.desk.errors import NotAllowed
from delayedq.desk.models import State
from delayedq.testing import clock
from tests.desk.given import ALL, PAID, QUEUE, opened, person, reviewed

pytestmark = pytest.mark.usefixtures("store")
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
