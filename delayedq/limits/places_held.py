"""Places of attempts that run on although their message was taken from them.

Who cancels, stops, unschedules or drops a message while it runs ends the message, and not what its attempt does: that
is told, and ends later. Until then its place stays taken, in a row of its own beside that of the message: a *held
place*, by the id and the token of the attempt. So the message can come again, and wait in another channel. It is freed

- by the settlement of that attempt, which finds that its message is lost, or was replaced; or by its release;
- by a claim when the lease has run out, unless the lease keeper extends it before as it would have renewed the lease.

The same holds for a message that is replaced into another channel while it runs: its attempt has its place where it
started, as long as its lease holds, however often the message is moved. The message has one in its new channel, where
it waits for that attempt and does not count until it runs: `held_until` of a message's own place says so.

Whoever takes a message away inserts here; on PostgreSQL they also lock its place, and wait for a claim at most.
"""

from __future__ import annotations

from itertools import batched
from typing import TYPE_CHECKING

from django.db.models import Q

from delayedq.limits.rules import HEAD

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from datetime import datetime, timedelta

    from django.db.models import QuerySet

    from delayedq.limits.channels import Channels
    from delayedq.limits.requests import Lease
    from delayedq.models import ChannelMessage


#: A message, and the token of its lease.
type HeldAttempt = tuple[int, int]

#: Messages in one statement.
AT_ONCE = 1_000


def held_key(message_id: int, token: int) -> int:
    """The id of the row of a held place: below zero, where no message has one."""
    return ~(message_id ^ token)


def message_of(place: int, token: int) -> int:
    """The message of a place that a claim with this token has taken.

    >>> message_of(held_key(7, 12345), 12345), message_of(7, 12345)
    (7, 7)
    """
    return ~place ^ token if place < 0 else place


def hold(channels: Channels, ids: Collection[int]) -> None:
    """Before these messages are ended, in that transaction: those that run keep their places.

    So do those whose leases ran out and can be renewed yet: a claim that may take leases away frees their places.
    On PostgreSQL, the statement that ends them does it.
    """
    for some in batched(ids, AT_ONCE):
        if held := channels.leased_among(some):
            _insert(
                channels, {place.message_id: place for place in _places(channels).filter(message_id__in=held)}, held
            )


def hold_moved(channels: Channels, homes: Mapping[int, int]) -> None:
    """Before these messages (ids) are lined up in the channels (ids) into which they were replaced or moved.

    Channels that they blocked, as they were to be tried again there, are looked at.
    """
    places = _places(channels).filter(Q(lease_token__gt=0) | Q(urgency=HEAD), message_id__in=homes)
    rows = places.values_list("message_id", "channel_id", "lease_token")
    moved = {id_: token for id_, channel, token in rows if channel != homes[id_]}
    if heads := [id_ for id_, token in moved.items() if token == 0]:
        channels.tell_freed(heads)
    if held := channels.leased_among([id_ for id_, token in moved.items() if token > 0]) if moved else {}:
        _insert(channels, {place.message_id: place for place in _places(channels).filter(message_id__in=held)}, held)
        _places(channels).filter(message_id__in=held).update(held_until=channels.now())


def hold_waiting(channels: Channels, ids: Collection[int]) -> None:
    """Before the leases of these messages, which ran out, are taken away, in that transaction; they wait again.

    On PostgreSQL, the statement that takes them away does it.
    """
    if ids:
        hold(channels, ids)
        _places(channels).filter(message_id__in=ids, lease_token__gt=0).update(held_until=channels.now())


def _insert(channels: Channels, places: Mapping[int, ChannelMessage], held: Mapping[int, Lease]) -> None:
    from delayedq.models import ChannelMessage

    until = _until(channels, held)
    rows = [
        ChannelMessage(
            message_id=held_key(id_, lease.token or 0),
            channel_id=places[id_].channel_id,
            group_id=places[id_].group_id,
            urgency=places[id_].urgency,
            due_at=places[id_].due_at,
            lease_token=lease.token or 0,
            held_until=until[id_],
        )
        for id_, lease in held.items()
        if id_ in places
    ]
    ChannelMessage.objects.using(channels.database.alias).bulk_create(
        rows,
        update_conflicts=True,
        update_fields=["held_until"],
        unique_fields=channels.unique("message_id"),
        batch_size=AT_ONCE,
    )


