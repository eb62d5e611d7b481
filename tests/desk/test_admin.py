"""The list of items in the admin: whose items it shows, and what of them."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import Group
from django.test import Client

from delayedq.desk import desk_task
from delayedq.desk.models import DeskQueue, Item, State
from tests.desk.given import ALL, QUEUE, opened, person, refund

pytestmark = [
    pytest.mark.usefixtures("store"),
    pytest.mark.urls("tests.desk.urls"),
    pytest.mark.parametrize("alias", ["sqlite"], indirect=True),
]
LIST = "/admin/delayedq_desk/item/"


@desk_task(queue_name=QUEUE, sensitive=True)
def secret(order):
    return order


def signed_in(user):
    client = Client()
    client.force_login(user)
    return client


def text_of(answer):
    assert answer.status_code == 200
    return answer.content.decode()


def test_who_is_not_of_the_groups_of_a_queue_sees_none_of_its_items():
    item, ann = opened(), person("ann", "view")
    client = signed_in(ann)
    assert f"{LIST}{item.pk}/change/" in text_of(client.get(LIST))
    group = Group.objects.create(name="office")
    DeskQueue.objects.create(queue=QUEUE).groups.add(group)
    assert f"{LIST}{item.pk}/change/" not in text_of(client.get(LIST))
    assert client.get(f"{LIST}{item.pk}/change/").status_code == 302
    ann.groups.add(group)
    assert client.get(f"{LIST}{item.pk}/change/").status_code == 200


def test_the_list_is_filtered_by_the_queues_that_its_reader_sees():
    first, second = opened(), opened()
    Item.objects.filter(pk=second.pk).update(queue="letters", is_open=False, state=State.DONE)
    client = signed_in(person("ann", "view"))
    page = text_of(client.get(LIST, {"queue": "letters"}))
    assert f"{LIST}{second.pk}/change/" in page
    assert f"{LIST}{first.pk}/change/" not in page
    assert f'href="?queue={QUEUE}"' in page
    DeskQueue.objects.create(queue=QUEUE).groups.add(Group.objects.create(name="office"))
    assert f'href="?queue={QUEUE}"' not in text_of(client.get(LIST))
    assert f"{LIST}{first.pk}/change/" not in text_of(client.get(LIST, {"queue": QUEUE}))


@pytest.mark.parametrize("name", ["truth", "proposal", "confidence", "decision", "reason", "why", "digest"])
def test_no_query_string_asks_for_what_is_not_shown(name):
    opened()
    client = signed_in(person("ann", "view"))
    assert client.get(LIST, {f"{name}__gt": "1"}).status_code == 400
    assert client.get(LIST, {"mode__exact": "people"}).status_code == 200


def test_what_is_decided_blind_shows_no_proposal_until_it_is_closed_even_if_it_was_sent_back():
    item = opened()
    given = {"proposal": "771177", "truth": "882288", "confidence": 0.8765, "decision": "993399", "agreed": False}
    Item.objects.filter(pk=item.pk).update(is_blind=True, state=State.REJECTED, **given)
    client = signed_in(person("ann", *ALL))
    page = text_of(client.get(f"{LIST}{item.pk}/change/"))
    assert "993399" in page
    assert not [text for text in ("771177", "882288", "0.8765", "field-agreed") if text in page]
    Item.objects.filter(pk=item.pk).update(is_open=False, state=State.DONE)
    page = text_of(client.get(f"{LIST}{item.pk}/change/"))
    assert all(text in page for text in ("771177", "882288", "993399"))


def test_nothing_shown_of_an_item_tells_guessed_arguments_from_others():
    item, client = opened(secret, 4711), signed_in(person("ann", *ALL))
    assert item.digest
    assert item.digest not in text_of(client.get(f"{LIST}{item.pk}/change/"))


def test_what_sensitive_tasks_have_decided_is_masked():
    item = opened(refund)
    given = {"proposal": '"771177"', "truth": '"882288"', "decision": '"993399"', "reason": "664466"} | {
        "why": "557755"
    }
    Item.objects.filter(pk=item.pk).update(is_open=False, state=State.DONE, **given)
    client = signed_in(person("ann", *ALL))
    for kind, is_masked in ((refund.module_path, False), (secret.module_path, True)):
        Item.objects.filter(pk=item.pk).update(kind=kind)
        page = text_of(client.get(f"{LIST}{item.pk}/change/"))
        assert [text in page for text in ("771177", "882288", "993399", "664466", "557755")] == [not is_masked] * 5
