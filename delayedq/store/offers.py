"""The upsert: what every store does with an offer, and the SQL they share."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from django.utils import timezone

from delayedq.conf import get_settings
from delayedq.core.bounds import KEY_LENGTH, NAME_LENGTH, check_channel, is_storable
from delayedq.exceptions import InvalidKey, InvalidMessage, InvalidTime, PayloadTooLarge
from delayedq.sql.columns import MESSAGE, listed
from delayedq.store.protocol import Offered, OfferOutcome, OnConflict

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from delayedq.store.protocol import Offer

SECOND = timedelta(seconds=1)

# On PostgreSQL and SQLite alike, the partial unique index delayedq_key decides what a conflict is, and the row it finds
# is locked at its newest version: two offers of a key can't both create it, and an offer that meets the end of its key
# creates it anew.
#
# A replaced message starts over: no attempts, no errors. While an attempt runs, `scheduled_at` is that attempt's, so
# every policy except KEEP uses the offered time for the next run. Once that is offered, it is the next run's, which has
# no attempts yet. Offered again as it stands, nothing is written.
_UPDATE = """
ON CONFLICT (kind, key) WHERE key IS NOT NULL DO UPDATE SET
    queue = excluded.queue, priority = excluded.priority, max_attempts = excluded.max_attempts,
    payload = excluded.payload, metadata = excluded.metadata,
    scheduled_at = CASE WHEN {moves} THEN excluded.scheduled_at ELSE message.scheduled_at END,
    scheduled_at_initially = CASE WHEN {moves} THEN excluded.scheduled_at ELSE message.scheduled_at_initially END,
    attempt = 0, errors = NULL, generation = message.generation + 1
WHERE message.payload <> excluded.payload OR message.queue <> excluded.queue
    OR message.priority <> excluded.priority OR message.max_attempts <> excluded.max_attempts
    OR coalesce(message.metadata, '') <> coalesce(excluded.metadata, '')
    OR ({moves}) AND message.scheduled_at_initially <> excluded.scheduled_at
"""
_RUNS = "message.lease_token IS NOT NULL AND message.attempt > 0"

CONFLICT = {
    OnConflict.REPLACE: _UPDATE.format(moves="1 = 1"),
    OnConflict.KEEP: "ON CONFLICT (kind, key) WHERE key IS NOT NULL DO NOTHING",
    OnConflict.PRESERVE_TIME: _UPDATE.format(moves=_RUNS),
    OnConflict.EARLIEST: _UPDATE.format(moves=f"{_RUNS} OR excluded.scheduled_at < message.scheduled_at"),
    OnConflict.LATEST: _UPDATE.format(moves=f"{_RUNS} OR excluded.scheduled_at > message.scheduled_at"),
}

INSERT = f"INSERT INTO delayedq_message AS message ({listed(MESSAGE)})"

#: The clock of a host that offers messages may be this far behind the database's without delaying a wake-up.
CLOCK_SKEW = timedelta(minutes=1)

#: A message that was never replaced has generation 0: it was created by this very statement.
RETURNING = "RETURNING id, generation, kind, key, created_at"


def offered(row: Sequence[Any] | None) -> Offered:
    """The row of RETURNING in words."""
    if row is None:
        return Offered(OfferOutcome.IGNORED, None)
    return Offered(OfferOutcome.UPDATED if row[1] else OfferOutcome.CREATED, row[0], row[4])


def check(offer: Offer) -> None:
    """Refuse what can't be stored, with an InvalidMessage that says why."""
    if offer.key is not None:
        check_key(offer.key)
    if offer.scheduled_at is not None:
        check_time(offer.scheduled_at)
    check_name("queue", offer.queue)
    check_name("kind", offer.kind)
    check_size("payload", offer.payload)
    check_size("metadata", offer.metadata or "")
    if offer.channel is not None:
        check_channel_name(offer.channel)


def check_size(name: str, text: str) -> None:
    """Refuse with PayloadTooLarge what takes more bytes than the settings allow; `name` says what it is."""
    size, limit = len(text.encode()), get_settings().MAX_PAYLOAD_BYTES
    if size > limit:
        raise PayloadTooLarge(f"The {name} takes {size:,} bytes; DELAYEDQ['MAX_PAYLOAD_BYTES'] allows {limit:,}.")


