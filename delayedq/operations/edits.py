"""Edits: an operator's changes to many messages at once, in small transactions, each recorded so that it can be undone.

Skipped, and counted with the reason, are messages that run, that ended, that changed after they were read, or that
another edit changed after `as_of` (for example when the same form is sent twice). One call does at most CHUNKS chunks
and returns the id to continue after.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import transaction
from django.db.models import F
from django.utils.translation import gettext_noop

from delayedq.core.edits import LanePosition
from delayedq.limits.channels import Channels
from delayedq.models import Edit, EditedMessage, Message, is_held
from delayedq.queue.address import declared
from delayedq.steps.store import forget_replaced
from delayedq.store import operator_store
from delayedq.store.operator import Move, Seen
from delayedq.store.protocol import BARE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from delayedq.core.edits import Change
    from delayedq.operations.browsing import Chosen
    from delayedq.store.base import Store

#: One call does at most this many chunks of CHUNK messages.
CHUNKS = 10

#: An edit can be undone, and is kept, for this long.
KEPT_FOR = timedelta(days=30)

# Values of `Edit.action`.
RESCHEDULE, CANCEL, RETRY = gettext_noop("reschedule"), gettext_noop("cancel"), gettext_noop("retry")

# Of what is not done to messages: a pause or a resume, and anything else, which has no undo.
PAUSE, ACT = gettext_noop("pause"), gettext_noop("act")

# Why a message was skipped.
RUNNING = gettext_noop("running")

ENDED = gettext_noop("ended")

AS_WANTED = gettext_noop("already as requested")

BARE_QUEUE = gettext_noop("in a bare queue")

#: By what this process knows of the queue.
UNDECLARED = (
    "in a bare queue whose consumers poll the priorities {declared} and not {priority}, "
    "as far as this process knows: declare it where the queue is made, by DelayedQueue(priorities=...)"
)

MEANWHILE = gettext_noop("changed meanwhile")

KEY_TAKEN = gettext_noop("their key was taken")


class Record(NamedTuple):
    """The record of one changed message: its values before and after, as JSON values."""

    id: int
    generation: int
    before: dict[str, Any]
    after: dict[str, Any]


class Done(NamedTuple):
    """The result of one chunk: the changed messages, and how many were skipped, by reason."""

    records: Sequence[Record]
    skipped: Counter[str]


#: Writes one chunk that was read before; called in the transaction that also stores the records.
Write = Callable[[], Done]

#: Changes live messages that are still as seen, and counts those that it skips; returns what it changed.
WriteSeen = Callable[[Sequence[Seen], Counter[str]], list[Record]]


class EditProgress(NamedTuple):
    """The result of one call. `after`: pass it to the next call to continue; None: all is done."""

    changed: int
    skipped: Counter[str]
    after: int | None


def begin(store: Store, action: str, description: str, made_by: str = "", why: str = "") -> Edit:
    """Create an edit that has changed nothing yet; `action` is RESCHEDULE, CANCEL or RETRY.

    Also deletes up to 10 edits that are older than KEPT_FOR.
    """
    now = store.now()
    edits = Edit.objects.using(store.alias)
    edits.filter(id__in=list(edits.filter(made_at__lt=now - KEPT_FOR).values_list("id", flat=True)[:10])).delete()
    return edits.create(action=action, description=description, made_by=made_by, made_at=now, why=why)


def reschedule(
    store: Store,
    edit: Edit,
    chosen: Chosen,
    change: Change,
    as_of: datetime,
    after: int = 0,
    most: int | None = None,
) -> EditProgress:
    """Change the time, queue or priority of waiting messages, at most CHUNKS chunks in one call.

    `as_of`: when the operator saw them; messages that another edit changed later are skipped. `after`: the `after` of
    the previous call's EditProgress. `most`: the edit ends when it has changed so many, in all its calls.

        progress = reschedule(store, edit, Ticked([4, 7]), Shift(timedelta(hours=2)), store.now())
    """

    def write(seen: Sequence[Seen], skipped: Counter[str]) -> list[Record]:
        moves = _moves(seen, change, as_of, edit.changed, skipped)
        moved = operator_store(store.alias).move(moves)
        return [_moved(move) for move in moves if move.seen.id in moved]

    return carry_out(store, edit, chosen.chunks(store.alias, after), partial(_read, store, edit, as_of, write), most)


def cancel(
    store: Store, edit: Edit, chosen: Chosen, as_of: datetime, after: int = 0, most: int | None = None
) -> EditProgress:
    """End waiting messages with the outcome cancelled. The arguments are those of `reschedule`."""

    def write(seen: Sequence[Seen], _: Counter[str]) -> list[Record]:
        ended = operator_store(store.alias).cancel(seen)
        Channels.of(store).tell_freed(ended)
        forget_replaced(store, {one.id: one.generation for one in seen if one.id in ended})
        return [_cancelled(one) for one in seen if one.id in ended]

    return carry_out(store, edit, chosen.chunks(store.alias, after), partial(_read, store, edit, as_of, write), most)


def carry_out(
    store: Store,
    edit: Edit,
    chunks: Iterable[list[int]],
    read: Callable[[list[int]], Write],
    most: int | None = None,
) -> EditProgress:
    """Do at most CHUNKS chunks of ids: read each, then write it and its records in one transaction."""
    before, skipped, calls, last = edit.changed, Counter[str](), 0, 0
    for ids in islice(_limited(chunks, edit, most), CHUNKS):
        write = read(ids)
        with transaction.atomic(using=store.alias):
            done = write()
            _remember(store, edit, done)
        skipped += done.skipped
        calls, last = calls + 1, ids[-1]
    return EditProgress(edit.changed - before, skipped, last if calls == CHUNKS else None)


def _limited(chunks: Iterable[list[int]], edit: Edit, most: int | None) -> Iterator[list[int]]:
    """The chunks until the edit has changed `most` messages, and no chunk with more than may still be changed."""
    for ids in chunks:
        rest = list(ids)
        while most is not None and len(rest) > most - edit.changed > 0:
            part = most - edit.changed
            yield rest[:part]
            rest = rest[part:]
        if most is not None and edit.changed >= most:
            return
        yield rest


def _remember(store: Store, edit: Edit, done: Done) -> None:
    EditedMessage.objects.using(store.alias).bulk_create(
        EditedMessage(
            edit=edit,
            message_id=record.id,
            generation=record.generation,
            before=json.dumps(record.before),
            after=json.dumps(record.after),
        )
        for record in done.records
    )
    changed, skipped = len(done.records), done.skipped.total()
    Edit.objects.using(store.alias).filter(pk=edit.pk).update(
        changed=F("changed") + changed, skipped=F("skipped") + skipped
    )
    edit.changed += changed
    edit.skipped += skipped


def edited_since(store: Store, edit: Edit, ids: Iterable[int], moment: datetime) -> set[int]:
    """The ids among these that another edit changed after `moment`."""
    edited = EditedMessage.objects.using(store.alias).filter(message_id__in=list(ids), edit__made_at__gt=moment)
    return set(edited.exclude(edit=edit).values_list("message_id", flat=True))


# One chunk of live messages
def _read(store: Store, edit: Edit, as_of: datetime, change: WriteSeen, ids: list[int]) -> Write:
    """The first half of a chunk; what it returns is the second."""
    skipped: Counter[str] = Counter()
    seen = _changeable(store, edit, ids, as_of, skipped)
    return partial(_write, change, seen, skipped)


def _write(change: WriteSeen, seen: list[Seen], skipped: Counter[str]) -> Done:
    known = skipped.total()
    records = change(seen, skipped)
    skipped[MEANWHILE] += len(seen) - len(records) - (skipped.total() - known)
    return Done(records, +skipped)


def _changeable(store: Store, edit: Edit, ids: list[int], as_of: datetime, skipped: Counter[str]) -> list[Seen]:
    """Those of these messages that no worker holds and no other edit changed after `as_of`; counts the skipped ones."""
    messages = Message.objects.using(store.alias).filter(id__in=ids)
    now, edited = store.now(), edited_since(store, edit, ids, as_of)
    rows = messages.annotate(is_held=is_held(now)).values_list(*Seen._fields, "is_held")
    read = {row[0]: row for row in rows}
    running = {id_ for id_, row in read.items() if row[-1]}
    skipped[ENDED] += len(ids) - len(read)
    skipped[RUNNING] += len(running)
    skipped[MEANWHILE] += len(edited - running)
    return [Seen._make(read[id_][:-1]) for id_ in ids if id_ in read and id_ not in running | edited]


def _moves(seen: Sequence[Seen], change: Change, as_of: datetime, rank: int, skipped: Counter[str]) -> list[Move]:
    moves: list[Move] = []
    for one in seen:
        draw = random.random()  # noqa: S311 - spreads load, guards nothing
        place = LanePosition(one.scheduled_at, one.queue, one.priority)
        changed = change(place, as_of, rank + len(moves), draw)
        if BARE in one.queue and (refusal := _refusal(place, changed)):
            skipped[refusal] += 1
        elif changed == place:
            skipped[AS_WANTED] += 1
        else:
            moves.append(Move(one, *changed))
    return moves


def _refusal(place: LanePosition, changed: LanePosition) -> str:
    """Why a message of a bare queue can't be moved so; empty: it can.

    Its consumers poll one queue, at the priorities that it declares: nobody would find the message elsewhere.
    """
    priorities = declared(place.queue)
    if changed.queue != place.queue:
        return BARE_QUEUE
    if changed.priority == place.priority or changed.priority in priorities:
        return ""
    return UNDECLARED.format(declared=", ".join(map(str, priorities)), priority=changed.priority)


# Records
def place_of(place: Seen | Move) -> dict[str, Any]:
    return {"scheduled_at": place.scheduled_at.isoformat(), "queue": place.queue, "priority": place.priority}


def _moved(move: Move) -> Record:
    attempt = {"attempt": move.seen.attempt}
    return Record(move.seen.id, move.seen.generation, place_of(move.seen) | attempt, place_of(move) | attempt)


def _cancelled(seen: Seen) -> Record:
    return Record(seen.id, seen.generation, place_of(seen) | {"attempt": seen.attempt}, {"outcome": "cancelled"})


def seen_in(record: EditedMessage, remembered: str) -> Seen:
    """The message as the text of a record (`before` or `after`) describes it."""
    place = json.loads(remembered)
    time = datetime.fromisoformat(place["scheduled_at"])
    return Seen(record.message_id, record.generation, place["attempt"], time, place["queue"], place["priority"])


# Ask a running task to stop: its message ends as cancelled, and its attempt loses its lease.
#
# Nothing runs the message again. The attempt is told soon on PostgreSQL, elsewhere when its lease is to be renewed, at
# most a third of LEASE later: an async task is cancelled then, and so is a sync one that is `interruptible`;
# `current_message().cancelled` becomes True in any other, which runs on until it looks. What the attempt returns is
# refused. There is no undo: the attempt may still run, and a second one would run beside it.


#: As it stands in `Edit.action`.
STOP = gettext_noop("stop")


def stop(store: Store, message: Message, made_by: str = "", why: str = "") -> Edit | None:
    """End a running message as cancelled; None if no worker holds it, or it changed since `message` was read."""
    seen = Seen._make(getattr(message, name) for name in Seen._fields)
    with transaction.atomic(using=store.alias):
        if not operator_store(store.alias).stop([seen]):
            return None
        edit = begin(store, STOP, f"Stop {message}", made_by, why)
        EditedMessage.objects.using(store.alias).create(
            edit=edit,
            message_id=message.pk,
            generation=seen.generation,
            before=json.dumps(place_of(seen) | {"attempt": seen.attempt}),
            after=json.dumps({"outcome": "cancelled"}),
        )
        edit.changed = 1
        edit.save(using=store.alias, update_fields=["changed"])
        store.tell_stopped_after_commit()
    return edit
