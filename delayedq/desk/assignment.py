"""Choose which item comes next: people take it (`take_next`), or it is dealt to them (`distribute`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from django.db.models import Max, Value
from django.db.models.functions import Coalesce

from delayedq.desk import rules
from delayedq.desk.errors import NotAllowed, NotOpen, Taken
from delayedq.desk.models import Item
from delayedq.desk.open_items import has_unassigned, heads_of_unassigned, page_of_unassigned
from delayedq.desk.rounds import withdraw
from delayedq.models import Message
from delayedq.store import store_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import datetime

#: How many are tried for one, when others take them at the same moment.
TRIED = 20
#: How many are read at a time to be dealt.
DEALT = 200
#: How long round robin knows of what somebody had who holds it no more.
REMEMBERED = timedelta(days=1)


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

    It ends when nobody may hold more. most: it ends after so many, and looks at no more than the first DEALT items that
    need no skill, or one of theirs. by: the user who does it; None: code. Raises ValueError for an unknown deal, and
    NotAllowed if `by` may not assign, also if that is found out on the way: what was assigned until then stays so.
    """
    if by is not None:
        rules.demand(by, "assign", Item(queue=queue))
    people = rules.active_users() if users is None else users
    turns = _turns([one for one in people if rules.may(one, "take", queue)], queue, Deal(deal))
    count = 0
    for item in _all(queue) if most is None else turns.heads():
        if not turns.people or count == most:
            break
        count += _dealt(item, turns, by)
    return count


def _all(queue: str) -> Iterator[Item]:
    """What is unassigned, in order, a page at a time."""
    after: str | None = ""
    while after is not None:
        page = page_of_unassigned(Item.objects.all(), [queue], after, DEALT)
        yield from page.rows
        after = page.after


@dataclass(slots=True)
class _Turns:
    """Whose turn it is: who has the least. `has`: by user, the weight that they hold, or when they got one last.

    `room` and `skills`: what each may take of the queue, so that nothing is tried which does not fit.
    """

    queue: str
    deal: Deal
    has: dict[Any, float]
    people: list[Any] = field(default_factory=list)
    room: dict[Any, int | None] = field(default_factory=dict)
    skills: dict[Any, set[str]] = field(default_factory=dict)

    def read(self, user: Any) -> None:
        """What the user may take at this moment."""
        self.skills[user.pk] = {"", *rules.skills_of(user)}
        self._set_room(user, rules.room_of(user, self.queue))

    def read_again(self, user: Any, by: Any) -> None:
        """The same of a user who was refused: who may not work on the queue any more, or was deleted, has no turn.

        Raises NotAllowed if it is `by` who may not assign any more.
        """
        queue = Item(queue=self.queue)
        if by is not None:
            rules.demand(rules.current(by), "assign", queue)
        try:
            rules.demand(rules.current(user), "take", queue)
        except NotAllowed:
            self.people.remove(user)
        else:
            self.read(user)

    def heads(self) -> list[Item]:
        """The first of what one of them may take."""
        rooms = [self.room[user.pk] for user in self.people]
        limits = [room for room in rooms if room is not None]
        items = Item.objects.filter(weight__lte=max(limits, default=0)) if len(limits) == len(rooms) else Item.objects
        skills = {skill for user in self.people for skill in self.skills[user.pk] if skill}
        return heads_of_unassigned(items, self.queue, sorted(skills), DEALT)

    def in_order(self, item: Item) -> list[Any]:
        """Those whom it fits."""
        return sorted((user for user in self.people if self._fits(user, item)), key=lambda user: self.has[user.pk])

    def give(self, user: Any, item: Item) -> None:
        last, room = max(self.has.values()), self.room[user.pk]
        self.has[user.pk] = self.has[user.pk] + item.weight if self.deal is Deal.LEAST_LOADED else last + 1
        self._set_room(user, None if room is None else room - item.weight)

    def _fits(self, user: Any, item: Item) -> bool:
        room = self.room[user.pk]
        return item.skill in self.skills[user.pk] and (room is None or item.weight <= room)

    def _set_room(self, user: Any, room: int | None) -> None:
        """Who can hold no more gets no other turn."""
        self.room[user.pk] = room
        if room is not None and room < 1:
            self.people.remove(user)


def _turns(people: list[Any], queue: str, deal: Deal) -> _Turns:
    turns = _Turns(queue, deal, _had(people, queue, deal), [*people])
    for user in people:
        turns.read(user)
    return turns


def _had(people: list[Any], queue: str, deal: Deal) -> dict[Any, float]:
    if deal is Deal.LEAST_LOADED:
        return {user.pk: rules.load(user, queue) for user in people}
    since = store_for(Item.objects.db).now() - REMEMBERED
    given = (
        *_given_to("holder", queue, Item.objects.filter(holder__in=people)),
        *_given_to("decided_by", queue, Item.objects.filter(decided_at__gte=since)),
    )
    last = {user.pk: 0.0 for user in people}
    for person, moment in given:
        if person in last and moment is not None:
            last[person] = max(last[person], moment.timestamp())
    return last


def _given_to(column: str, queue: str, items: Any) -> list[tuple[Any, datetime | None]]:
    """The people in this column, and when each was last given one of these items of the queue."""
    # Expressions: by columns alone SQLite groups along their indexes, and reads all that was ever decided.
    groups = items.order_by().values_list(Coalesce("queue", Value("")), Coalesce(column, Value(None)))
    return [(person, moment) for name, person, moment in groups.annotate(Max("assigned_at")) if name == queue]


def _dealt(item: Item, turns: _Turns, by: Any) -> bool:
    """Whether somebody has it now."""
    fitting = turns.in_order(item)
    if not fitting or not _is_live(item):
        return False
    for user in fitting:
        try:
            given = _given(item, rules.current(user), by=by)
        except NotAllowed:  # the user, or the item, has changed meanwhile
            turns.read_again(user, by)
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
