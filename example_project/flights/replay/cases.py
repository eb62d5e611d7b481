"""Cases for the desk: passengers of the recorded day ask for a refund, three users decide, and have begun to."""

from __future__ import annotations

import time
from random import Random
from typing import TYPE_CHECKING

from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission

from delayedq import Call, desk
from delayedq.desk.models import Item
from delayedq.desk.tasks import decided
from delayedq.models import FinishedMessage, Message
from example_project.flights.models import Flight
from example_project.flights.refunds import ENOUGH, refund
from example_project.flights.replay.timeline import DAY

if TYPE_CHECKING:
    from delayedq.models import MessageQuerySet

QUEUE = "refunds"
#: Users of the demo, and what each may do on the desk. Their password is their name.
USERS = {
    "clerk": ["view_item", "take_item"],
    "reviewer": ["view_item", "take_item", "review_item"],
    "lead": ["view_item", "take_item", "assign_item", "review_item", "view_automation", "change_automation"],
}
PASSENGERS = ("Ada", "Blaise", "Carl", "Dorothy", "Edsger", "Frances", "Grace", "Hedy", "Ivan", "Joan", "Kurt", "Lise")
#: What they wrote, and whether a person believes that they missed something by a delay that is too short by rule.
LETTERS = {
    "I waited for the whole afternoon.": False,
    "Please pay back my fare.": False,
    "My connection in Atlanta was gone when we landed.": True,
    "Nobody told us anything at the gate.": False,
    "It is the second time this month.": False,
}
CASES, BEGUN = 60, 36
PATIENCE, PAUSE = 20, 0.1


def clear() -> None:
    """Delete what an earlier demo has left on the desk."""
    Item.objects.filter(kind=refund.module_path).delete()
    for model in (Message, FinishedMessage):
        model.objects.filter(kind__in=[refund.module_path, decided.module_path], queue=QUEUE).delete()


def ask() -> int:
    """Passengers of delayed and of cancelled flights ask for a refund; returns how many do."""
    random = Random(CASES)  # noqa: S311 - the same cases in each demo
    flights = [one for one in Flight.objects.leaving_on(DAY).in_order() if one.cancelled or one.delay * 2 >= ENOUGH]
    calls = []
    for flight in random.sample(flights, min(CASES, len(flights))):
        passenger, letter = random.choice(PASSENGERS), random.choice(list(LETTERS))
        calls.append(Call((flight, passenger, letter), key=f"{flight.code}/{passenger}"))
    return len(refund.enqueue_many(calls))


def welcome() -> None:
    """Create the users, or reset their passwords and permissions."""
    for name, verbs in USERS.items():
        user, _ = get_user_model().objects.get_or_create(username=name)
        user.is_staff = user.is_active = True
        user.set_password(name)
        user.save()
        user.user_permissions.set(
            Permission.objects.filter(content_type__app_label="delayedq_desk", codename__in=verbs)
        )


def begin() -> int:
    """The clerk decides the first cases, once workers have opened all of them; returns how many."""
    deadline = time.monotonic() + PATIENCE
    while desk.items(QUEUE).count() < _live().count() and time.monotonic() < deadline:
        time.sleep(PAUSE)
    clerk, count = get_user_model().objects.get(username="clerk"), 0
    while count < BEGUN and (item := desk.take_next(clerk, QUEUE)) is not None:
        item.finish({"percent": _percent(item)}, by=clerk)
        count += 1
    return count


def _percent(item: Item) -> int:
    """What a person decides who reads the letter, too."""
    flight, _, letter = _live().get(pk=item.message_id).args
    return 100 if flight.cancelled or flight.delay >= ENOUGH or LETTERS[letter] else 0


def _live() -> MessageQuerySet:
    return Message.objects.filter(kind=refund.module_path)
