"""The recorded steps of messages: read at the first step of an attempt, each written in the transaction of its step."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from django.db.models import Exists, OuterRef

from delayedq.exceptions import LeaseLost

if TYPE_CHECKING:
    from collections.abc import Iterator

    from delayedq.models import RecordedStep
    from delayedq.store.base import Store
    from delayedq.store.protocol import Claimed

#: What was recorded this long ago may go, if its message has gone.
OLD = timedelta(hours=1)
#: Rows that are deleted at once.
CHUNK = 1_000

# The lock and the fence are one statement after all that the step does: until it commits, nobody can claim the message,
# and while the step runs, nothing of the queue is locked (SQLite: only by what the step writes). The token alone is the
# fence: a message that was replaced while this attempt runs is still its, until it ends.
_LOCK = "SELECT id FROM delayedq_message WHERE id = %(id)s AND lease_token = %(token)s"
LOCKED = {"postgresql": f"{_LOCK} FOR NO KEY UPDATE", "mysql": f"{_LOCK} FOR UPDATE", "sqlite": _LOCK}


def read_steps(store: Store, claimed: Claimed) -> dict[str, str]:
    """The results (JSON) of the steps that this message has done, by their names. Raises LeaseLost, django.db.Error."""
    rows = list(_of(store, claimed.id).values_list("generation", "name", "result"))
    if all(generation == claimed.generation for generation, _, _ in rows):
        return {name: result for _, name, result in rows}
    return _after_replacement(store, claimed)


def _after_replacement(store: Store, claimed: Claimed) -> dict[str, str]:
    """A replacement forgets what the one before it has done. One that was redriven has generation 0 again: it goes on
    with the steps of its last generation.
    """
    with store.database.atomic():
        check_held(store, claimed)
        steps = _of(store, claimed.id)
        last = max(steps.values_list("generation", flat=True), default=0)
        steps.filter(generation__lt=max(last, claimed.generation)).delete()
        steps.update(generation=claimed.generation)
        return dict(steps.values_list("name", "result"))


def record_step(store: Store, claimed: Claimed, name: str, result: str) -> None:
    """Within the transaction of the step, at its end. Raises LeaseLost, IntegrityError if it is recorded already."""
    from delayedq.models import RecordedStep  # stores are imported before the models are loaded

    check_held(store, claimed)
    RecordedStep.objects.using(store.alias).create(
        message_id=claimed.id, generation=claimed.generation, name=name, result=result, recorded_at=store.now()
    )


def check_held(store: Store, claimed: Claimed) -> None:
    """Lock the message until the end of the transaction. Raises LeaseLost if the attempt does not hold it any more."""
    lock = LOCKED[store.database.connection.vendor]
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


def forget_steps(store: Store) -> int:
    """Delete those of messages that are neither live nor in the history; returns how many."""
    from delayedq.models import FinishedMessage, Message, RecordedStep

    messages, history = (model.objects.using(store.alias).filter(id=OuterRef("message_id")) for model in (
        Message, FinishedMessage
    ))  # fmt: skip
    steps = RecordedStep.objects.using(store.alias)
    old = steps.filter(recorded_at__lt=store.now() - OLD)
    if not old.exists():
        return 0
    gone = old.filter(~Exists(messages), ~Exists(history)).values_list("id", flat=True)
    deleted = 0
    while some := list(gone[:CHUNK]):
        deleted += steps.filter(id__in=some).delete()[0]
    return deleted


def _of(store: Store, id_: int):  # type: ignore[no-untyped-def]
    from delayedq.models import RecordedStep

    return RecordedStep.objects.using(store.alias).filter(message_id=id_)
