"""A history in partitions, for the length of a test: then there is the table of the session again, and it is empty."""

from __future__ import annotations

from contextlib import contextmanager

INDEXES = """
SELECT pg_get_indexdef(indexrelid) FROM pg_index
WHERE indrelid = 'delayedq_finishedmessage'::regclass AND NOT indisprimary
"""
COPY = "CREATE TABLE plain (LIKE delayedq_finishedmessage INCLUDING ALL EXCLUDING INDEXES EXCLUDING CONSTRAINTS)"
PLAIN = """
DROP TABLE delayedq_finishedmessage CASCADE;
ALTER TABLE plain RENAME TO delayedq_finishedmessage;
ALTER TABLE delayedq_finishedmessage ADD CONSTRAINT delayedq_finishedmessage_pkey PRIMARY KEY (id)
"""


@contextmanager
def plain_afterwards(connection):
    """Whatever becomes of the table meanwhile."""
    with connection.cursor() as cursor:
        cursor.execute(COPY)
        cursor.execute(INDEXES)
        indexes = [row[0] for row in cursor.fetchall()]
    try:
        yield
    finally:
        if connection.connection is None or not connection.is_usable():
            connection.close()
        with connection.cursor() as cursor:
            cursor.execute(PLAIN)
            for definition in indexes:
                cursor.execute(definition)


def partitions(connection):
    """The names of the partitions, without that of the table; none if it has none."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'delayedq_finishedmessage'::regclass"
        )
        return {name.removeprefix("delayedq_finishedmessage_") for (name,) in cursor.fetchall()}
