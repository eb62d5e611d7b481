"""JSON in columns of text, read as JSON by the database where a query asks for a part of it.

A worker reads it whole, so a column of text is enough. A query reads it row by row: where there are many rows,
name a queue, a task or a period too.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from django.db import models
from django.db.models import Func, JSONField
from django.db.models.fields.json import KeyTransform, KeyTransformExact, KeyTransformIn
from django.db.models.functions import Cast

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.models.sql.compiler import SQLCompiler


#: A NUL, the first half of a surrogate pair without the second, or the second without the first.
_UNREADABLE = r"\\u0000|\\ud[89ab][0-9a-f]{2}(?!\\ud[c-f])|(?<!\\ud[89ab][0-9a-f]{2})\\ud[c-f]"


class Readable(Func):
    """The text itself. Of what PostgreSQL refuses to read as JSON, and a message may hold: null."""

    output_field = models.TextField()

    def as_sql(self, compiler: SQLCompiler, *_: Any, **__: Any) -> tuple[str, Any]:
        return compiler.compile(self.source_expressions[0])

    def as_postgresql(self, compiler: SQLCompiler, *_: Any, **__: Any) -> tuple[str, Any]:
        text, parameters = compiler.compile(self.source_expressions[0])
        return f"regexp_replace({text}, '^.*(?:{_UNREADABLE}).*$', 'null')", parameters


def as_json(text: Any) -> Cast:
    """The text (an expression) as a value of JSON, of which `StoredName` takes a part."""
    return Cast(Readable(text), JSONField(encoder=Canonical))


class StoredJSON(models.TextField):  # type: ignore[type-arg]  # Django does not know arguments
    """JSON in a column of text. `filter(metadata__batch=7)` reads it as Django's JSONField does."""

    def get_transform(self, lookup_name: str) -> Any:
        """Those of a text, else the value under this name."""
        return super().get_transform(lookup_name) or (lambda column: StoredName(lookup_name, as_json(column)))

    def deconstruct(self) -> tuple[str, str, Any, Any]:
        """In migrations it is a plain TextField."""
        name, _, arguments, options = super().deconstruct()
        return name, "django.db.models.TextField", arguments, options


class Canonical(json.JSONEncoder):
    """Writes equal values as equal texts, as `core.serialization` does."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "sort_keys": True, "separators": (",", ":")})


class SameJSON(KeyTransformExact):
    """Equal with its type."""

    def as_mysql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> tuple[str, Any]:
        """To MariaDB, JSON is text: without this, the number 7 would equal the text "7", and "a" equal "A"."""
        if not connection.mysql_is_mariadb:  # type: ignore[attr-defined]
            return self.as_sql(compiler, connection)
        left, of_left = compiler.compile(self.lhs)
        right, of_right = self.process_rhs(compiler, connection)
        return f"BINARY JSON_COMPACT({left}) = BINARY JSON_COMPACT({right})", (*of_left, *of_right)


class AnyOfJSON(KeyTransformIn):
    """Equal to one of these, with its type."""

    def as_mysql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> tuple[str, Any]:
        """As `SameJSON` does for each; Django writes a comparison with none."""
        if not connection.mysql_is_mariadb or not self.rhs:  # type: ignore[attr-defined]
            return self.as_sql(compiler, connection)
        each = [SameJSON(self.lhs, value).as_mysql(compiler, connection) for value in self.rhs]
        return f"({' OR '.join(sql for sql, _ in each)})", tuple(one for _, values in each for one in values)


class StoredName(KeyTransform):
    """The value under a name, or at an index, of JSON."""

    def get_lookup(self, lookup: str) -> Any:
        return {"exact": SameJSON, "in": AnyOfJSON}.get(lookup) or super().get_lookup(lookup)

    def get_transform(self, name: str) -> Any:
        return lambda value: StoredName(name, value)
