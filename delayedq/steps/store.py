"""The recorded steps of messages: read at the first step of an attempt, each written in the transaction of its step."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from django.db.models import OuterRef

from delayedq.core.lifecycle import FinalOutcome
from delayedq.exceptions import LeaseLost
from delayedq.store.protocol import Finish
from delayedq.store.sweeps import PAGE, Swept, forget_gone

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from django.db.models import QuerySet

    from delayedq.models import RecordedStep
    from delayedq.store.base import Store
    from delayedq.store.protocol import Claimed, Transition

#: What was recorded this long ago may go, if its message has gone.
OLD = timedelta(hours=1)
#: Rows that are read at once.
CHUNK = 1_000

# The lock and the fence are one statement after all that the step does: until it commits, nobody can claim the message,
# and while the step runs, nothing of the queue is locked (SQLite: only by what the step writes). The token alone is the
# fence: a message that was replaced while this attempt runs is still its, until it ends.
_LOCK = "SELECT id FROM delayedq_message WHERE id = %(id)s AND lease_token = %(token)s"


def has_steps(store: Store, claimed: Claimed) -> bool:
    """Whether it has done a step: it has started before. Raises django.db.Error."""
    return _of(store, claimed.id).filter(generation=claimed.generation).exists()


def read_steps(store: Store, claimed: Claimed) -> dict[str, str]:
    """The results (JSON) of the steps that this message has done, by their names. Raises LeaseLost, django.db.Error.

    Records of a generation before are those of what this message has replaced, and go.
    """
    rows = list(_of(store, claimed.id).values_list("generation", "name", "result"))
    if any(generation < claimed.generation for generation, _, _ in rows):
        with store.database.atomic():
            check_held(store, claimed)
            _of(store, claimed.id).filter(generation__lt=claimed.generation).delete()
    return {name: result for generation, name, result in rows if generation == claimed.generation}


def replaced_failures(transitions: Sequence[Transition]) -> list[Finish]:
    """Those that make a dead letter of a message which has replaced another: `forget_replaced` must be told."""
    return [
        one
        for one in transitions
        if isinstance(one, Finish) and one.outcome is FinalOutcome.FAILED and one.claimed.generation > 0
    ]


def forget_replaced(store: Store, ended: Mapping[int, int]) -> None:
    """Within the transaction that ends these messages (generations by their ids): what they have replaced did no step.

    The history has no generation, so whoever brings a message back could not tell its records from those. One query of
    the index, if there are none.
    """
    replaced = {id_: own for id_, own in ended.items() if own > 0}
    recorded = _of(store, *replaced).values_list("id", "message_id", "generation") if replaced else ()
    old = [id_ for id_, message_id, generation in recorded if generation < replaced[message_id]]
    if old:
        _of(store, *replaced).filter(id__in=old).delete()


def begin_generations(store: Store, ids: Collection[int]) -> None:
    """Within the transaction that brings these messages back: their generations begin at 0, and so do their records."""
    records = _of(store, *ids)
    if ids and records.exclude(generation=0).exists():
        records.update(generation=0)


def record_step(store: Store, claimed: Claimed, name: str, result: str) -> None:
    """Within the transaction of the step, at its end. Raises LeaseLost, IntegrityError if it is recorded already."""
    from delayedq.models import RecordedStep  # stores are imported before the models are loaded

    check_held(store, claimed)
    RecordedStep.objects.using(store.alias).create(
        message_id=claimed.id, generation=claimed.generation, name=name, result=result, recorded_at=store.now()
    )


def check_held(store: Store, claimed: Claimed) -> None:
    """Lock the message until the end of the transaction. Raises LeaseLost if the attempt does not hold it any more."""
    lock = f"{_LOCK} {store.database.dialect.lock}"
    if not store.database.rows(lock, {"id": claimed.id, "token": claimed.token}):
        raise LeaseLost(f"Message {claimed.id} is held by another attempt, or has ended: its step was rolled back.")


def recorded_steps(store: Store, id_: int) -> list[RecordedStep]:
    """Those of one message, in their order."""
    return list(_of(store, id_).order_by("id"))


def steps_in_flight(store: Store) -> Iterator[tuple[int, str, str]]:
    """Of all live messages: the id, the kind, and the name of each step that is recorded."""
    from delayedq.models import Message, RecordedStep

    kinds = Message.objects.using(store.alias).filter(id=OuterRef("message_id"))
    found = RecordedStep.objects.using(store.alias).annotate(kind=kinds.values("kind")[:1]).filter(kind__isnull=False)
    return found.order_by("id").values_list("message_id", "kind", "name").iterator(chunk_size=CHUNK)


def forget_steps(store: Store, after: int | None = None, limit: int = PAGE) -> Swept:
    """Delete those of messages that are neither live nor in the history, of the next rows after this one."""
    from delayedq.models import RecordedStep

    return forget_gone(store, RecordedStep.objects.using(store.alias), "recorded_at", OLD, after, limit)


def _of(store: Store, *ids: int) -> QuerySet[RecordedStep]:
    from delayedq.models import RecordedStep

    return RecordedStep.objects.using(store.alias).filter(message_id__in=ids)