def _until(channels: Channels, held: Mapping[int, Lease]) -> dict[int, datetime]:
    """When their leases run out, or ran out; what was renewed beside its row, as somebody has a lock, does later."""
    now = channels.now()
    late = [id_ for id_, lease in held.items() if lease.until is None or lease.until <= now]
    beside = renewed_beside(channels, {(id_, held[id_].token or 0) for id_ in late}, now) if late else {}
    return {id_: beside.get((id_, lease.token or 0)) or lease.until or now for id_, lease in held.items()}


def renewed_beside(
    channels: Channels, attempts: Collection[tuple[int, int]], now: datetime
) -> dict[HeldAttempt, datetime]:
    """The leases of those of these attempts that were renewed beside their rows, and hold."""
    from delayedq.models import LockedRenewal

    ids = [id_ for id_, _ in attempts]
    rows = LockedRenewal.objects.using(channels.database.alias).filter(message_id__in=ids, leased_until__gt=now)
    found = {(one.message_id, one.lease_token): one.leased_until for one in rows}
    return {attempt: until for attempt, until in found.items() if attempt in attempts}


def hold_longer(channels: Channels, lost: Iterable[tuple[int, int]], lease: timedelta) -> None:
    """Their attempts run, though they have lost their messages: extend their places, unless a claim has freed them."""
    until = channels.now() + lease
    with channels.database.atomic():
        _unlocked(channels, [held_key(*pair) for pair in lost]).filter(held_until__lt=until).update(held_until=until)


def give_up(channels: Channels, attempts: Collection[HeldAttempt], now: datetime) -> set[int]:
    """Free the places that are held for these attempts, and ran out. Returns the keys of those that stay.

    These are those that another transaction has locked, as it extends them; and those whose lease was renewed beside
    the row of the message, while the transaction that ended the message was open.
    """
    keys = {held_key(*attempt) for attempt in attempts}
    beside = renewed_beside(channels, attempts, now) if keys else {}
    for attempt, until in beside.items():
        _unlocked(channels, [held_key(*attempt)]).update(held_until=until)
    free(channels, keys - {held_key(*attempt) for attempt in beside})
    return set(_places(channels).filter(message_id__in=keys).values_list("message_id", flat=True)) if keys else set()


def free(channels: Channels, keys: Collection[int]) -> None:
    """These attempts have ended, or ran out. A row that another transaction has locked stays, and is found again."""
    if keys:
        with channels.database.atomic(savepoint=False):
            _unlocked(channels, keys).delete()


def let_go(channels: Channels, attempts: Collection[HeldAttempt], released: Collection[int] = ()) -> None:
    """`free` the places that are held for these attempts, and have their channels looked at.

    So are those of these messages (`released`), which wait again. On PostgreSQL, the statement that releases them does
    it.
    """
    keys = {held_key(*attempt) for attempt in attempts}
    with channels.database.atomic(savepoint=False):
        free(channels, keys & channels.tell_freed([*keys, *released]))


def _places(channels: Channels) -> QuerySet[ChannelMessage]:
    from delayedq.models import ChannelMessage

    return ChannelMessage.objects.using(channels.database.alias)


def unlocked(channels: Channels, keys: Collection[int]) -> QuerySet[ChannelMessage]:
    """Those of these places that no other transaction has locked."""
    return channels.database.unlocked(_places(channels).filter(message_id__in=keys)).order_by("message_id")


def _unlocked(channels: Channels, keys: Collection[int]) -> QuerySet[ChannelMessage]:
    """The same, to be written."""
    if not channels.database.connection.features.has_select_for_update_skip_locked:
        return _places(channels).filter(message_id__in=keys)
    found = unlocked(channels, keys).values_list("message_id", flat=True)
    return _places(channels).filter(message_id__in=list(found))
