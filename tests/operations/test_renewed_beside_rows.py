"""What people see of a lease that was renewed beside its row, which somebody's transaction had locked."""

from __future__ import annotations

import pytest
from django.db import transaction

from delayedq import clock
from delayedq.models import Message, with_renewals
from delayedq.operations.browsing import Selection, live_page
from delayedq.operations.explain import Reason, explain
from delayedq.operations.timeline import timeline
from delayedq.sql.states import MessageState
from delayedq.store.protocol import Renewed
from tests.store.given import LEASE, NOW, at, claim_one, elsewhere, message

pytestmark = pytest.mark.parametrize("alias", ["postgresql", "mariadb"], indirect=True)


@pytest.fixture
def renewed(store, alias):
    """Leased until at(60) by its row, and until at(90) beside it."""
    store.at(NOW).offer(message("a", "1"))
    claimed = claim_one(store)
    with transaction.atomic(using=alias):
        store.at(NOW).offer(message("a", "2"))
        pair = [(claimed.id, claimed.token)]
        assert elsewhere(store.at(at(30)).renew, pair, LEASE) == Renewed()
    return Message.objects.get()


def states(seconds):
    """Which of the verbs find it."""
    with clock.choose(lambda: at(seconds)):
        verbs = ["leased", "expired", "waiting", "due", "retrying"]
        return [verb for verb in verbs if getattr(Message.objects, verb)().exists()]


def test_querysets_take_it_for_leased_until_that_has_run_out(renewed):
    assert states(59) == states(89.9) == ["leased"]
    assert states(90) == ["expired", "waiting", "due"]


def test_it_is_running_on_the_pages_of_an_operator(store, renewed):
    def shown(state, seconds):
        selection = Selection(as_of=at(seconds), state=state)
        listed = [one.pk for one in live_page(store, selection).rows]
        assert listed == list(selection.messages(store.alias).values_list("pk", flat=True))
        return bool(listed)

    assert [state for state in MessageState if shown(state, 89.9)] == [MessageState.RUNNING]
    assert [state for state in MessageState if shown(state, 90)] == [MessageState.DUE, MessageState.LOST]


def test_explain_and_the_timeline_say_until_when_it_is_leased(store, renewed):
    assert [one.reason for one in explain(renewed, at(70))] == [Reason.LEASED, Reason.REPLACED]
    assert Reason.LEASED not in [one.reason for one in explain(renewed, at(90))]
    assert at(90) in [event.at for event in timeline(store, renewed, at(70)) if "runs" in event.what]
    assert renewed.leased_until == at(60), "what was passed is as it was"


def test_the_renewal_of_another_lease_is_none_of_this_one(store, renewed):
    Message.objects.update(lease_token=renewed.lease_token - 1)
    assert states(70) == ["expired", "waiting", "due"]
    other = Message.objects.get()
    assert with_renewals([other], at(70), store.alias) == [other]
    assert other.leased_until == at(60)


def test_nothing_is_asked_unless_a_lease_has_run_out(store, renewed, django_assert_num_queries):
    with django_assert_num_queries(0, using=store.alias):
        assert with_renewals([renewed], at(59), store.alias) == [renewed]
