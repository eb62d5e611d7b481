"""Steps of the admin's tests: fill the queue, and use the pages."""

from __future__ import annotations

import re
from datetime import timedelta
from html import unescape

from django.utils import timezone

from delayedq.core.lifecycle import FinalOutcome
from delayedq.models import Edit, Message
from delayedq.store.protocol import ClaimRequest, Finish, Lane
from tests.store.given import LEASE, message

MESSAGES = "/admin/delayedq/message/"
HISTORY = "/admin/delayedq/finishedmessage/"
EDITS = "/admin/delayedq/edit/"
#: Seconds.
HOUR = 3_600


def offer(store, key=None, payload="{}", *, seconds=-10.0, now=None, **fields):
    """Offer a message that is due in `seconds` (from `now`, if its test counts them); returns its id."""
    due = (now or timezone.now()) + timedelta(seconds=seconds)
    return store.offer(message(key, payload, scheduled_at=due, **fields)).id


def run(store, queue="mail", priority=0):
    """Claim the next message of a lane."""
    (claimed,) = store.claim(ClaimRequest([Lane(queue, priority)], 1, LEASE, "worker-1"))
    return claimed


def dead(store, key=None, payload="{}", errors=None, **fields):
    """Make a dead letter; returns its id."""
    id_ = offer(store, key, payload, queue="dying", **fields)
    store.settle([Finish(run(store, "dying"), FinalOutcome.FAILED, 1.0, 0.0, None, errors)], "worker-1")
    return id_


def keys_on(page):
    """The keys in a list, in order."""
    return [row.key for row in page.context["rows"]]


def text_of(page):
    """The visible text of a page."""
    body = re.sub(r"<(script|style).*?</\1>", "", page.content.decode(), flags=re.DOTALL)
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", body)).split())


def tick(client, action, *ids, where=MESSAGES, **fields):
    """Tick messages and choose an action; returns the confirmation."""
    return client.post(f"{where}act/", {"action": action, "ids": ids, "query": "", **fields})


def choose_all(client, action, query="", where=MESSAGES):
    """Choose all that match the filters; returns the confirmation."""
    return client.post(f"{where}act/", {"action": action, "everything": "on", "query": query})


def confirm(client, confirmation, where=MESSAGES, **fields):
    """Confirm, and post until all parts are done; returns the last page."""
    context = confirmation.context
    given = {"action": context["action"].name, "chosen": context["chosen"], "confirmed": "yes", **fields}
    page = client.post(f"{where}act/", given, follow=True)
    while "ongoing" in page.context:
        page = client.post(f"{where}act/", {**given, "ongoing": page.context["ongoing"]}, follow=True)
    return page


def do(client, action, *ids, where=MESSAGES, **fields):
    """Tick, choose and confirm; returns the notes on the last page."""
    return said(confirm(client, tick(client, action, *ids, where=where), where, **fields))


def undo(client):
    """Undo the newest edit; returns the notes on the last page."""
    edit = Edit.objects.latest("id")
    asked = text_of(client.get(f"{EDITS}{edit.pk}/undo/"))
    assert ("becomes again what it was" if edit.action == "schedule" else "get their previous values back") in asked
    page = client.post(f"{EDITS}{edit.pk}/undo/", follow=True)
    while "ongoing" in page.context:
        page = client.post(f"{EDITS}{edit.pk}/undo/", {"ongoing": page.context["ongoing"]}, follow=True)
    return said(page)


def said(page):
    return [str(note) for note in page.context["messages"]]


def live(id_):
    return Message.objects.get(id=id_)


def soon(moment):
    return abs(moment - timezone.now()) < timedelta(minutes=1)
