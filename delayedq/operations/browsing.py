"""Pages of messages: keyset scans that use an index and read a bounded number of rows, however large the table."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from itertools import batched
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import connections
from django.db.models import Q
from django.db.models.functions import Left
from django.utils import timezone

from delayedq.core.bounds import KEY_LENGTH, is_storable
from delayedq.core.conditions import KeyRange
from delayedq.core.instants import MICROSECOND
from delayedq.models import FinishedMessage, Message, PausedQueue, PausedTask, has_run_out, is_free, is_held
from delayedq.operations.argument_search import ArgumentText, argument_in, that_show
from delayedq.operations.pauses import paused_now
from delayedq.operations.reading import keyed_kinds_of, lanes_of
from delayedq.sql.states import TERMS, MessageState
from delayedq.store import operator_store
from delayedq.store.operator import FIRST, LAST, EndedQuery, KeysetPage, LiveQuery, Position

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from django.db.models import Model, QuerySet

    from delayedq.store.base import Store
    from delayedq.store.protocol import Lane

PAGE = 50

#: A search by key reads the ranges of so many kinds by one statement.
UNITED = 100

#: A page reads at most this many rows, divided among the lanes, but at least one page per lane.
DEPTH = 10_000

#: The history has no index on the key (every message would pay for it when it ends), so a search by key reads deeper.
DEPTH_BY_KEY = 5 * DEPTH

#: Texts of errors are in no index, and dead letters lie far apart: each is a page of the table.
DEPTH_BY_ERROR = DEPTH // 2

#: Columns that a list does not need; they may be large.
LARGE = ("payload", "metadata", "errors")

#: Of a payload, a list reads this many characters, as `payload_start`.
PAYLOAD_START = 400


def listed[Row: (Message, FinishedMessage)](messages: QuerySet[Row]) -> QuerySet[Row]:
    """What a list shows of these messages: no large column, but the beginning of the payload."""
    return messages.defer(*LARGE).annotate(payload_start=Left("payload", PAYLOAD_START))


class KeyPosition(NamedTuple):
    """A place among messages in the order of their keys (by code points), and of their ids if they share a key."""

    key: str
    id: int


# Positions in the URL, and in the shell


def position_text(position: Position | KeyPosition) -> str:
    if isinstance(position, KeyPosition):
        return f"{position.id}~{position.key}"
    return f"{position.at.isoformat()}~{position.id}"


def key_position_in(text: str) -> KeyPosition | None:
    """The position among keys that the text is, or None if it is none."""
    id_, tilde, key = text.partition("~")
    number = id_in(id_)
    is_position = number is not None and bool(tilde) and len(key) <= KEY_LENGTH and is_storable(key)
    return KeyPosition(key, number) if is_position and number is not None else None


def position_in(text: str) -> Position | None:
    """The position that the text is, or None if it is none."""
    at, _, id_ = text.partition("~")
    try:
        moment = datetime.fromisoformat(at)
        position = Position(moment, int(id_))
    except ValueError:
        return None
    if not timezone.is_aware(moment) or not FIRST.at <= moment <= LAST.at:
        return None
    return position if 0 <= position.id < 2**63 else None


class Page[Row](NamedTuple):
    rows: list[Row]
    #: The position after which the next page begins; None on the last page.
    after: Position | KeyPosition | None
    #: The scan stopped at its depth: further on there may be more, though this page is not full.
    is_cut: bool = False


def first_page(page: KeysetPage) -> KeysetPage:
    """The first PAGE rows of a longer keyset scan."""
    return KeysetPage(page.found[:PAGE], page.found[PAGE - 1]) if len(page.found) > PAGE else page


def live_page(store: Store, selection: Selection, after: Position | None = None) -> Page[Message]:
    """Up to PAGE messages in order of due time, beginning after a position; those of a key, in order of keys."""
    if selection.key is not None:
        return Page(by_key(store, selection.key, replace(selection, key=None))[:PAGE], None)
    return live_rows(store, scan_live(store, selection, after, PAGE))


def live_rows(store: Store, page: KeysetPage) -> Page[Message]:
    return _page(page, listed(Message.objects.using(store.alias)))


def scan_live(
    store: Store, selection: Selection, after: Position | None, limit: int, depth: int | None = None
) -> KeysetPage:
    """Positions of up to `limit` live messages of a selection, in order of due time, beginning after a position."""
    lanes, argument = selection.lanes(store), selection.argument
    page = (
        operator_store(store.alias)
        .at(selection.as_of)
        .keyset_scan(
            lanes,
            after or selection.first,
            selection.last,
            _candidates(argument, limit),
            max(PAGE, (depth or DEPTH) // max(len(lanes), 1)),
            LiveQuery(selection.state, selection.kind, argument and argument.text, selection.worker),
        )
    )
    return page if argument is None else _shown(page, Message.objects.using(store.alias), argument, limit)


def _candidates(argument: ArgumentText | None, limit: int) -> int:
    """How many messages to find, of which so many are wanted: as many as are read, if each is looked at. How far a page
    comes would tell of masked texts otherwise.
    """
    return max(limit, DEPTH) if argument is not None and argument.is_looked_at else limit


def _shown(page: KeysetPage, rows: QuerySet[Any], argument: ArgumentText, limit: int) -> KeysetPage:
    """Of a page of candidates, those that show the argument: up to `limit`, after which it goes on."""
    look = that_show(rows, [*page.found, *page.beyond], argument)
    if look.reached in page.found:
        upto = page.found[: page.found.index(look.reached) + 1]
        page = page._replace(found=upto, reached=look.reached, beyond=())
    found, beyond = ([one for one in positions if one in look.shown] for positions in (page.found, page.beyond))
    if len(found) > limit:
        return KeysetPage(found[:limit], found[limit - 1])
    return page._replace(found=found, beyond=beyond)


def ended_page(store: Store, selection: EndedSelection, before: Position | None = None) -> Page[FinishedMessage]:
    """Up to PAGE ended messages, latest first, beginning before a position."""
    return ended_rows(store, scan_history(store, selection, before, PAGE))


def ended_rows(store: Store, page: KeysetPage) -> Page[FinishedMessage]:
    return _page(page, listed(FinishedMessage.objects.using(store.alias)).defer("result"))


def _page[Row: (Message, FinishedMessage)](page: KeysetPage, rows: QuerySet[Row]) -> Page[Row]:
    """A page that is not full is filled with rows of lanes that were read further; the next page repeats them."""
    positions = [*page.found, *page.beyond][:PAGE]
    found = rows.in_bulk([position.id for position in positions])
    is_cut = page.reached is not None and len(page.found) < PAGE
    return Page([found[position.id] for position in positions if position.id in found], page.reached, is_cut)


def scan_history(store: Store, selection: EndedSelection, before: Position | None, limit: int) -> KeysetPage:
    """Positions of up to `limit` ended messages of a selection, latest first, beginning before a position."""
    argument = selection.argument
    page = operator_store(store.alias).keyset_scan_history(
        before or selection.last,
        selection.since or FIRST.at,
        _candidates(argument, limit),
        _depth(selection),
        selection.asked,
    )
    return page if argument is None else _shown(page, FinishedMessage.objects.using(store.alias), argument, limit)


def _depth(selection: EndedSelection) -> int:
    if selection.key is not None:
        return DEPTH_BY_KEY
    return DEPTH if selection.error is None else DEPTH_BY_ERROR


# By id or key
def find_live(store: Store, text: str) -> list[Message]:
    """Live messages with exactly this key, and the one with this id. (`finding` also knows how keys begin.)"""
    messages = listed(Message.objects.using(store.alias))
    kinds = keyed_kinds_of(store.alias)
    found = {row.pk: row for row in messages.filter(kind__in=kinds, key=text)}
    return list((found | _by_id(messages, text)).values())


def by_key(store: Store, text: str, selection: Selection, after: KeyPosition | None = None) -> list[Message]:
    """Of a selection, the message with this id, then up to PAGE + 1 whose keys begin so, from a position on.

    They are in the order of keys: that with exactly this key is the first.
    """
    chosen, id_ = listed(selection.messages(store.alias)), id_in(text)
    named = [] if after else [*_by_id(chosen, text).values()]
    others = chosen if id_ is None else chosen.exclude(pk=id_)
    found = [row for rows in united(key_ranges(store, text, others, after and after.key), PAGE + 2) for row in rows]
    found.sort(key=_key_position)
    return [*named, *[row for row in found if after is None or _key_position(row) > after][: PAGE + 1]]


def _key_position(row: Message) -> KeyPosition:
    return KeyPosition(row.key or "", row.pk)


def key_ranges(
    store: Store, prefix: str, messages: QuerySet[Message, Any], first: str | None = None
) -> Iterator[QuerySet[Message, Any]]:
    """Those of these messages whose keys begin so: for each kind, one range of the index of keys, in its order.

    first: a key at which to begin.
    """
    if len(prefix) > KEY_LENGTH:
        return
    keys = KeyRange.of_prefix(prefix)
    keys = keys if first is None else keys._replace(first=max(first, keys.first))
    for kind in keyed_kinds_of(store.alias, keys):
        yield messages.filter(kind=kind, key__gte=keys.first, key__lte=keys.last).order_by("kind", "key")


def united[M: Model](ranges: Iterable[QuerySet[M, Any]], most: int) -> Iterator[QuerySet[M, Any]]:
    """Up to `most` rows of each of these, by a query for UNITED of them. SQLite has no order within a part of one, so
    there it is a query for each.
    """
    for some in batched((rows[:most] for rows in ranges), UNITED):
        if connections[some[0].db].features.supports_slicing_ordering_in_compound:
            yield some[0].union(*some[1:], all=True) if len(some) > 1 else some[0]
        else:
            yield from some


def find_ended(store: Store, text: str) -> list[FinishedMessage]:
    """The ended message with this id, if any. (To search by key, use `EndedSelection(key=...)`.)"""
    return list(_by_id(listed(FinishedMessage.objects.using(store.alias)).defer("result"), text).values())


def ended_by_id(store: Store, selection: EndedSelection) -> list[FinishedMessage]:
    """Of a search: the message that has the searched text as its id, if the filters select it and its key does not
    begin with that, too.
    """
    text = selection.key or ""
    rows = replace(selection, key=None).messages(store.alias)
    found = _by_id(listed(rows).defer("result"), text).values()
    return [row for row in found if not (row.key or "").startswith(text)]


def _by_id[Row: (Message, FinishedMessage)](rows: QuerySet[Row], text: str) -> dict[int, Row]:
    id_ = id_in(text)
    return {} if id_ is None else rows.in_bulk([id_])


def id_in(text: str) -> int | None:
    """The text as an id, as `7` or `#7`; None if it is not a whole number of 63 bits."""
    text = text.removeprefix("#")
    return int(text) if text.isascii() and text.isdigit() and len(text) < len(str(2**63)) else None


# Which messages an operator has chosen: those ticked one by one, or all that match the filters.


#: At most this many messages are edited in one transaction.
CHUNK = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """A filter of live messages. `since` and `until` bound the due time; `as_of` decides what is due and leased.

    `key`: what their key begins with. `argument`: what is to be in their arguments, which only a keyset scan asks.
    `worker`: the name of what holds them, or held them last.
    """

    as_of: datetime
    state: MessageState | None = None
    queue: str | None = None
    kind: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    key: str | None = None
    argument: ArgumentText | None = None
    priority: int | None = None
    worker: str | None = None

    @property
    def is_indexed(self) -> bool:
        """Whether the columns of the due index decide it all."""
        return {self.state, self.kind, self.key, self.argument, self.worker} == {None}

    @property
    def is_range(self) -> bool:
        """Whether nearly all messages in a range of each lane are chosen: those that are due, or are scheduled."""
        others = {self.kind, self.key, self.argument, self.worker}
        return self.state in {MessageState.DUE, MessageState.SCHEDULED} and others == {None}

    @property
    def first(self) -> Position:
        """The position after which a keyset scan begins."""
        since = max(
            self.since or FIRST.at, self.as_of + MICROSECOND if self.state is MessageState.SCHEDULED else FIRST.at
        )
        return FIRST._replace(at=since)

    @property
    def last(self) -> datetime:
        until = self.until or LAST.at
        return min(until, self.as_of) if self.state in {MessageState.DUE, MessageState.PAUSED} else until

    def lanes(self, store: Store) -> list[Lane]:
        """The lanes of the chosen queue or queues and priority, or all."""
        lanes = [lane for lane in lanes_of(store) if self.queue in {None, lane.queue}]
        lanes = [lane for lane in lanes if self.priority in {None, lane.priority}]
        if self.state is not MessageState.PAUSED:
            return lanes
        paused = paused_now(store)
        return lanes if paused.kinds else [lane for lane in lanes if lane.queue in paused.queues]

    def messages(self, alias: str) -> QuerySet[Message]:
        """The selection as a query."""
        messages = Message.objects.using(alias).filter(_in_state(self.state, self.as_of))
        asked = {
            "queue": self.queue,
            "kind": self.kind,
            "priority": self.priority,
            "leased_by": self.worker,
            "scheduled_at__gte": self.since,
            "scheduled_at__lte": self.until,
            **({} if self.key is None else _with_key(alias, self.key)),
        }
        return messages.filter(**{name: value for name, value in asked.items() if value is not None})


def _with_key(alias: str, prefix: str) -> dict[str, Any]:
    """Ranges of the index of keys, one for each kind."""
    keys = KeyRange.of_prefix(prefix)
    return {"kind__in": keyed_kinds_of(alias, keys), "key__gte": keys.first, "key__lte": keys.last}


def _in_state(state: MessageState | None, now: datetime) -> Q:
    """The state as a query, by its terms (`sql.states`)."""
    if state is None:
        return Q()
    lease, is_due, was_tried, is_paused = TERMS[state]
    found = {"free": is_free, "held": is_held, "run out": has_run_out}[lease](now)
    if is_due is not None:
        found &= Q(scheduled_at__lte=now) if is_due else Q(scheduled_at__gt=now)
    if was_tried is not None:
        found &= Q(attempt__gt=0) if was_tried else Q(attempt=0)
    if is_paused:
        found &= Q(queue__in=PausedQueue.objects.values("queue")) | Q(kind__in=PausedTask.objects.values("kind"))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedSelection:
    """A filter of ended messages. `since` and `until` bound the time of the end.

    `key`: what their key begins with. Only dead letters have an `error`, which stands in the line of their error in
    upper or lower case, and a `fingerprint`, which those of an error group share. `argument`: as of a Selection.
    """

    outcome: str | None = None
    queue: str | None = None
    kind: str | None = None
    key: str | None = None
    error: str | None = None
    fingerprint: int | None = None
    priority: int | None = None
    worker: str | None = None
    argument: ArgumentText | None = None
    since: datetime | None = None
    until: datetime | None = None

    def searching(self) -> EndedSelection:
        """It with the argument that its key is a search for, if it is one: for who may see arguments."""
        argument = argument_in(self.key or "")
        return self if argument is None else replace(self, key=None, argument=argument)

    @property
    def is_indexed(self) -> bool:
        others = {self.queue, self.kind, self.key, self.error, self.priority, self.worker, self.argument}
        return self.outcome in {None, "failed"} and others == {None}

    @property
    def asked(self) -> EndedQuery:
        """All but the times."""
        asked = EndedQuery(*(getattr(self, name) for name in EndedQuery._fields))
        return asked if self.argument is None else asked._replace(argument=self.argument.text)

    @property
    def last(self) -> Position:
        """The position before which a keyset scan begins."""
        return LAST if self.until is None else LAST._replace(at=self.until)

    def messages(self, alias: str) -> QuerySet[FinishedMessage]:
        asked = {
            "outcome": None if self.fingerprint is not None and self.outcome == "failed" else self.outcome,
            "queue": self.queue,
            "kind": self.kind,
            "error__icontains": self.error,
            "fingerprint": self.fingerprint,
            "priority": self.priority,
            "worker": self.worker,
            "finished_at__gte": self.since,
            "finished_at__lte": self.until,
        }
        ended = FinishedMessage.objects.using(alias)
        if self.key:  # SQLite's LIKE, by which Django asks how a text begins, takes no account of upper and lower case
            ended = ended.alias(key_start=Left("key", len(self.key))).filter(key_start=self.key)
        return ended.filter(**{name: value for name, value in asked.items() if value is not None})


# In chunks
@dataclass(frozen=True, slots=True)
class Ticked:
    """Messages chosen by id."""

    ids: Sequence[int]

    def chunks(self, alias: str, after: int = 0) -> Iterator[list[int]]:  # noqa: ARG002
        for chunk in batched((id_ for id_ in sorted(set(self.ids)) if id_ > after), CHUNK):
            yield list(chunk)


@dataclass(frozen=True, slots=True)
class AllOf:
    """All messages of a selection with an id up to `upto`, which leaves out messages offered later.

    They are read in order of id, which no edit changes, so a message that is moved meanwhile is still met once.
    """

    selection: Selection
    upto: int

    def chunks(self, alias: str, after: int = 0) -> Iterator[list[int]]:
        while True:
            following = self.selection.messages(alias).filter(id__gt=after, id__lte=self.upto).order_by("id")
            chunk = list(following.values_list("id", flat=True)[:CHUNK])
            if not chunk:
                return
            yield chunk
            after = chunk[-1]


Chosen = Ticked | AllOf


def newest_id(alias: str) -> int:
    """The highest id of a live message; 0 if there is none."""
    newest = Message.objects.using(alias).order_by("-id").values_list("id", flat=True).first()
    return newest or 0


# Finding a live message by what an operator knows of it: its id, its key or how that begins, or an argument.


class SearchResult(NamedTuple):
    """What a search found. `is_cut`: it stopped at its bound, so there may be more.

    `by_argument`: what arguments were searched for, as was asked, or as no id and no key fitted.
    """

    messages: list[Message]
    is_cut: bool = False
    by_argument: ArgumentText | None = None
    #: Where the next page begins.
    after: KeyPosition | Position | None = None


def find(
    store: Store,
    text: str,
    selection: Selection,
    *,
    payload: bool = True,
    after: KeyPosition | Position | None = None,
) -> SearchResult:
    """The messages of a selection that a text may mean: those with this id or key, and whose key begins with it.

    If there is none, and for `args:TEXT` and `args.NAME:VALUE`, those with such an argument, in order of due time: a
    page reads a bounded number of messages. With `payload` False, arguments are not searched. `after`: where a further
    page begins.
    """
    if not text or not is_storable(text):
        return SearchResult([])
    rest, argument = replace(selection, key=None), argument_in(text) if payload else None
    if argument is None and not isinstance(after, Position):
        if found := by_key(store, text, rest, after):
            is_cut = len(found) > PAGE
            return SearchResult(found[:PAGE], is_cut, after=_key_position(found[PAGE - 1]) if is_cut else None)
        if after is not None or not payload:
            return SearchResult([])
    if not payload or isinstance(after, KeyPosition):
        return SearchResult([])
    argument = argument or ArgumentText(text)
    page = live_rows(store, scan_live(store, replace(rest, argument=argument), after, PAGE))
    return SearchResult(page.rows, page.after is not None, argument, page.after)


def find_all(store: Store, selection: Selection, *, payload: bool = True) -> Iterator[list[int]]:
    """All that `find` means by the key of a selection, however many there are: their ids, CHUNK at a time."""
    text, rest = selection.key or "", replace(selection, key=None)
    if not text or not is_storable(text):
        return
    argument = argument_in(text) if payload else None
    if argument is None:
        is_found = False
        for ids in _all_by_key(store, text, rest.messages(store.alias)):
            is_found = True
            yield ids
        if is_found or not payload:
            return
    position: Position | None = None
    is_over = False
    while not is_over:
        page = scan_live(store, replace(rest, argument=argument or ArgumentText(text)), position, CHUNK)
        yield [one.id for one in page.found]
        position, is_over = page.reached, page.reached is None


def _all_by_key(store: Store, text: str, messages: QuerySet[Message]) -> Iterator[list[int]]:
    """That with this id, then those whose keys begin so: a part of each range of the index of keys at a time."""
    named = [*_by_id(messages, text)]
    if named:
        yield named
    for of_kind in key_ranges(store, text, messages.exclude(id__in=named)):
        part = list(of_kind.values_list("id", "key")[:CHUNK])
        while part:
            yield [id_ for id_, _ in part]
            part = list(of_kind.filter(key__gt=part[-1][1]).values_list("id", "key")[:CHUNK])
