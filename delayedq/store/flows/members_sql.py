"""What each batch of messages asks and writes of its flows. Django's ORM took as long for it as for the messages."""

from __future__ import annotations

import json
from itertools import batched
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

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
        SELECT member.outcome IS NULL FROM delayedq_flowmember AS member
        WHERE member.step_id = step.id ORDER BY member.step_id DESC, member.message_id DESC LIMIT 1
    ) THEN false ELSE NOT EXISTS (
        SELECT 1 FROM delayedq_flowmember AS member WHERE member.step_id = step.id AND member.outcome IS NULL
    ) END
"""


def lock(database: Database, steps: Sequence[int]) -> None:
    """Lock the rows of these steps until the transaction ends. On SQLite there is one writer at a time."""
    vendor = database.connection.vendor
    if vendor != "sqlite":
        database.rows(_LOCK.format(given=_GIVEN[vendor]), _parameters(vendor, {"ids": steps}, steps))


def over(database: Database, steps: Sequence[int]) -> list[int]:
    """Those of these steps that were released and have no member which has not ended."""
    vendor = database.connection.vendor
    rows = database.rows(_OVER.format(given=_GIVEN[vendor]), _parameters(vendor, {"ids": steps}, steps))
    return [row[0] for row in rows]


def store(database: Database, members: Sequence[tuple[int, int]]) -> None:
    """Store these members: the ids of a message and of its step."""
    for some in batched(members, CHUNK):
        ids, steps = [id_ for id_, _ in some], [step for _, step in some]
        _write(database, _STORE, {"ids": ids, "steps": steps}, some)


def end(database: Database, ids: Sequence[int], outcome: str) -> None:
    """Record how these messages ended."""
    for some in batched(ids, CHUNK):
        _write(database, _END, {"ids": list(some), "outcome": outcome}, some)


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
