"""The statements for bare queues that are alike on all databases. See `bare_queues`."""

from __future__ import annotations

_AFTER = {"columns": "scheduled_at, id", "time": "scheduled_at", "sign": ">"}

# One range of the due index, and each row of it comes out: a page reads as many rows as it may have, leased or not.
_PAGE = """
SELECT scheduled_at, id, CASE WHEN {waiting} THEN 1 ELSE 0 END, {key}, generation, attempt,
    CASE WHEN {waiting} THEN payload END, CASE WHEN {waiting} THEN metadata END
FROM delayedq_message AS message {index}
WHERE queue = %(queue)s AND priority = %(priority)s AND {after}
ORDER BY scheduled_at, id LIMIT %(limit)s
"""

# One range of the index of keys, read no further than it has to be.
_KEYS = """
SELECT count(*) FROM (
    SELECT 1 FROM delayedq_message {index} WHERE kind = %(queue)s AND {within} LIMIT %(limit)s
) AS found
"""


def page(after: str, waiting: str, *, key: str = "key", index: str = "") -> str:
    """A page of a lane. `after`: `Dialect.after`. `waiting`: the condition that `message` is not leased."""
    return _PAGE.format(after=after.format(**_AFTER), waiting=waiting, key=key, index=index)


def keys(within: str, *, index: str = "") -> str:
    """How many messages of a bare queue have a key of a range, counted up to a limit."""
    return _KEYS.format(within=within, index=index)
