"""The messages of a step that waits, as its row keeps them."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any

from delayedq.core.metadata import STEP_DEADLINE, with_own
from delayedq.store.protocol import Offer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_KEPT = ("queue", "kind", "payload", "priority", "max_attempts", "metadata", "channel")


def dump_calls(offers: Iterable[Offer]) -> str:
    """The JSON of messages without keys. Their limits do not refuse them: an end waits for no room."""
    return json.dumps([_row(offer) for offer in offers], separators=(",", ":"))


def _row(offer: Offer) -> list[Any]:
    at = None if offer.scheduled_at is None else offer.scheduled_at.isoformat()
    return [at, *(getattr(offer, name) for name in _KEPT)]


def load_calls(text: str) -> list[Offer]:
    """What `dump_calls` wrote."""
    return [
        Offer(**dict(zip(_KEPT, kept, strict=True)), scheduled_at=None if at is None else datetime.fromisoformat(at))
        for at, *kept in json.loads(text)
    ]


def until(offers: Sequence[Offer], deadline_at: datetime | None, now: datetime) -> Sequence[Offer]:
    """The messages of a flow with this deadline: none of their attempts goes on for longer."""
    return offers if deadline_at is None else [_until(offer, deadline_at, now) for offer in offers]


def _until(offer: Offer, deadline_at: datetime, now: datetime) -> Offer:
    seconds = max(0.0, (deadline_at - max(now, offer.scheduled_at or now)).total_seconds())
    return offer._replace(metadata=with_own(offer.metadata, {STEP_DEADLINE: seconds}))
