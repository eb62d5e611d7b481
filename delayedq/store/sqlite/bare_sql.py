"""The statements of bare queues on SQLite: what is claimed by conditions, and pages. See `sql`.

`delayedq_meets` is `core.conditions.meets`: SQLite itself reads ints beyond 64 bits as floats, and some floats as their
neighbours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from delayedq.store import bare_sql
from delayedq.store.dialect import BY_ROWS
from delayedq.store.sqlite.sql import LEASE

if TYPE_CHECKING:
    from delayedq.store.bare_queues import Matching

MEETS = "delayedq_meets"

PAGE = bare_sql.page(BY_ROWS, "(lease_token IS NULL OR leased_until <= %(now)s)")

_WITHIN = "key >= %(first)s AND key <= %(last)s"
_BY_KEY = "INDEXED BY delayedq_key"
KEYS = bare_sql.keys(_WITHIN, index=_BY_KEY)

_DUE_MATCHING = """
SELECT id FROM delayedq_message {index}
WHERE {place} = %(queue)s AND priority = %(priority)s AND scheduled_at >= %(watermark)s AND scheduled_at <= %(now)s
    AND (lease_token IS NULL OR leased_until <= %(expired_by)s) {asked}
ORDER BY scheduled_at, id LIMIT %(limit)s
"""


def due_matching(matching: Matching) -> str:
    asked = [] if matching.keys is None else [_WITHIN]
    if matching.conditions:
        asked.append(f"{MEETS}(payload, %(conditions)s)")
    place, index = ("kind", _BY_KEY) if matching.by_key else ("queue", "INDEXED BY delayedq_due")
    return _DUE_MATCHING.format(place=place, index=index, asked=" ".join(f"AND {one}" for one in asked))


def claim_matching(matching: Matching) -> str:
    return LEASE.format(which=f"id IN ({due_matching(matching)})")
