"""Which messages an operator has chosen: those ticked one by one, or all that match the filters."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import batched
from typing import TYPE_CHECKING, Any

from django.db.models import Q

from delayedq.core.conditions import KeyRange
from delayedq.core.instants import MICROSECOND
from delayedq.models import FinishedMessage, Message, PausedQueue, PausedTask, has_run_out, is_free, is_held
from delayedq.operations.pauses import paused_now
from delayedq.store import operator_store
from delayedq.store.operator import FIRST, LAST, State

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from django.db.models import QuerySet

    from delayedq.store.base import Store
    from delayedq.store.operator import Position
    from delayedq.store.protocol import Lane

#: At most this many messages are edited in one transaction.
CHUNK = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """A filter of live messages. `since` and `until` bound the due time; `as_of` decides what is due and leased.

    `key`: what their key begins with. `argument`: a text that stands in their payload, which only a keyset scan asks.
    `worker`: the name of what holds them, or held them last.
    """

    as_of: datetime
    state: State | None = None
    queue: str | None = None
    kind: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    key: str | None = None
    argument: str | None = None
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
        return self.state in {State.DUE, State.SCHEDULED} and others == {None}

    @property
    def first(self) -> Position:
        """The position after which a keyset scan begins."""
        since = max(self.since or FIRST.at, self.as_of + MICROSECOND if self.state is State.SCHEDULED else FIRST.at)
        return FIRST._replace(at=since)

    @property
    def last(self) -> datetime:
        until = self.until or LAST.at
        return min(until, self.as_of) if self.state in {State.DUE, State.PAUSED} else until

    def lanes(self, store: Store) -> list[Lane]:
        """The lanes of the chosen queue or queues and priority, or all."""
        lanes = [lane for lane in store.lanes() if self.queue in {None, lane.queue}]
        lanes = [lane for lane in lanes if self.priority in {None, lane.priority}]
        if self.state is not State.PAUSED:
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
    return {"kind__in": operator_store(alias).keyed_kinds(), "key__gte": keys.first, "key__lte": keys.last}


def _in_state(state: State | None, now: datetime) -> Q:
    if state is None:
        return Q()
    due = Q(scheduled_at__lte=now)
    paused = Q(queue__in=PausedQueue.objects.values("queue")) | Q(kind__in=PausedTask.objects.values("kind"))
    return {
        State.DUE: is_free(now) & due,
        State.SCHEDULED: is_free(now) & Q(scheduled_at__gt=now, attempt=0),
        State.RETRYING: is_free(now) & Q(attempt__gt=0),
        State.RUNNING: is_held(now),
        State.LOST: has_run_out(now),
        State.PAUSED: is_free(now) & due & paused,
    }[state]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedSelection:
    """A filter of ended messages. `since` and `until` bound the time of the end.

    `key`: what their key begins with. Only dead letters have an `error`, which stands in the line of their error in
    upper or lower case, and a `fingerprint`, which those of an error group share.
    """

    outcome: str | None = None
    queue: str | None = None
    kind: str | None = None
    key: str | None = None
    error: str | None = None
    fingerprint: int | None = None
    priority: int | None = None
    worker: str | None = None
    since: datetime | None = None
    until: datetime | None = None

    @property
    def is_indexed(self) -> bool:
        others = {self.queue, self.kind, self.key, self.error, self.priority, self.worker}
        return self.outcome in {None, "failed"} and others == {None}

    @property
    def asked(self) -> dict[str, Any]:
        """All but the times, as `keyset_scan_history` takes it."""
        names = ("outcome", "queue", "kind", "key", "error", "fingerprint", "priority", "worker")
        return {name: getattr(self, name) for name in names}

    @property
    def last(self) -> Position:
        """The position before which a keyset scan begins."""
        return LAST if self.until is None else LAST._replace(at=self.until)

    def messages(self, alias: str) -> QuerySet[FinishedMessage]:
        asked = {
            "outcome": None if self.fingerprint is not None and self.outcome == "failed" else self.outcome,
            "queue": self.queue,
            "kind": self.kind,
            "key__startswith": self.key,
            "error__icontains": self.error,
            "fingerprint": self.fingerprint,
            "priority": self.priority,
            "worker": self.worker,
            "finished_at__gte": self.since,
            "finished_at__lte": self.until,
        }
        ended = FinishedMessage.objects.using(alias)
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
