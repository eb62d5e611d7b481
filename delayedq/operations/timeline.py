"""The timeline of one message: its creation, attempts, edits and end, as far as they are stored."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import pgettext

from delayedq.core.metadata import PARENT, ROOT, own
from delayedq.core.serialization import stored_json
from delayedq.masking import hidden, masking_of, shown
from delayedq.models import EditedMessage, FinishedMessage, Message, with_renewals
from delayedq.operations.wording import seconds as lasted
from delayedq.sql import waits
from delayedq.store.lineage import made_by

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from delayedq.store.base import Store

# Where a message comes from, and what it has made: what its task enqueued, and what follows its end.


class MadeMessage(NamedTuple):
    """A message that another one has made. `outcome`: how it ended; None if it lives."""

    id: int
    kind: str
    created_at: datetime
    outcome: str | None = None


def parent_of(message: Message | FinishedMessage) -> int | None:
    """The id of the message that has made this one."""
    return _id(message, PARENT)


def root_of(message: Message | FinishedMessage) -> int | None:
    """The id of the first message of that line; None if it has no parent."""
    return _id(message, ROOT)


def made(store: Store, message: Message | FinishedMessage, limit: int = 100) -> list[MadeMessage]:
    """What this message has made, the oldest first: at most `limit` of the live, and of the ended ones."""
    found = made_by(store.database, message.pk, limit)
    live = Message.objects.using(store.alias).filter(id__in=found.live)
    ended = FinishedMessage.objects.using(store.alias).filter(id__in=found.ended)
    names = ("id", "kind", "created_at")
    rows = [MadeMessage(*row) for row in live.values_list(*names)] if found.live else []
    rows += [MadeMessage(*row) for row in ended.values_list(*names, "outcome")] if found.ended else []
    return sorted(rows)


def _id(message: Message | FinishedMessage, name: str) -> int | None:
    id_ = own(message.metadata, name)
    return id_ if isinstance(id_, int) else None


# Timeline


#: An attempt that is said to have run for more seconds is not believed: ten years.
LONGEST = 10 * 365 * 86_400


class Attempt(NamedTuple):
    """`state`: failed, running or lost, or how the message ended with it. `end`: the present moment while it runs."""

    number: int
    start: datetime
    end: datetime
    state: str
    #: Seconds of processor time, where they were kept.
    processor: float | None = None


class Event(NamedTuple):
    at: datetime
    what: str
    #: The error of an attempt, or the description of an edit.
    detail: str = ""
    traceback: str = ""
    #: The id of the edit.
    edit: int | None = None
    #: The id of another message, which `detail` names.
    message: int | None = None
    is_failure: bool = False
    #: The last log lines of an attempt, where they were kept.
    log: tuple[str, ...] = ()
    #: Where the event is the end of an attempt, or what is known of one that runs.
    attempt: Attempt | None = None


def timeline(store: Store, message: Message | FinishedMessage, now: datetime, *, payload: bool = True) -> list[Event]:
    """The events of a message, in order of time. `payload` False: the reader may not see the texts of errors."""
    events = [
        Event(message.created_at, _("created"), _origin(message), message=parent_of(message)),
        *_made(store, message),
        *_attempts(shown(message, payload=payload).errors),
        *_edits(store, message, payload=payload),
        *(_live(store, message, now) if isinstance(message, Message) else _ended(message)),
    ]
    if message.scheduled_at_initially != message.scheduled_at:
        events.append(Event(message.scheduled_at_initially, _("due at first")))
    return sorted(events, key=lambda event: event.at)


def _live(store: Store, message: Message, now: datetime) -> Iterator[Event]:
    (message,) = with_renewals([message], now, store.alias)
    yield Event(message.scheduled_at, pgettext("state", "due"))
    if message.leased_until is not None:
        if message.claimed_at is not None and message.attempt:
            yield _started(message.claimed_at, message.attempt, message.leased_by, message.scheduled_at)
        lost = _("attempt %(number)s was lost: its worker stopped renewing")
        runs, is_lost = _("attempt %(number)s runs"), message.leased_until <= now
        until = _("on %(worker)s, leased until then") if is_lost else _("on %(worker)s; its lease ends unless renewed")
        words, detail = lost if is_lost else runs, until % {"worker": message.leased_by}
        attempt = None
        if message.claimed_at is not None and message.attempt:
            until_now = message.leased_until if is_lost else now
            attempt = Attempt(message.attempt, message.claimed_at, until_now, "lost" if is_lost else "running")
        said = words % {"number": message.attempt}
        yield Event(message.leased_until, said, detail, is_failure=is_lost, attempt=attempt)


def _ended(message: FinishedMessage) -> Iterator[Event]:
    yield Event(message.scheduled_at, pgettext("state", "due"))
    if message.started_at is not None:
        yield _started(message.started_at, message.attempts, message.worker, message.scheduled_at)
    attempt = None
    if message.started_at is not None:
        attempt = Attempt(message.attempts, message.started_at, message.finished_at, message.outcome)
    yield Event(message.finished_at, pgettext("state", message.outcome), ran_for(message), attempt=attempt)


def _started(at: datetime, attempt: int, worker: str | None, due: datetime) -> Event:
    where = _("on %(worker)s") % {"worker": worker}
    return Event(at, _("attempt %(number)s started") % {"number": attempt}, f"{where}, {waited(at, due)}")


def waited(started_at: datetime, due: datetime) -> str:
    """How late an attempt started."""
    seconds = waits.waited(due, started_at)
    if seconds is None:
        return _("before the time to which it was moved since")
    return _("%(span)s after it was due") % {"span": lasted(seconds)}


def ran_for(message: FinishedMessage) -> str:
    """How long the last attempt of an ended message ran; "" if none started."""
    if message.started_at is None:
        return ""
    span = lasted((message.finished_at - message.started_at).total_seconds())
    return _("its last attempt ran %(span)s") % {"span": span}


def _made(store: Store, message: Message | FinishedMessage) -> Iterator[Event]:
    """The messages that its task has enqueued, or that follow it."""
    for one in made(store, message):
        yield Event(one.created_at, _("has made"), f"#{one.id} {one.kind}", message=one.id)


def _origin(message: Message | FinishedMessage) -> str:
    """The message, or the schedule, that has created a message, if one has."""
    if (parent := parent_of(message)) is not None:
        return _("by message #%(id)s") % {"id": parent}
    metadata = message.metadata
    name = (stored_json(metadata, dict).get("cron") or {}) if metadata else {}
    schedule = name.get("schedule") if isinstance(name, dict) else None
    return _("by the schedule %(name)s") % {"name": schedule} if isinstance(schedule, str) else ""


def _attempts(errors: str | None) -> Iterator[Event]:
    """The failed attempts, as their workers recorded them."""
    for record in records_in(errors):
        at = _moment(record.get("failed_at"))
        if at is None:
            continue
        seconds = record.get("seconds")
        ran = lasted(seconds) if isinstance(seconds, int | float) else ""
        words = _("attempt %(number)s failed after %(span)s") if ran else _("attempt %(number)s failed")
        where = _("on %(worker)s") % {"worker": record.get("worker")}
        yield Event(
            at,
            words % {"number": record.get("attempt"), "span": ran},
            f"{where}: {record.get('exception')}: {record.get('message')}",
            str(record.get("traceback") or ""),
            is_failure=True,
            attempt=_failed(record, at),
            log=log_in(record),
        )


def _failed(record: dict[str, Any], at: datetime) -> Attempt | None:
    """None: its record does not say when it began, or which it was."""
    number, ran = record.get("attempt"), record.get("seconds")
    if not isinstance(number, int) or not isinstance(ran, int | float) or not 0 <= ran <= LONGEST:
        return None
    processor = record.get("processor_seconds")
    known = isinstance(processor, int | float) and 0 <= processor <= LONGEST
    return Attempt(number, at - timedelta(seconds=ran), at, "failed", processor if known else None)


def log_in(record: dict[str, Any]) -> tuple[str, ...]:
    """The log lines in the record of a failed attempt."""
    lines = record.get("log")
    return tuple(map(str, lines)) if isinstance(lines, list) else ()


def attempts_in(events: Iterable[Event]) -> list[Attempt]:
    """The attempts in a timeline, in the order of their starts.

    Of the last one of a dead letter, the end is told twice: by its record, and by the end of the message.
    """
    found: list[Attempt] = []
    for one in sorted((event.attempt for event in events if event.attempt), key=lambda one: (one.number, one.start)):
        is_same = found and found[-1].number == one.number and one.start <= found[-1].end
        if not is_same:
            found.append(one)
        elif one.processor is not None:
            found[-1] = found[-1]._replace(processor=one.processor)
    return sorted(found, key=lambda one: one.start)


def _edits(store: Store, message: Message | FinishedMessage, *, payload: bool) -> Iterator[Event]:
    """The edits of the message; the record of a redrive also has the attempts before it."""
    masking = masking_of(message.kind) if payload else hidden(message.kind)
    records = EditedMessage.objects.using(store.alias).filter(message_id=message.pk)
    edited = records.select_related("edit").order_by("id")
    for record in edited[:100]:
        edit = record.edit
        yield Event(edit.made_at, _by(_(edit.action), edit.made_by), edit.description, edit=edit.pk)
        if record.undone and edit.undone_at is not None:
            undone = _by(_("%(action)s undone") % {"action": _(edit.action)}, edit.undone_by)
            yield Event(edit.undone_at, undone, edit.description, edit=edit.pk)
        if not record.undone:
            errors = stored_json(record.before, dict).get("errors")
            yield from _attempts(masking.errors(errors, message.payload) if masking and errors else errors)


def _by(what: str, name: str) -> str:
    return _("%(what)s by %(name)s") % {"what": what, "name": name} if name else what


def records_in(errors: str | None) -> list[dict[str, Any]]:
    """The records of failed attempts in the `errors` column; anything of another form is left out."""
    return [record for record in stored_json(errors, list) if isinstance(record, dict)]


def _moment(text: object) -> datetime | None:
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return moment if timezone.is_aware(moment) else None
