"""Why a message does not run: the obstacles that exist now, as sentences."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from django.db import connections, transaction
from django.db.models import Q
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from delayedq.exceptions import UnknownTask
from delayedq.limits.operator import why_limited
from delayedq.limits.rules import channel_of
from delayedq.masking import masking_of
from delayedq.models import FinishedMessage, Message, PausedQueue, PausedTask, Worker, is_free, with_renewals
from delayedq.operations.counting import counted
from delayedq.operations.rules import LATE
from delayedq.operations.wording import both, exact, grouped, relative, span
from delayedq.operations.workers import is_alive, live_workers, running_ids, serves, who_still_runs
from delayedq.store import default_store
from delayedq.store.protocol import BARE, Lane
from delayedq.tasks import task_at

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import datetime

    from django.db.models import QuerySet

    from delayedq.store.base import Store

#: Messages ahead are counted up to this number.
MOST_AHEAD = 5_000
#: At most this many characters of an error are quoted.
ERROR_LENGTH = 200


def due_in(store: Store, lane: Lane, now: datetime) -> QuerySet[Message]:
    """The messages of this lane that are due, and that nobody holds."""
    messages = Message.objects.using(store.alias).filter(queue=lane.queue, priority=lane.priority)
    return messages.filter(is_free(now), scheduled_at__lte=now)


class Reason(StrEnum):
    """The kind of an answer."""

    ENDED = "ended"
    KEY_HELD = "key held"
    LEASED = "leased"
    REPLACED = "replaced"
    EXPIRED = "lease expired"
    SCHEDULED = "scheduled"
    UNKNOWN_TASK = "unknown task"
    BARE = "bare queue"
    PAUSED = "paused"
    UNSERVED = "unserved"
    LIMITED = "limited"
    BEHIND = "behind"
    BUSY = "busy"
    DEAF = "deaf listener"
    LOCKED = "locked"
    STILL_RUNS = "still runs"
    READY = "ready"
    LATE = "late"


class Answer(NamedTuple):
    """One reason. `text`: a sentence without markup. `message_id`: the other live message it mentions, if any.

    `worker`: the worker process whose restart would help, if one would.
    """

    reason: Reason
    text: str
    message_id: int | None = None
    worker: str = ""


def explain(
    message: Message | FinishedMessage, now: datetime | None = None, store: Store | None = None
) -> list[Answer]:
    """Why a message does not run: at least one answer, the most important first.

    `now`: default the store's clock. `store`: where it is; None: in the default one.

    For an ended message, the answer says how and when it ended.

        for answer in explain(Message.objects.get(id=4711)):
            print(answer.text)
    """
    store = store or default_store()
    moment = now or store.now()
    if isinstance(message, FinishedMessage):
        return [*_ended(store, message, moment)]
    (message,) = with_renewals([message], moment, store.alias)
    if message.lease_token is not None and message.leased_until and message.leased_until > moment:
        return [*_leased(store, message, moment)]
    return [*Waiting(store, message, moment).answers()]


# It has ended


def _ended(store: Store, ended: FinishedMessage, now: datetime) -> Iterator[Answer]:
    error = _last_error(ended)
    said = _ENDINGS[ended.outcome] % {"time": both(ended.finished_at, now)}
    yield Answer(Reason.ENDED, f"{said}{error and f': {error}'}.")
    if (worker := who_still_runs(store, ended, now)) is not None:
        words = _(
            "Its attempt still ran on %(worker)s %(when)s, and can't be interrupted: that thread is lost until the "
            "attempt returns. A restart of the worker process frees it, and lets the others finish within its shutdown "
            "timeout."
        )
        given = {"worker": worker.name, "when": relative(worker.seen_at, now)}
        yield Answer(Reason.STILL_RUNS, words % given, worker=worker.name)
    if ended.key is not None:
        live = Message.objects.using(store.alias).keyed(ended.kind, ended.key)
        for id_ in live.values_list("id", flat=True):
            held = _("Its key is held by #%(id)s now, which has to end before it can be retried.")
            yield Answer(Reason.KEY_HELD, held % {"id": id_}, id_)


_ENDINGS = {
    "succeeded": gettext_lazy("It succeeded %(time)s"),
    "failed": gettext_lazy("It failed for good %(time)s"),
    "cancelled": gettext_lazy("It was cancelled %(time)s"),
    "expired": gettext_lazy("It expired before it was started, %(time)s"),
    "superseded": gettext_lazy("It was replaced while it ran, and then ended %(time)s"),
}


def _last_error(ended: FinishedMessage) -> str:
    """The class and message of the last error of a message that did not succeed; "" if there is none."""
    if ended.outcome == "succeeded" or not ended.errors:
        return ""
    try:
        masking = masking_of(ended.kind)
        last = json.loads(masking.errors(ended.errors, ended.payload) if masking else ended.errors)[-1]
        name = str(last["exception"]).rpartition(".")[2]
        return f"{name}: {last['message']}"[:ERROR_LENGTH].rstrip(" .:")
    except (ValueError, RecursionError, TypeError, LookupError):
        return ""


# It is leased


def _leased(store: Store, message: Message, now: datetime) -> Iterator[Answer]:
    assert message.leased_until is not None
    worker = Worker.objects.using(store.alias).filter(name=message.leased_by or "").first()
    until = _("It is leased by %(worker)s until %(time)s, %(state)s.") % {
        "worker": message.leased_by,
        "time": exact(message.leased_until),
        "state": _holder(worker, message.leased_until, now),
    }
    yield Answer(Reason.LEASED, until)
    if message.attempt == 0:
        yield Answer(
            Reason.REPLACED,
            _("It was replaced while it ran: the running attempt has the previous payload; the new one runs after it."),
        )


def _holder(worker: Worker | None, leased_until: datetime, now: datetime) -> str:
    """What the worker registry says about the worker that holds the lease."""
    if worker is None:
        return _("and no worker of that name is registered: if it died, another one takes over then")
    if not is_alive(worker, now):
        seen = _("but that worker was last seen %(when)s: another one takes over then")
        return seen % {"when": relative(worker.seen_at, now)}
    renewed = relative(leased_until - timedelta(seconds=worker.lease), now)
    return _("last renewed %(when)s") % {"when": renewed}


# It waits


@dataclass(frozen=True, slots=True)
class Waiting:
    """A message without a valid lease at the moment `now`.

    is_left: workers have served its queue, started what they could, and ended: it is not for want of them.
    """

    store: Store
    message: Message
    now: datetime
    is_left: bool = False

    def answers(self) -> list[Answer]:
        obstacles = [*self._time(), *self._task(), *self._queue()]
        return obstacles or [*self._turn()] or [self._ready()]

    def _ready(self) -> Answer:
        wait = self.now - self.message.scheduled_at
        if wait < LATE:
            return Answer(Reason.READY, _("Nothing is in its way: a worker is about to take it."))
        words = _("Nothing that delayedq knows of blocks it, but no worker has taken it for %(span)s.")
        return Answer(Reason.LATE, words % {"span": span(wait)})

    def _time(self) -> Iterator[Answer]:
        message = self.message
        if message.scheduled_at > self.now:
            due = _("It is due %(time)s.") % {"time": both(message.scheduled_at, self.now)}
            attempt = {"number": message.attempt, "most": message.max_attempts}
            tried = _(" Attempt %(number)s of %(most)s failed.") % attempt if message.attempt else ""
            yield Answer(Reason.SCHEDULED, f"{due}{tried}")

    def _task(self) -> Iterator[Answer]:
        if BARE in self.message.queue:
            bare = _("It is in a bare queue: no worker serves it, it waits for code that polls.")
            yield Answer(Reason.BARE, bare)
            if self.message.scheduled_at <= self.now:
                yield from self._limited()
            return
        if paused := PausedTask.objects.using(self.store.alias).filter(kind=self.message.kind).first():
            words = (
                _("Its task was paused by %(name)s %(time)s.")
                if paused.paused_by
                else _("Its task was paused %(time)s.")
            )
            yield Answer(Reason.PAUSED, words % {"name": paused.paused_by, "time": both(paused.paused_at, self.now)})
        try:
            task_at(self.message.kind)
        except UnknownTask:
            given_back = _(
                "Its task is not registered here: %(task)s. Workers that do not know it either give it back during "
                "DELAYEDQ['DEPLOY_GRACE'], and then end it as failed."
            )
            left = _(
                "Its task is not registered here: %(task)s. It has a channel or a limit, so workers that do not know "
                "its task leave it alone."
            )
            has_channel = channel_of(self.message.metadata) is not None
            yield Answer(Reason.UNKNOWN_TASK, (left if has_channel else given_back) % {"task": self.message.kind})

    def _queue(self) -> Iterator[Answer]:
        queue = self.message.queue
        if paused := PausedQueue.objects.using(self.store.alias).filter(queue=queue).first():
            by = _("Its queue, %(queue)s, was paused by %(name)s %(time)s.")
            words = by if paused.paused_by else _("Its queue, %(queue)s, was paused %(time)s.")
            given = {"queue": queue, "name": paused.paused_by, "time": both(paused.paused_at, self.now)}
            yield Answer(Reason.PAUSED, words % given)
        if BARE not in queue and not self.is_left and not self._workers():
            yield Answer(Reason.UNSERVED, _("No live worker serves its queue, %(queue)s.") % {"queue": queue})

    def _workers(self) -> list[Worker]:
        return [worker for worker in live_workers(self.store, self.now) if serves(worker, self.message.queue)]

    # Its turn

    def _turn(self) -> Iterator[Answer]:
        """Reasons for a message that is due and whose queue is served."""
        workers = self._workers()
        yield from self._expired()
        if channel_of(self.message.metadata) is not None:
            yield from self._limited()
        elif not self.is_left:
            yield from self._behind(workers)
        if not self.is_left:
            yield from self._busy(workers)
        if workers and all("deaf" in worker.problems for worker in workers):
            yield Answer(
                Reason.DEAF,
                _("The listeners of its workers are deaf, so it waits for a scan. See DELAYEDQ['LISTENER_DSN']."),
            )
        if self._is_locked():
            locked = _("An open transaction has locked it, perhaps one that offers its key again.")
            yield Answer(Reason.LOCKED, locked)

    def _expired(self) -> Iterator[Answer]:
        message = self.message
        if message.leased_until is not None:
            ended = relative(message.leased_until, self.now)
            words = _("The lease of %(worker)s ended %(when)s: the next worker with room takes it.")
            yield Answer(Reason.EXPIRED, words % {"worker": message.leased_by, "when": ended})

    def _limited(self) -> Iterator[Answer]:
        if (channel := channel_of(self.message.metadata)) is not None:
            for text in why_limited(self.store, self.message, channel, self.now):
                yield Answer(Reason.LIMITED, text)

    def _behind(self, workers: list[Worker]) -> Iterator[Answer]:
        priority = self.message.priority
        higher = _count(self._due(lane) for lane in self._shared_lanes(workers) if lane.priority > priority)
        if higher:
            yield Answer(
                Reason.BEHIND, _("It waits behind %(messages)s of higher priority.") % {"messages": _messages(higher)}
            )
        position = Q(scheduled_at=self.message.scheduled_at, id__lt=self.message.pk)
        own = self._due(Lane(self.message.queue, priority))
        earlier = _count([own.filter(position | Q(scheduled_at__lt=self.message.scheduled_at))])
        if earlier:
            words = _("It waits behind %(messages)s of its own priority, due before it.")
            yield Answer(Reason.BEHIND, words % {"messages": _messages(earlier)})

    def _shared_lanes(self, workers: list[Worker]) -> list[Lane]:
        """The lanes that every worker that could claim the message serves too."""
        paused = self.store.paused()
        lanes = [lane for lane in self.store.lanes() if lane.queue not in paused]
        return [lane for lane in lanes if all(serves(worker, lane.queue) for worker in workers)]

    def _due(self, lane: Lane) -> QuerySet[Message]:
        return due_in(self.store, lane, self.now)

    def _busy(self, workers: list[Worker]) -> Iterator[Answer]:
        threads, running = sum(w.threads for w in workers), sum(len(running_ids(w)) for w in workers)
        if running >= threads:
            seen = relative(min(worker.seen_at for worker in workers), self.now)
            words = _("All %(threads)s threads of the workers that serve its queue were busy %(when)s.")
            yield Answer(Reason.BUSY, words % {"threads": threads, "when": seen})

    def _is_locked(self) -> bool:
        """Whether a transaction holds the row's lock. Always False on SQLite, which has no row locks."""
        alias = self.store.alias
        if not connections[alias].features.has_select_for_update_skip_locked:
            return False
        with transaction.atomic(using=alias):
            row = Message.objects.using(alias).filter(pk=self.message.pk)
            return not row.select_for_update(skip_locked=True).exists() and row.exists()


def _count(sources: Iterable[QuerySet[Message]]) -> int:
    """The number of messages together, at most MOST_AHEAD + 1."""
    return counted(sources, MOST_AHEAD + 1)


def _messages(count: int) -> str:
    if count > MOST_AHEAD:
        return _("more than %(number)s messages") % {"number": grouped(MOST_AHEAD)}
    return ngettext("%(count)s message", "%(count)s messages", count) % {"count": grouped(count)}
