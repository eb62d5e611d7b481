"""The statements of bare queues on MariaDB and MySQL: what is claimed by conditions, and pages. See `sql`."""

from __future__ import annotations

from itertools import starmap
from typing import TYPE_CHECKING

from delayedq.core.conditions import Lookup
from delayedq.store import bare_sql
from delayedq.store.dialect import BY_CHOICE
from delayedq.store.mysql.sql import CLAIMABLE_WHERE, IN_ORDER, KEY, NOW, unleased

if TYPE_CHECKING:
    from delayedq.core.conditions import Condition
    from delayedq.store.bare_queues import Matching

PAGE = bare_sql.page(BY_CHOICE, unleased("message"), key=KEY, index="FORCE INDEX (delayedq_due)")

_WITHIN = f"{KEY} >= %(first)s AND {KEY} <= %(last)s"
_BY_KEY = "FORCE INDEX (delayedq_key)"
KEYS = bare_sql.keys(_WITHIN, index=_BY_KEY)

_READABLE = "REPLACE(REPLACE(payload, %(backslash)s, %(controls)s), %(escape)s, %(letters)s)"
_FOUND = f"JSON_EXTRACT({_READABLE}, %(path_{{number}})s)"
_TEXT = f"CONCAT({_FOUND}, '')"

# As texts: MariaDB compares two JSON strings as if one of them had no quotes.
_IN = f"coalesce({_TEXT} COLLATE utf8mb4_bin IN ({{values}}), FALSE)"
_VALUE = "CONCAT(JSON_EXTRACT(%(value_{number}_{place})s, '$'), '') COLLATE utf8mb4_bin"

# Ints exactly; else as floats, and what is beyond those as the largest of them. (To MySQL a large int is a DOUBLE.)
_RANGE = f"""coalesce(CASE
    WHEN %(exact_{{number}})s AND JSON_TYPE({_FOUND}) IN ('INTEGER', 'UNSIGNED INTEGER')
        THEN CAST({_TEXT} AS DECIMAL(65)) {{sign}} CAST(%(bound_{{number}})s AS DECIMAL(65))
    WHEN JSON_TYPE({_FOUND}) IN ('INTEGER', 'UNSIGNED INTEGER', 'DOUBLE', 'DECIMAL')
        THEN CAST({_TEXT} AS DOUBLE) {{sign}} CAST(%(bound_{{number}})s AS DOUBLE)
    ELSE FALSE
END, FALSE)"""

SIGNS = {Lookup.GT: ">", Lookup.GTE: ">=", Lookup.LT: "<", Lookup.LTE: "<="}

_PLACE = f"""
{{place}} = %(queue)s AND priority = %(priority)s AND scheduled_at >= %(watermark)s AND scheduled_at <= {NOW}
"""


def claimable_matching(matching: Matching) -> str:
    """Along the due index, in its order: a row is locked if it is claimed, and no other."""
    return CLAIMABLE_WHERE.format(index="delayedq_due", which=_which(matching, "queue"), order=IN_ORDER)


def few_matching(matching: Matching) -> str:
    """The ids of what can be claimed of a range of keys, in order, and nothing is locked: a sort would lock all."""
    which = f"{_which(matching, 'kind')} AND {unleased('message')}"
    return f"SELECT id FROM delayedq_message AS message {_BY_KEY} WHERE {which} {IN_ORDER}"


def claimable_few(matching: Matching) -> str:
    """Those of these ids that still can be claimed."""
    which = f"id IN %(ids)s AND {_which(matching, 'queue')}"
    return CLAIMABLE_WHERE.format(index="PRIMARY", which=which, order=IN_ORDER)


def _which(matching: Matching, place: str) -> str:
    which = [_PLACE.format(place=place)]
    if matching.keys is not None:
        which.append(_WITHIN)
    if tests := " AND ".join(starmap(_test, enumerate(matching.conditions))):
        which.append(f"CASE WHEN JSON_VALID({_READABLE}) THEN {tests} ELSE FALSE END")
    return " AND ".join(which)


def _test(number: int, condition: Condition) -> str:
    if condition.lookup is not Lookup.IN:
        return _RANGE.format(number=number, sign=SIGNS[condition.lookup])
    values = ", ".join(_VALUE.format(number=number, place=place) for place in range(len(condition.values)))
    return _IN.format(number=number, values=values or "NULL")
