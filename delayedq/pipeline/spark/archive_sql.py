"""The SQL of the archive: the deletion of rows that are still the ones that were verified."""

from __future__ import annotations

from delayedq.pipeline.spark.digests import digest_in_sql

# `rows` is a JSON array of [id, digest, masks]. An id that was archived and is in the table again ended after the
# cutoff. Digests are compared in the statement that deletes: what was changed since it was verified is another row.

#: Deletes the rows whose digest is the one given.
DELETE = {
    "postgresql": f"""
DELETE FROM delayedq_finishedmessage AS finished
USING (
    SELECT (value->>0)::bigint AS id, value->>1 AS digest, (value->>2)::int AS masks
    FROM json_array_elements(%(rows)s::json) OFFSET 0
) AS given
WHERE finished.id = given.id AND finished.finished_at < %(cutoff)s
    AND {digest_in_sql("postgresql", "given.masks")} = given.digest
""",
    "mysql": f"""
DELETE finished
FROM JSON_TABLE(%(rows)s, '$[*]' COLUMNS (
    id BIGINT PATH '$[0]', digest CHAR(64) CHARACTER SET utf8mb4 PATH '$[1]', masks INT PATH '$[2]'
)) AS given
STRAIGHT_JOIN delayedq_finishedmessage AS finished FORCE INDEX (PRIMARY) ON finished.id = given.id
WHERE finished.finished_at < %(cutoff)s AND {digest_in_sql("mysql", "given.masks")} = given.digest
""",
    "sqlite": f"""
DELETE FROM delayedq_finishedmessage WHERE id IN (
    SELECT finished.id
    FROM json_each(%(rows)s) AS given
    CROSS JOIN delayedq_finishedmessage AS finished ON finished.id = json_extract(given.value, '$[0]')
    WHERE finished.finished_at < %(cutoff)s
        AND {digest_in_sql("sqlite", "json_extract(given.value, '$[2]')")} = json_extract(given.value, '$[1]')
)
""",
}

#: The ids of those that are still there.
LEFT = {
    "postgresql": """
SELECT id FROM delayedq_finishedmessage
WHERE id = ANY(ARRAY(SELECT (value->>0)::bigint FROM json_array_elements(%(rows)s::json)))
    AND finished_at < %(cutoff)s
""",
    "mysql": """
SELECT finished.id
FROM JSON_TABLE(%(rows)s, '$[*]' COLUMNS (id BIGINT PATH '$[0]')) AS given
STRAIGHT_JOIN delayedq_finishedmessage AS finished FORCE INDEX (PRIMARY) ON finished.id = given.id
WHERE finished.finished_at < %(cutoff)s
""",
    "sqlite": """
SELECT id FROM delayedq_finishedmessage
WHERE id IN (SELECT json_extract(value, '$[0]') FROM json_each(%(rows)s)) AND finished_at < %(cutoff)s
""",
}
