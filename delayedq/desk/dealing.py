"""Which item comes next: people take it (`take_next`), or it is dealt to them (`distribute`)."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

from django.contrib.auth import get_user_model
from django.db.models import Max

from delayedq.desk import rules
from delayedq.desk.errors import NotAllowed, NotOpen, Taken
from delayedq.desk.models import Item
from delayedq.models import Message

if TYPE_CHECKING:
    from collections.abc import Sequence

#: How many are tried for one, when others take them at the same moment.
TRIED = 20


class Deal(StrEnum):
    ROUND_ROBIN = "round_robin"  #: to whom got none for the longest time
    LEAST_LOADED = "least_loaded"  #: to who holds the least weight


def take_next(user: Any, queue: str) -> Item | None:
    """Give the user the next item of the queue that fits their skills; None if there is none.

    Raises NotAllowed if they may not work on the queue, or hold as much as one may.
    """
    waiting = Item.objects.filter(queue=queue).unassigned().for_skills_of(user)
    for item in waiting[:TRIED]:
        if _is_gone(item):
            continue
        try:
            item.take(user)
        except (Taken, NotOpen):
            continue
        return item
    return None


def distribute(queue: str, users: Sequence[Any] | None = None, deal: Deal | str = Deal.LEAST_LOADED) -> int:
    """Assign what is unassigned to those of the users (None: all active ones) who may; returns how many were.

    Raises ValueError for an unknown deal.
    """
    deal, count = Deal(deal), 0
    people = list(get_user_model().objects.filter(is_active=True)) if users is None else list(users)
    people = [one for one in people if rules.may(one, "take", queue)]
    for item in Item.objects.filter(queue=queue).unassigned():
        count += not _is_gone(item) and any(_given(item, user) for user in _in_turn(people, queue, deal))
    return count


def _given(item: Item, user: Any) -> bool:
    try:
        item.assign(user)
    except (Taken, NotOpen, NotAllowed):
        return False
    return True


def _in_turn(people: list[Any], queue: str, deal: Deal) -> list[Any]:
    if deal is Deal.LEAST_LOADED:
        return sorted(people, key=lambda user: rules.load(user, queue))
    given = Item.objects.filter(queue=queue, holder__in=people).values_list("holder").annotate(Max("assigned_at"))
    last = {holder: moment.timestamp() for holder, moment in given if moment is not None}
    return sorted(people, key=lambda user: last.get(user.pk, 0.0))


def _is_gone(item: Item) -> bool:
    """Whether its message was withdrawn; then it is closed."""
    if Message.objects.filter(pk=item.message_id).exists():
        return False
    rows = Item.objects.filter(pk=item.pk, is_open=True)
    rows.update(is_open=False, state="withdrawn", holder=None, until=None)
    return True
