"""Edits: what an operator does to many messages at once, in small transactions, each recorded so that it can be undone.

A message that runs, ended, or is otherwise not what it was when it was read is left alone, and counted as skipped with
the reason; so is one that was edited since the operator looked, say by the same form sent twice. A call does so many
messages and says how far it came; whoever made it carries on from there.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import transaction
from django.db.models import F

from delayedq.core.edits import Place
from delayedq.models import Edit, EditedMessage, Message
from delayedq.store.edits import Move, Seen
from delayedq.store.protocol import BARE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from delayedq.core.edits import Change
    from delayedq.operations.selecting import Chosen
    from delayedq.store.protocol import Store

#: A call does so many chunks.
CHUNKS = 10

#: So long an edit can be undone, and is remembered.
REMEMBERED = timedelta(days=30)

# Actions, as they stand in `Edit.action`.
RESCHEDULE, CANCEL, RETRY = "reschedule", "cancel", "retry"

# Why a message was skipped.
RUNNING = "running"
ENDED = "ended"
AS_WANTED = "already as wanted"
BARE_QUEUE = "in a bare queue"
MEANWHILE = "changed meanwhile"
KEY_TAKEN = "their key was taken"


class Record(NamedTuple):
    """A message that was changed: JSON values before and after."""

    id: int
    generation: int
    before: dict[str, Any]
    after: dict[str, Any]


class Done(NamedTuple):
    """What became of one chunk."""

    records: Sequence[Record]
    skipped: Counter[str]


#: Does what was prepared for a chunk.
Write = Callable[[], Done]


class Progress(NamedTuple):
    """How far a call came. `after`: the id to carry on from; None: all is done."""

    changed: int
    skipped: Counter[str]
    after: int | None


def begin(store: Store, action: str, description: str, made_by: str = "") -> Edit:
    """A new edit, which has changed nothing yet. What is too old to be undone is forgotten."""
    now = store.now()
    edits = Edit.objects.using(store.alias)
    edits.filter(id__in=list(edits.filter(made_at__lt=now - REMEMBERED).values_list("id", flat=True)[:10])).delete()
    return edits.create(action=action, description=description, made_by=made_by, made_at=now)


def reschedule(store: Store, edit: Edit, chosen: Chosen, change: Change, as_of: datetime, after: int = 0) -> Progress:
    """Change when and where waiting messages wait. `as_of`: when the operator looked."""

    def write(seen: Sequence[Seen], skipped: Counter[str]) -> list[Record]:
        moves = _moves(seen, change, as_of, edit.changed, skipped)
        moved = store.move(moves)
        return [_moved(move) for move in moves if move.seen.id in moved]

    return carry_out(store, edit, chosen.chunks(store.alias, after), _editing(store, edit, as_of, write))


def cancel(store: Store, edit: Edit, chosen: Chosen, as_of: datetime, after: int = 0) -> Progress:
    """End waiting messages as cancelled."""

    def write(seen: Sequence[Seen], _: Counter[str]) -> list[Record]:
        ended = store.cancel(seen)
        return [_cancelled(one) for one in seen if one.id in ended]

    return carry_out(store, edit, chosen.chunks(store.alias, after), _editing(store, edit, as_of, write))


def carry_out(store: Store, edit: Edit, chunks: Iterable[list[int]], read: Callable[[list[int]], Write]) -> Progress:
    """Do up to CHUNKS chunks of ids: read, then write in a transaction that also records what was changed."""
    before, skipped, calls, last = edit.changed, Counter[str](), 0, 0
    for ids in islice(chunks, CHUNKS):
        write = read(ids)
        with transaction.atomic(using=store.alias):
            done = write()
            _remember(store, edit, done)
        skipped += done.skipped
        calls, last = calls + 1, ids[-1]
    return Progress(edit.changed - before, skipped, last if calls == CHUNKS else None)


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
    """Those that another edit changed since then."""
    edited = EditedMessage.objects.using(store.alias).filter(message_id__in=list(ids), edit__made_at__gt=moment)
    return set(edited.exclude(edit=edit).values_list("message_id", flat=True))


# One chunk of live messages


def _editing(
    store: Store, edit: Edit, as_of: datetime, write: Callable[[Sequence[Seen], Counter[str]], list[Record]]
) -> Callable[[list[int]], Write]:
    def read(ids: list[int]) -> Write:
        skipped: Counter[str] = Counter()
        seen = _read(store, edit, ids, as_of, skipped)
        return lambda: _written(seen, skipped)

    def _written(seen: list[Seen], skipped: Counter[str]) -> Done:
        known = skipped.total()
        records = write(seen, skipped)
        skipped[MEANWHILE] += len(seen) - len(records) - (skipped.total() - known)
        return Done(records, +skipped)

    return read


def _read(store: Store, edit: Edit, ids: list[int], as_of: datetime, skipped: Counter[str]) -> list[Seen]:
    """Those of these messages that no worker holds, and that nobody edited since."""
    messages = Message.objects.using(store.alias).filter(id__in=ids)
    now, edited = store.now(), edited_since(store, edit, ids, as_of)
    rows = messages.values_list(*Seen._fields, "lease_token", "leased_until")
    read = {row[0]: row for row in rows}
    running = {id_ for id_, row in read.items() if row[-2] is not None and row[-1] > now}
    skipped[ENDED] += len(ids) - len(read)
    skipped[RUNNING] += len(running)
    skipped[MEANWHILE] += len(edited - running)
    return [Seen._make(read[id_][:-2]) for id_ in ids if id_ in read and id_ not in running | edited]


def _moves(seen: Sequence[Seen], change: Change, as_of: datetime, rank: int, skipped: Counter[str]) -> list[Move]:
    moves: list[Move] = []
    for one in seen:
        draw = random.random()  # noqa: S311 - spreads load, guards nothing
        place = Place(one.scheduled_at, one.queue, one.priority)
        changed = change(place, as_of, rank + len(moves), draw)
        if BARE in one.queue and changed.queue != one.queue:
            skipped[BARE_QUEUE] += 1
        elif changed == place:
            skipped[AS_WANTED] += 1
        else:
            moves.append(Move(one, *changed))
    return moves


# What is remembered


def place_of(place: Seen | Move) -> dict[str, Any]:
    return {"scheduled_at": place.scheduled_at.isoformat(), "queue": place.queue, "priority": place.priority}


def _moved(move: Move) -> Record:
    attempt = {"attempt": move.seen.attempt}
    return Record(move.seen.id, move.seen.generation, place_of(move.seen) | attempt, place_of(move) | attempt)


def _cancelled(seen: Seen) -> Record:
    return Record(seen.id, seen.generation, place_of(seen) | {"attempt": seen.attempt}, {"outcome": "cancelled"})


def seen_in(record: EditedMessage, remembered: str) -> Seen:
    """A message as an edit remembers it, before or after."""
    place = json.loads(remembered)
    time = datetime.fromisoformat(place["scheduled_at"])
    return Seen(record.message_id, record.generation, place["attempt"], time, place["queue"], place["priority"])
