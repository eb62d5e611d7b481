"""The SQL of the archive: what the table holds before a cutoff, and the deletion of rows by their ids."""

from __future__ import annotations

_TEXTS = ("queue", "kind", "key", "worker", "outcome", "payload", "metadata", "result", "errors")


def _checksums(characters: str, quote: str) -> str:
    sizes = " + ".join(f"coalesce({characters}({quote}{name}{quote}), 0)" for name in _TEXTS)
    return f"""
SELECT count(*), sum(id), sum(attempts), sum({sizes}), min(finished_at), max(finished_at)
FROM delayedq_finishedmessage
WHERE finished_at < %(cutoff)s
"""


CHECKSUMS = {
    "postgresql": _checksums("char_length", '"'),
    "mysql": _checksums("char_length", "`"),
    "sqlite": _checksums("length", '"'),
}

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
