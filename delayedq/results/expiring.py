"""Return values that go before their history: noted where their message ends, removed when their time is over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.db.models import Q

from delayedq.store.feature import FEATURES, Feature, register
from delayedq.store.progress import forget_progress
from delayedq.store.protocol import Finish
from delayedq.store.retention import unneeded_condition
from delayedq.store.sweeps import PAGE, Swept, register_sweep

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from delayedq.store.base import Store
    from delayedq.store.protocol import Settled, Transition


class ExpiringResults(Feature):
    """Ends whose return value is kept for a time of its own."""

    def concerned(self, transitions: Sequence[Transition]) -> Sequence[Transition]:
        return with_retention(transitions)

    def settled(self, store: Store, transitions: Sequence[Transition], settled: Settled) -> bool:
        note_results(store, with_retention(transitions), settled)
        return False


def with_retention(transitions: Sequence[Transition]) -> list[Finish]:
    """Those that end messages whose return value goes before their history."""
    return [one for one in transitions if isinstance(one, Finish) and one.result_retention is not None and one.result]


def note_results(store: Store, finishes: Sequence[Finish], settled: Settled) -> None:
    """Within the transaction that settles them: until when their return values are kept."""
    from delayedq.models import ExpiringResult  # stores are imported before the models are loaded

    untouched = settled.untouched
    now = store.now()
    rows = [
        ExpiringResult(message_id=one.claimed.id, expires_at=now + one.result_retention)
        for one in sorted(finishes, key=lambda finish: finish.claimed.id)
        if one.claimed.id not in untouched and one.result_retention is not None
    ]
    ExpiringResult.objects.using(store.alias).bulk_create(rows, batch_size=PAGE, ignore_conflicts=True)


def expire_results(store: Store, after: tuple[datetime, int] | None = None, limit: int = PAGE) -> Swept:
    """Remove return values whose time is over; the next sweep goes on `after` what this one has reached.

    Those that an open batch of the archive compares, and those that features may still read, stay for a
    later sweep. What another transaction has locked stays too. Raises django.db.Error.
    """
    from delayedq.models import ExpiringResult, FinishedMessage

    rows = ExpiringResult.objects.using(store.alias)
    expired = rows.filter(expires_at__lte=store.now()).order_by("expires_at", "message_id")
    if after is not None:
        expired = expired.filter(Q(expires_at__gt=after[0]) | Q(expires_at=after[0], message_id__gt=after[1]))
    page = list(expired.values_list("expires_at", "message_id")[:limit])
    if not page:
        return Swept(0, None)
    ids = [id_ for _, id_ in page]
    with store.database.atomic():
        history = FinishedMessage.objects.using(store.alias).filter(id__in=ids, result__isnull=False)
        removable = history
        for needed in (feature.needed_results(store.alias) for feature in FEATURES):
            removable = removable if needed is None else removable.exclude(needed)
        keep = unneeded_condition(store.alias)
        removable = removable if keep is None else removable.filter(keep)
        found = list(store.database.unlocked(removable).values_list("id", flat=True))
        removed = history.filter(id__in=found).update(result=None)
        kept = set(history.values_list("id", flat=True))
        rows.filter(message_id__in=[id_ for id_ in ids if id_ not in kept]).delete()
    return Swept(removed, page[-1] if len(page) == limit else None)


register(ExpiringResults())
register_sweep(expire_results)
register_sweep(forget_progress)