def check_key(key: object) -> None:
    """Refuse with InvalidKey what no message can have."""
    if not isinstance(key, str):
        raise InvalidKey(f"A key is a text, not {key!r}.")
    if not 1 <= len(key) <= KEY_LENGTH:
        raise InvalidKey(f"A key has 1 to {KEY_LENGTH} characters, not {len(key)}: {key[:40]!r}.")
    if not is_storable(key):
        raise InvalidKey(f"A key can't contain NUL or a lone surrogate: {key!r}.")


def check_channel_name(channel: object) -> None:
    """Refuse with InvalidMessage what is no name of a channel."""
    try:
        check_channel(channel)
    except ValueError as error:
        raise InvalidMessage(f"{error}.") from None


@lru_cache
def check_name(name: str, text: str) -> None:
    """Refuse with InvalidMessage what can be neither a queue nor a kind; `name` says which it is."""
    if not text.strip() or len(text) > NAME_LENGTH or not is_storable(text):
        raise InvalidMessage(f"A {name} is a text of 1 to {NAME_LENGTH} characters, not {text!r}.")


def check_time(when: object) -> None:
    """Refuse with InvalidTime what is no aware datetime."""
    if not isinstance(when, datetime):
        raise InvalidTime(f"A time is an aware datetime, such as timezone.now() + timedelta(hours=1), not {when!r}.")
    if when.tzinfo is UTC:
        return
    if timezone.is_naive(when):
        raise InvalidTime(f"A time must be aware: {when!r} has no time zone; see django.utils.timezone.make_aware().")
    if when.utcoffset() % SECOND:  # type: ignore[operator]  # it is aware
        raise InvalidTime(f"The UTC offset of a time is in whole seconds, not {when.utcoffset()}: {when!r}.")
    try:
        when.astimezone(UTC)
    except OverflowError:
        raise InvalidTime(f"{when!r} is outside the range of times that can be stored.") from None


def time_in(now: datetime, delay: object) -> datetime:
    """The time that is `delay` after now. Refuse with InvalidTime what is no timedelta, or leads beyond all times."""
    if not isinstance(delay, timedelta):
        raise InvalidTime(f"A delay is a timedelta, such as timedelta(minutes=5), not {delay!r}.")
    try:
        return now + delay
    except OverflowError:
        raise InvalidTime(f"A delay of {delay} from now is outside the range of times that can be stored.") from None


def in_lock_order(offers: Sequence[Offer], positions: Iterable[int]) -> list[int]:
    """These positions in the order of kind and key, in which all batches lock: they can't deadlock.

    What has no key locks nothing, and comes first, as it was given. Databases sort the texts alike, by code points.
    """

    def names(position: int) -> tuple[str, str]:
        offer = offers[position]
        return ("", "") if offer.key is None else (offer.kind, offer.key)

    return sorted(positions, key=names)


def have_own_times(offers: Sequence[Offer]) -> bool:
    """Whether no two are due at the same time: then the order of their ids says nothing."""
    times = {offer.scheduled_at for offer in offers}
    return None not in times and len(times) == len(offers)


def may_be_due_soon(times: Iterable[datetime | None]) -> bool:
    """Whether one of these times (None: now) may come before the next scan of the workers, by this host's clock.

    If this clock is slower than CLOCK_SKEW allows for, that scan still finds the message.
    """
    soon = timezone.now() + get_settings().POLL_INTERVAL + CLOCK_SKEW
    return any(moment is None or moment <= soon for moment in times)


def waves(offers: Sequence[Offer]) -> list[list[int]]:
    """The positions of the offers in rounds, so that no key occurs twice in one.

    One statement can't touch a row twice, and a later offer of a key must find the earlier one.
    """
    keyed = [(offer.kind, offer.key) for offer in offers if offer.key is not None]
    if len({*keyed}) == len(keyed):
        return [list(range(len(offers)))] if offers else []
    rounds: list[list[int]] = []
    turns: Counter[tuple[str, str]] = Counter()
    for position, offer in enumerate(offers):
        turn = 0
        if offer.key is not None:
            turn = turns[offer.kind, offer.key]
            turns[offer.kind, offer.key] += 1
        if turn == len(rounds):
            rounds.append([])
        rounds[turn].append(position)
    return rounds
