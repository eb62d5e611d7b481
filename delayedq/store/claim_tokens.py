"""The token and the order of a claim."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from delayedq.store.protocol import Claimed, Lane


#: Seconds between two tries to settle a message that another transaction has locked.
BUSY_PAUSE = 0.02


def new_token() -> int:
    """A token for one claim: 63 random bits, so that no two claims ever share one."""
    return secrets.randbits(63)


def in_lane_order(claims: Iterable[Claimed], lanes: Sequence[Lane]) -> list[Claimed]:
    """RETURNING has no order: sort by lane, due time and id."""
    ranks = {(lane.queue, lane.priority): rank for rank, lane in enumerate(lanes)}
    return sorted(claims, key=lambda c: (ranks[c.queue, c.priority], c.scheduled_at, c.id))
