"""The statements of bare queues on PostgreSQL: what is claimed by conditions, and pages. See `sql`."""

from __future__ import annotations

from itertools import starmap
from typing import TYPE_CHECKING

from delayedq.core.conditions import Lookup
from delayedq.store import bare_sql
from delayedq.store.dialect import BY_ROWS
from delayedq.store.postgresql.sql import CLAIMED, LEASE, NOW, unleased

if TYPE_CHECKING:
    from delayedq.core.conditions import Condition
    from delayedq.store.bare_queues import Matching

PAGE = bare_sql.page(BY_ROWS, unleased("message"))

# The column compares by code points, as migration 0001 has it; here it is said again, for what is asked depends on it.
_WITHIN = 'key COLLATE "C" >= %(first)s AND key COLLATE "C" <= %(last)s'
KEYS = bare_sql.keys(_WITHIN)

# The payload as JSON in which every escape of a character stands for its own letters, those of a backslash for two
# control characters: PostgreSQL refuses to read texts with a NUL or half a surrogate pair, which a payload may hold.
_DOCUMENT = r"replace(replace(due.payload, '\\', '\b\f'), '\u', '\\u')::json"

# Equal values have equal texts, if they are written as the document is.
_IN = r"""coalesce((document #> %(path_{number})s::text[])::text = ANY(
    SELECT replace(replace(wanted, '\\', '\b\f'), '\u', '\\u') FROM unnest(%(values_{number})s::text[]) AS wanted
), false)"""

# Ints exactly; else as floats, and what is beyond those as the largest of them. (Of NULL and that, greatest() and
# least() take that: what is no number is left out before.)
_LARGEST = "1.7976931348623157e308"
_RANGE = f"""coalesce((
    SELECT CASE
        WHEN json_typeof(value) IS DISTINCT FROM 'number' THEN false
        WHEN %(exact_{{number}})s AND value::text !~ '[.eE]'
            THEN value::text::numeric {{sign}} %(bound_{{number}})s::numeric
        ELSE greatest(least(value::text::numeric, {_LARGEST}), -{_LARGEST})::float8
            {{sign}} %(bound_{{number}})s::float8
    END
    FROM (SELECT document #> %(path_{{number}})s::text[] AS value OFFSET 0) AS found
), false)"""

SIGNS = {Lookup.GT: ">", Lookup.GTE: ">=", Lookup.LT: "<", Lookup.LTE: "<="}

_CLAIM_MATCHING = f"""
{LEASE}
WHERE message.id = ANY(ARRAY(
    SELECT due.id FROM delayedq_message AS due
    WHERE {{place}} AND due.priority = %(priority)s
        AND due.scheduled_at >= coalesce(%(watermark)s::timestamptz, '-infinity') AND due.scheduled_at <= {NOW}
        AND {unleased("due")} {{asked}}
    ORDER BY due.scheduled_at, due.id
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
))
RETURNING {CLAIMED}
"""


def claim_matching(matching: Matching) -> str:
    """By the index of keys, the statement does not compare `queue`: the due index can't be used, whose condition is."""
    asked = [] if matching.keys is None else [_WITHIN]
    if tests := " AND ".join(starmap(_test, enumerate(matching.conditions))):
        # A scalar subquery, which the planner evaluates after all that is cheaper; it reads the document once.
        asked.append(f"(SELECT {tests} FROM (SELECT {_DOCUMENT} AS document OFFSET 0) AS readable)")
    place = "due.kind = %(queue)s" if matching.by_key else "due.queue = %(queue)s"
    return _CLAIM_MATCHING.format(place=place, asked=" ".join(f"AND {one}" for one in asked))


def _test(number: int, condition: Condition) -> str:
    if condition.lookup is Lookup.IN:
        return _IN.format(number=number)
    return _RANGE.format(number=number, sign=SIGNS[condition.lookup])
