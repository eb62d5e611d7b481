"""The SQL of the archive: the deletion of rows by their ids."""

from __future__ import annotations

#: `ids` is a JSON array. An id that was archived and is in the table again ended after the cutoff.
DELETE = {
    "postgresql": """
DELETE FROM delayedq_finishedmessage
WHERE id = ANY(ARRAY(SELECT value::bigint FROM json_array_elements_text(%(ids)s::json))) AND finished_at < %(cutoff)s
""",
    "mysql": """
DELETE finished
FROM JSON_TABLE(%(ids)s, '$[*]' COLUMNS (id BIGINT PATH '$')) AS given
STRAIGHT_JOIN delayedq_finishedmessage AS finished FORCE INDEX (PRIMARY) ON finished.id = given.id
WHERE finished.finished_at < %(cutoff)s
""",
    "sqlite": """
DELETE FROM delayedq_finishedmessage
WHERE id IN (SELECT value FROM json_each(%(ids)s)) AND finished_at < %(cutoff)s
""",
}
