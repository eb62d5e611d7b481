"""How the databases differ in the statements that all of them share: those of keyset scans and figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime


class Dialect(NamedTuple):
    """One database's words and values. A word in braces is filled in by the statement that uses it."""

    #: A time as a parameter of a statement.
    stored: Callable[[datetime], Any]
    #: The reverse, for a time in a row.
    instant: Callable[[Any], datetime]
    #: Workers as one JSON document, into the worker registry.
    heartbeat: str
    #: The rows beyond %(at)s and %(id)s, as one range of an index on time and id.
    after: str
    #: The rows of a {table} whose {column}, of type `time_type` or bigint, lies in a slice: slice by slice, by index.
    sliced: str
    #: The same for dead letters by their own index, and nothing else of them; "" if the database has no such index.
    dead: str
    time_type: str
    #: The number of the bucket that {time} lies in.
    bucket: str
    #: Seconds from {earlier} to {later}.
    seconds: str
    #: The time in the parameter {}.
    moment: str
    #: The function that finds a text in another: 0 if it is not in it.
    position: str = "instr"
    #: What a transaction says before it counts.
    prepare: str = ""


#: For `Dialect.after`: on MySQL a comparison of rows is no range of an index; to the others, a choice is none.
BY_ROWS = "({columns}) {sign} (%(at)s, %(id)s)"
BY_CHOICE = "({time} {sign}= %(at)s AND ({time} {sign} %(at)s OR id {sign} %(id)s))"
