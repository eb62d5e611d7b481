"""How dead letters are told apart: statements that read the index of fingerprints, and no more of it than a bound.

What is asked of each of several groups is one statement, with a part for each; `{n}` numbers its parameter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from delayedq.store.dialect import Dialect

# A loose scan: one probe per group, and two for its ends, however many dead letters each has.
GROUPS = """
WITH RECURSIVE known (fingerprint) AS (
    SELECT min(fingerprint) FROM delayedq_finishedmessage WHERE fingerprint IS NOT NULL
    UNION ALL
    SELECT (SELECT min(fingerprint) FROM delayedq_finishedmessage AS dead WHERE dead.fingerprint > known.fingerprint)
    FROM known WHERE fingerprint IS NOT NULL
)
SELECT fingerprint,
    (SELECT min(finished_at) FROM delayedq_finishedmessage AS dead WHERE dead.fingerprint = known.fingerprint),
    (SELECT max(finished_at) FROM delayedq_finishedmessage AS dead WHERE dead.fingerprint = known.fingerprint)
FROM known WHERE fingerprint IS NOT NULL LIMIT %(most)s
"""

_NEWEST = """
SELECT {n}, id, error, kind, queue FROM (
    SELECT id, error, kind, queue FROM delayedq_finishedmessage
    WHERE fingerprint = %(group_{n})s
    ORDER BY fingerprint DESC, finished_at DESC, id DESC LIMIT 1
) AS newest_{n}
"""

_SIZES = """
SELECT {n}, count(*) FROM (
    SELECT 1 AS one FROM delayedq_finishedmessage WHERE fingerprint = %(group_{n})s LIMIT %(most)s
) AS counted_{n}
"""

_LATELY = """
SELECT {n}, bucket, count(*) FROM (
    SELECT {{bucket}} AS bucket FROM (
        SELECT finished_at FROM delayedq_finishedmessage
        WHERE fingerprint = %(group_{n})s AND finished_at >= {{start}} AND finished_at < {{end}}
        ORDER BY fingerprint DESC, finished_at DESC LIMIT %(most)s
    ) AS latest_{n}
) AS counted_{n} GROUP BY bucket
"""


def newest(groups: int) -> str:
    return _each(_NEWEST, groups)


def sizes(groups: int) -> str:
    return _each(_SIZES, groups)


def lately(groups: int, dialect: Dialect) -> str:
    bucket = dialect.bucket.format(time="finished_at")
    start, end = dialect.moment.format("start"), dialect.moment.format("end")
    return _each(_LATELY, groups).format(bucket=bucket, start=start, end=end)


def _each(part: str, groups: int) -> str:
    return " UNION ALL ".join(part.format(n=n) for n in range(groups))
