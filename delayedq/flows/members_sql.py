"""The statements for the flows of a batch of messages. Django's ORM took as long for it as for the messages."""

from __future__ import annotations

import json
from itertools import batched
from typing import TYPE_CHECKING, Any

from delayedq.core.metadata import FLOW

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from delayedq.store.database import Database

#: Rows in one statement.
CHUNK = 10_000

_INSERT = "INSERT INTO delayedq_flowmember (message_id, step_id) SELECT member.id, member.step FROM"

_STORE = {
    "postgresql": f"{_INSERT} unnest(%(ids)s::bigint[], %(steps)s::bigint[]) AS member (id, step)",
    "sqlite": f"""{_INSERT} (
        SELECT json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS step FROM json_each(%(rows)s)
    ) AS member""",
    "mysql": f"""{_INSERT} JSON_TABLE(
        %(rows)s, '$[*]' COLUMNS (id BIGINT PATH '$[0]', step BIGINT PATH '$[1]')
    ) AS member""",
}

_UPDATE = "UPDATE delayedq_flowmember SET outcome = %(outcome)s WHERE message_id"

# The array of a subquery is taken for short, which leaves the planner no way but the primary key.
_END = {
    "postgresql": f"{_UPDATE} = ANY(ARRAY(SELECT unnest(%(ids)s::bigint[])))",
    "sqlite": f"{_UPDATE} IN (SELECT value FROM json_each(%(rows)s))",
    "mysql": """
        UPDATE JSON_TABLE(%(rows)s, '$[*]' COLUMNS (id BIGINT PATH '$')) AS given
        STRAIGHT_JOIN delayedq_flowmember AS member ON member.message_id = given.id
        SET member.outcome = %(outcome)s
    """,
}

#: Which ids are meant, by database.
_GIVEN = {
    "postgresql": "= ANY(ARRAY(SELECT unnest(%(ids)s::bigint[])))",
    "sqlite": "IN (SELECT value FROM json_each(%(rows)s))",
    "mysql": "IN (SELECT given.id FROM JSON_TABLE(%(rows)s, '$[*]' COLUMNS (id BIGINT PATH '$')) AS given)",
}

_LOCK = "SELECT id FROM delayedq_flowstep WHERE id {given} ORDER BY id FOR UPDATE"

# The last member is looked at first: members end about in the order of their ids, so it is mostly the one that is asked
# for, and a group of any size costs one row. Together with its outcome as a condition, it is not found by the index.
_OVER = """
SELECT step.id FROM delayedq_flowstep AS step
WHERE step.id {given} AND step.state NOT IN ('waiting', 'filling', 'skipped') AND CASE WHEN (
        SELECT {lives} FROM delayedq_flowmember AS member
        WHERE member.step_id = step.id ORDER BY member.step_id DESC, member.message_id DESC LIMIT 1
    ) THEN false ELSE NOT EXISTS (
        SELECT 1 FROM delayedq_flowmember AS member WHERE member.step_id = step.id AND {lives}
    ) END
"""

_LIVES = "member.outcome IS NULL"

# Both in one statement, which sees its own update by the ids of the messages alone.
_END_AND_OVER = f"""
WITH ended AS ({_END["postgresql"]})
{
    _OVER.format(
        given="= ANY(ARRAY(SELECT unnest(%(steps)s::bigint[])))",
        lives=f"({_LIVES} AND member.message_id <> ALL(%(ids)s::bigint[]))",
    )
}"""


def lock(database: Database, steps: Sequence[int]) -> None:
    """Lock the rows of these steps until the transaction ends. On SQLite there is one writer at a time."""
    vendor = database.connection.vendor
    if vendor != "sqlite":
        database.rows(_LOCK.format(given=_GIVEN[vendor]), _parameters(vendor, {"ids": steps}, steps))


def over(database: Database, steps: Sequence[int]) -> list[int]:
    """Those of these steps that were released and have no member which has not ended."""
    vendor = database.connection.vendor
    statement = _OVER.format(given=_GIVEN[vendor], lives=_LIVES)
    rows = database.rows(statement, _parameters(vendor, {"ids": steps}, steps))
    return [row[0] for row in rows]


def store(database: Database, ids: Sequence[int], steps: Sequence[int]) -> None:
    """Store these members: the ids of messages, and of the step of each."""
    for some in batched(zip(ids, steps, strict=True), CHUNK):
        of_messages, of_steps = zip(*some, strict=True)
        _write(database, _STORE, {"ids": of_messages, "steps": of_steps}, some)


def end_members(database: Database, ids: Mapping[str, Sequence[int]], steps: Sequence[int]) -> list[int]:
    """Record how these messages ended, by outcome; returns those of their steps that are `over` then.

    On PostgreSQL it is one statement if all ended alike, as a batch of a group mostly does.
    """
    vendor = database.connection.vendor
    if vendor == "postgresql" and len(ids) == 1:
        ((outcome, alike),) = ids.items()
        parameters = _parameters(vendor, {"ids": list(alike), "steps": list(steps), "outcome": outcome}, ())
        return [row[0] for row in database.rows(_END_AND_OVER, parameters)]
    for outcome, alike in sorted(ids.items()):
        for some in batched(alike, CHUNK):
            _write(database, _END, {"ids": list(some), "outcome": outcome}, some)
    return over(database, steps)


def _write(database: Database, statements: dict[str, str], parameters: dict[str, Any], rows: Sequence[Any]) -> None:
    vendor = database.connection.vendor
    database.write(statements[vendor], _parameters(vendor, parameters, rows))


def _parameters(vendor: str, parameters: dict[str, Any], rows: Sequence[Any]) -> dict[str, Any]:
    """Arrays on PostgreSQL, as texts, which psycopg writes ten times as fast; a JSON document elsewhere."""
    if vendor == "postgresql":
        texts = {name: f"{{{','.join(map(str, value))}}}" for name, value in parameters.items() if _is_ids(value)}
        return parameters | texts
    return {name: value for name, value in parameters.items() if not _is_ids(value)} | {"rows": json.dumps(rows)}


def _is_ids(value: object) -> bool:
    return isinstance(value, list | tuple)


# What pruning leaves in the history: the messages of flows that have not ended, whose results others may ask for.


#: A part of the condition of a statement that deletes history. Of a message of no flow, one column is looked at.
UNNEEDED = f""" AND (metadata IS NULL OR metadata NOT LIKE '%%"{FLOW}":%%' OR NOT EXISTS (
    SELECT 1 FROM delayedq_flowmember AS member
    JOIN delayedq_flowstep AS step ON step.id = member.step_id
    JOIN delayedq_flow AS flow ON flow.id = step.flow_id
    WHERE member.message_id = delayedq_finishedmessage.id AND flow.ended_at IS NULL
))"""
