"""Reading what is open a page at a time: the cost is that of what is shown, however much there is.

Items are in the order of `ItemQuerySet.in_order`. A page begins behind the last item of the page before, whose place in
the order is in the address (`after`), so that nothing is counted or skipped.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import batched, islice, product
from typing import TYPE_CHECKING, Any, NamedTuple

from delayedq.desk.models import ENDING, HELD, ORDER, Item, State
from delayedq.models.message import Now
from delayedq.operations.browsing import id_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TICK = timedelta(microseconds=1)
#: How many open items of a queue are searched for a part of a key.
SEARCHED = 1_000
#: Those whose items end, with their states: they are shown in that order.
ENDING_FILTERS = {"assigned": HELD, "postponed": (State.POSTPONED,)}
#: How many items of a queue and state are looked at that have run out: the rounds of workers let them wait again.
LAPSED = 200


class ItemPage(NamedTuple):
    """Some items, and where the next ones begin (None: these are the last).

    is_cut: there are more, which are not continued.
    """

    rows: list[Item]
    after: str | None
    is_cut: bool = False


class ItemPosition(NamedTuple):
    """Where an item is in the order."""

    priority: int
    due: datetime
    id: int

    @classmethod
    def parsed(cls, text: str) -> ItemPosition | None:
        """None if it is no place."""
        try:
            priority, due, pk = map(int, text.split("."))
            return cls(priority, EPOCH + TICK * due, pk) if abs(priority) < 2**15 and 0 <= pk < 2**63 else None
        except (ValueError, OverflowError):
            return None

    @property
    def key(self) -> tuple[int, datetime, int]:
        """The same as `place` of the item."""
        return -self.priority, self.due, self.id

    def __str__(self) -> str:
        return f"{self.priority}.{(self.due - EPOCH) // TICK}.{self.id}"


def place(item: Item) -> tuple[int, datetime, int]:
    """The sorting key of the order."""
    return -item.priority, item.due_or_last, item.pk


def of_filter(items: Any, only: str) -> Any:
    """Those that a filter of the team desk selects, of which each has the name of a method; an empty text: all."""
    return getattr(items, only)() if only else items


def page_of_filter(items: Any, only: str, queues: list[str], after: str, size: int) -> ItemPage:
    """A page of what is open, or of what a filter of the team desk selects, in its order."""
    if only in ENDING_FILTERS:
        return page_of_ending(items, ENDING_FILTERS[only], queues, after, size)
    if only == "unassigned":
        return page_of_unassigned(items, queues, after, size)
    if only == "late":
        return page_of_late(items, queues, after, size)
    shown = items.filter(state=State.REVIEW) if only == "in_review" else items.open()
    return page_of_queues(shown, queues, after, size)


def page(items: Any, after: str, size: int) -> ItemPage:
    """At most `size` of these items behind a place (an empty text: the first ones)."""
    return _cut(_heads(items, ItemPosition.parsed(after), size + 1), size)


def page_of_queues(items: Any, queues: list[str], after: str, size: int) -> ItemPage:
    """The same of several queues: the beginning of each is read by the index."""
    begin = ItemPosition.parsed(after)
    rows = [row for queue in queues for row in _heads(items.filter(queue=queue), begin, size + 1)]
    return _cut(sorted(rows, key=place), size)


def page_of_ending(items: Any, states: Iterable[str], queues: list[str], after: str, size: int) -> ItemPage:
    """The same of items that end (`until`), in the order in which they do: what has run out, and waits again, is not
    read. Their places have the priority 0.
    """
    begin, rows = ItemPosition.parsed(after), []
    for queue, state in product(queues, states):
        found = items.filter(queue=queue, state=state, until__gt=Now()).order_by("until", "id")
        if begin is not None:
            rows += found.filter(until=begin.due, id__gt=begin.id)[: size + 1]
            found = found.filter(until__gt=begin.due)
        rows += found[: size + 1]
    rows.sort(key=_end)
    last = rows[size - 1] if len(rows) > size else None
    return ItemPage(rows[:size], str(ItemPosition(0, last.until, last.pk)) if last else None)


def _end(item: Item) -> tuple[Any, int]:
    return item.until, item.pk


def queues_of(items: Any) -> Iterator[str]:
    """The names of their queues, sorted: a look into the index for each."""
    names = items.order_by("queue").values_list("queue", flat=True)
    name = names.first()
    while name is not None:
        yield name
        name = names.filter(queue__gt=name).first()


def page_of_unassigned(items: Any, queues: list[str], after: str, size: int) -> ItemPage:
    """The same of what somebody may take."""
    begin, rows = ItemPosition.parsed(after), []
    for queue in queues:
        rows += _heads(items.filter(queue=queue, state=State.WAITING), begin, size + 1)
        rows += [row for row in _lapsed(items, queue) if begin is None or place(row) > begin.key]
    return _cut(sorted(rows, key=place), size)


def page_of_late(items: Any, queues: list[str], after: str, size: int) -> ItemPage:
    """The same of what was due: of each priority the beginning, since what is not due yet stands between them."""
    begin, now, rows = ItemPosition.parsed(after), Now(), []
    for queue in queues:
        of_queue = items.open().filter(queue=queue)
        found: list[Item] = []
        for priority in _priorities(of_queue, begin):
            late = of_queue.filter(priority=priority, due_or_last__lte=now)
            found += _heads(late, begin, size + 1 - len(found))
            if len(found) > size:
                break
        rows += found
    return _cut(sorted(rows, key=place), size)


def _priorities(items: Any, begin: ItemPosition | None) -> Iterator[int]:
    """Those of these items from a place on, the highest first: a look into the index for each."""
    values = items.order_by("-priority").values_list("priority", flat=True)
    value = (values if begin is None else values.filter(priority__lte=begin.priority)).first()
    while value is not None:
        yield value
        value = values.filter(priority__lt=value).first()


def heads_of_unassigned(items: Any, queue: str, skills: list[str], size: int) -> list[Item]:
    """The first of what somebody with these skills may take, in order. What nobody may take is not read."""
    waiting = items.filter(queue=queue, state=State.WAITING).in_order()
    rows = [row for skill in ("", *skills) for row in waiting.filter(skill=skill)[:size]]
    rows += _lapsed(items.filter(skill__in=("", *skills)), queue)
    return sorted(rows, key=place)[:size]


def has_unassigned(items: Any, queue: str) -> bool:
    """Whether somebody may take an item of the queue. In the order of an index: else a planner may read the table."""
    rows = items.filter(queue=queue, state=State.WAITING).values_list("pk", flat=True)
    return rows.order_by("skill", *ORDER).first() is not None or bool(_lapsed(items, queue))


def found(items: Any, only: str, queues: Iterable[str], text: str, size: int) -> ItemPage:
    """Those of these items whose message has this number, or whose key is `text`, open or not; and of the first
    SEARCHED open ones of each of the queues those whose key has it. Of both, only those that the filter selects, in its
    order; without one the open ones come first.
    """
    keys = set(_of_number(items, text.removeprefix("#"))) | set(_of_key(items, text))
    slim = items.select_related(None).only("key", "priority", "due_or_last", "until")
    for queue in queues:
        rows = page_of_filter(slim, only, [queue], "", SEARCHED).rows
        hits = (row.pk for row in rows if row.key and text.casefold() in row.key.casefold())
        keys.update(islice(hits, size + 1))  # they come in order: more of one queue are not shown
    of_these = of_filter(items, only)
    every = (row for some in batched(keys, SEARCHED) for row in of_these.filter(pk__in=some))
    rows = sorted(every, key=_end if only in ENDING_FILTERS else _open_first)
    return ItemPage(rows[:size], None, len(rows) > size)


def _open_first(item: Item) -> tuple[bool, int, datetime, int]:
    return not item.is_open, *place(item)


def _of_number(items: Any, text: str) -> Iterator[int]:
    if (id_ := id_in(text)) is not None:
        yield from items.filter(message_id=id_).values_list("pk", flat=True)


def _of_key(items: Any, text: str) -> Iterator[int]:
    """By the index of tasks and keys, of the tasks that have items: a look into the index for each."""
    kinds = items.order_by("kind").values_list("kind", flat=True)
    kind = kinds.first()
    while kind is not None:
        yield from items.filter(kind=kind, key=text).order_by().values_list("pk", flat=True)[:SEARCHED]
        kind = kinds.filter(kind__gt=kind).first()


def _lapsed(items: Any, queue: str) -> list[Item]:
    """What anybody may take as its time is over, and no round has come since: in each state the first that ran out."""
    all_items = Item.objects.using(items.db)
    keys = [pk for state in ENDING for pk in ended(all_items, queue, state, Now())[:LAPSED]]
    return list(items.filter(pk__in=keys)) if keys else []


def ended(items: Any, queue: str, state: str, now: Now | datetime) -> Any:
    """The keys of items whose assignment or postponement has run out: an index has them in this order."""
    found = items.filter(queue=queue, state=state, until__lte=now)
    return found.order_by("until", "id").values_list("pk", flat=True)


def _cut(rows: list[Item], size: int) -> ItemPage:
    more = len(rows) > size
    last = rows[size - 1] if more else None
    return ItemPage(rows[:size], str(ItemPosition(last.priority, last.due_or_last, last.pk)) if last else None)


def _heads(items: Any, begin: ItemPosition | None, count: int) -> list[Item]:
    """The first ones behind a place: three ranges of the index, since no database takes the order for one."""
    if begin is None:
        return list(items.in_order()[:count])
    ranges = (
        {"priority": begin.priority, "due_or_last": begin.due, "id__gt": begin.id},
        {"priority": begin.priority, "due_or_last__gt": begin.due},
        {"priority__lt": begin.priority},
    )
    rows: list[Item] = []
    for limits in ranges:
        if len(rows) < count:
            rows += items.filter(**limits).in_order()[: count - len(rows)]
    return rows
