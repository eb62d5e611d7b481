"""Offers on MariaDB and MySQL: what an upsert did, found out without a RETURNING."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from delayedq.store import columns
from delayedq.store.mysql import sql
from delayedq.store.mysql.values import check_year, document, packets, text
from delayedq.store.protocol import Offered, OfferOutcome, OnConflict

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from django.db.backends.utils import CursorWrapper

    from delayedq.store.protocol import Offer

#: The server's integers wrap: an id below zero comes as one above this.
HALF = 2**63

CREATED, UPDATED, IGNORED = OfferOutcome.CREATED, OfferOutcome.UPDATED, OfferOutcome.IGNORED


class _Stored(NamedTuple):
    id: int
    generation: int


def offer_one(cursor: CursorWrapper, offer: Offer, on_conflict: OnConflict, now: str | None) -> Offered:
    """Offer with one statement; its answer contains the id and the outcome."""
    cursor.execute(sql.insert(1, on_conflict), _values(offer, now))
    id_ = int(cursor.lastrowid)
    if id_ > HALF:
        return Offered(IGNORED, 2 * HALF - id_)
    return Offered(CREATED if cursor.rowcount == 1 else UPDATED, id_)


def runs(offers: Sequence[Offer], rows: int) -> Iterator[list[Offer]]:
    """In their order, split for statements of limited size; in each all have a key, or none has."""
    for _, alike in groupby(offers, lambda offer: offer.key is None):
        yield from packets(alike, lambda offer: len(offer.payload) + len(offer.metadata or ""), rows)


def offer_run(cursor: CursorWrapper, run: Sequence[Offer], on_conflict: OnConflict, now: str | None) -> list[Offered]:
    names = {"names": document(sorted((offer.kind, offer.key) for offer in run if offer.key is not None))}
    keyed = run[0].key is not None
    known = _by_key(cursor, sql.KNOWN, names) if keyed else {}
    cursor.execute(sql.insert_many(len(run), on_conflict), [value for offer in run for value in _values(offer, now)])
    first = int(cursor.lastrowid)
    cursor.execute(sql.STEP)
    step = cursor.fetchone()[0]
    # The ids of one statement are drawn in a row, so whatever lies in between was created by it.
    created = range(first, first + len(run) * step, step) if first else range(0)
    if not keyed:
        return [Offered(CREATED, id_) for id_ in created]
    stored = known | _by_key(cursor, sql.STORED, names)  # an old snapshot does not show what was not changed
    keeps = on_conflict is OnConflict.KEEP
    return [
        _judge(stored[offer.kind, offer.key], known.get((offer.kind, offer.key)), created, keeps=keeps) for offer in run
    ]


def _by_key(cursor: CursorWrapper, statement: str, names: dict[str, str]) -> dict[tuple[str, str | None], _Stored]:
    cursor.execute(statement, names)
    return {(kind, key): _Stored(id_, generation) for kind, key, id_, generation in cursor.fetchall()}


def _judge(stored: _Stored, known: _Stored | None, created: range, *, keeps: bool) -> Offered:
    """`known` was locked before the offer, so only this changed it since; None if the key was not live then.

    Others may have created it in between, and replaced it too. `keeps`: this offer replaces nothing.
    """
    if known is None and stored.id in created and not stored.generation:
        return Offered(CREATED, stored.id)
    if keeps:
        return Offered(IGNORED, stored.id)
    return Offered(IGNORED if stored.generation == (known.generation if known else 0) else UPDATED, stored.id)


def _values(offer: Offer, now: str | None) -> list[Any]:
    values = [getattr(offer, name) for name in columns.OFFER]
    due = _due(offer.scheduled_at) or now
    return [*values, due, due, now]


def _due(scheduled_at: datetime | None) -> str | None:
    if scheduled_at is not None:
        check_year(scheduled_at)
    return text(scheduled_at)
