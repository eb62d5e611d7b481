"""Which item comes next: people take it (`take_next`), or it is dealt to them (`distribute`)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Any

from django.db.models import Max

from delayedq.desk import rules
from delayedq.desk.errors import NotAllowed, NotOpen, Taken
from delayedq.desk.models import Item
from delayedq.desk.paging import has_unassigned, heads_of_unassigned, page
from delayedq.desk.sweeping import withdraw
from delayedq.models import Message
from delayedq.store import store_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: How many are tried for one, when others take them at the same moment.
TRIED = 20
#: How many are read at a time to be dealt.
DEALT = 200


class Deal(StrEnum):
    ROUND_ROBIN = "round_robin"  #: to whom got none for the longest time
    LEAST_LOADED = "least_loaded"  #: to who holds the least weight


def take_next(user: Any, queue: str) -> Item | None:
    """Give the user the next item of the queue that fits their skills; None if there is none.

    What is too heavy for what they may still hold is left to others. Raises NotAllowed if they may not work on the
    queue, or hold as much as one may.
    """
    room, skills = rules.room_of(user, queue), rules.skills_of(user)
    fits = Item.objects.all() if room is None else Item.objects.filter(weight__lte=room)
    if room is not None and room < 1 and has_unassigned(Item.objects.all(), queue):
        raise rules.full(user, queue)
    tried: list[int] = []
    while heads := heads_of_unassigned(fits.exclude(pk__in=tried), queue, skills, TRIED):
        for item in heads:
            if _is_live(item) and _given(item, user, by=user):
                return item
        tried += [item.pk for item in heads]
    return None


def distribute(
    queue: str,
    users: Iterable[Any] | None = None,
    deal: Deal | str = Deal.LEAST_LOADED,
    *,
    by: Any = None,
    most: int | None = None,
) -> int:
    """Assign what is unassigned to those of the users (None: all active ones) who may; returns how many were.

    It ends when nobody may hold more. most: it ends after so many, and looks at no more than the first DEALT items.
    by: the user who does it; None: code. Raises ValueError for an unknown deal, and NotAllowed if `by` may not assign.
    """
    if by is not None:
        rules.demand(by, "assign", Item(queue=queue))
    people = rules.active_users() if users is None else users
    turns = _turns([one for one in people if rules.may(one, "take", queue)], queue, Deal(deal))
    count, waiting = 0, _all(Item.objects.filter(queue=queue).unassigned())
    for item in waiting if most is None else islice(waiting, DEALT):
        if not turns.people or count == most:
            break
        count += _is_live(item) and _dealt(item, turns, by)
    return count


def _all(items: Any) -> Iterator[Item]:
    """In order, a page at a time."""
    after: str | None = ""
    while after is not None:
        rows, after = page(items, after, DEALT)
        yield from rows


@dataclass(slots=True)
class _Turns:
    """Whose turn it is: who has the least. `has`: by user, the weight that they hold, or when they got one last."""

    people: list[Any]
    has: dict[Any, float]
    deal: Deal

    def in_order(self) -> list[Any]:
        return sorted(self.people, key=lambda user: self.has[user.pk])

    def give(self, user: Any, item: Item) -> None:
        last = max(self.has.values())
        self.has[user.pk] = self.has[user.pk] + item.weight if self.deal is Deal.LEAST_LOADED else last + 1


def _turns(people: list[Any], queue: str, deal: Deal) -> _Turns:
    if deal is Deal.LEAST_LOADED:
        return _Turns(people, {user.pk: rules.load(user, queue) for user in people}, deal)
    given = Item.objects.filter(queue=queue, holder__in=people).values_list("holder").annotate(Max("assigned_at"))
    last = {holder: moment.timestamp() for holder, moment in given if moment is not None}
    return _Turns(people, {user.pk: last.get(user.pk, 0.0) for user in people}, deal)


def _dealt(item: Item, turns: _Turns, by: Any) -> bool:
    """Whether somebody has it now; who can hold no more gets no other turn."""
    for user in turns.in_order():
        try:
            given = _given(item, user, by=by)
        except NotAllowed:
            room = rules.room_of(user, item.queue)
            if room is not None and room < 1:
                turns.people.remove(user)
            continue
        if given:
            turns.give(user, item)
        return given
    return False


def _given(item: Item, user: Any, by: Any = None) -> bool:
    """False if somebody else was quicker."""
    try:
        item.assign(user, by=by)
    except (Taken, NotOpen):
        return False
    return True


def _is_live(item: Item) -> bool:
    """Whether its message is there; an item whose message was withdrawn is closed."""
    store = store_for(item._state.db or "default")  # noqa: SLF001 - Django's documented API
    if Message.objects.using(store.alias).filter(pk=item.message_id).exists():
        return True
    withdraw(store, [item.pk])
    return False
