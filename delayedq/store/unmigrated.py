"""A statement of the queue fails since tables or columns are missing: the error says what to do about that."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from django.apps import apps
from django.db import DEFAULT_DB_ALIAS, connections

if TYPE_CHECKING:
    from django.db import DatabaseError

#: What the databases say: PostgreSQL by a code, MariaDB and MySQL by a number, SQLite in words.
CODES = {"42P01", "42703"}
NUMBERS = {1146, 1054}
WORDS = re.compile("no such (table|column)|has no column named")
#: A table of the queue, and not of the project, in such a sentence.
OURS = re.compile(r"""[\s."]delayedq_\w+(["'\s]|$)""")
NO_TABLE = re.compile("table|relation", re.IGNORECASE)


def is_unmigrated(error: DatabaseError) -> bool:
    """Whether a statement of the queue failed for want of a table or a column."""
    said = str(error).partition("\n")[0]
    cause = error.__cause__
    is_missing = getattr(cause, "sqlstate", None) in CODES or error.args[:1] in [(n,) for n in NUMBERS]
    return (is_missing or bool(WORDS.search(said))) and (bool(OURS.search(said)) or not NO_TABLE.search(said))


def missing_tables(alias: str) -> set[str]:
    """The tables of the queue that the database has not got. Raises django.db.Error."""
    wanted = {model._meta.db_table for model in apps.get_app_config("delayedq").get_models()}  # noqa: SLF001
    return wanted - set(connections[alias].introspection.table_names())


def cure(alias: str) -> str:
    return f"run manage.py migrate{'' if alias == DEFAULT_DB_ALIAS else f' --database {alias}'}"
