"""MariaDB and MySQL: their clock, their words in the statements that all databases share, and many rows in a statement.

The rows travel as JSON documents, so that the number of statements does not grow with a batch.
"""

from __future__ import annotations

import json
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC
from itertools import batched
from typing import TYPE_CHECKING, Any, ClassVar, overload

from django.db import Error

from delayedq.core.bounds import EARLIEST
from delayedq.core.instants import MICROSECOND
from delayedq.core.lifecycle import FinalOutcome
from delayedq.exceptions import InvalidTime
from delayedq.sql.dialects import MYSQL, Dialect, instant
from delayedq.store.connecting import separate
from delayedq.store.database import Database, Listener
from delayedq.store.mysql import sql
from delayedq.store.mysql.sql import NEWEST
from delayedq.store.protocol import Claimed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from datetime import datetime, timedelta

    from django.db import OperationalError
    from django.db.backends.base.base import BaseDatabaseWrapper

    from delayedq.store.bare_queues import Matching
    from delayedq.store.protocol import Finish, GiveBack, Lane

# Values on their way into the statements of MariaDB and MySQL, and out of their rows.


#: A statement takes at most this many characters: each may need four bytes, and a packet holds 16 MB.
CHARACTERS = 2_000_000


def check_year(when: datetime) -> None:
    """Refuse with InvalidTime what is earlier than any DATETIME."""
    if when < EARLIEST:
        raise InvalidTime(f"{when!r} can't be stored: MySQL's times begin with the year 1000.")


@overload
def text(moment: datetime) -> str: ...


@overload
def text(moment: datetime | None) -> str | None: ...


def text(moment: datetime | None) -> str | None:
    """A time as a DATETIME takes it: UTC without an offset. None is the server's clock."""
    return None if moment is None else str(max(moment, EARLIEST).astimezone(UTC).replace(tzinfo=None))


def packets[R](rows: Iterable[R], size: Callable[[R], int], most: int) -> Iterator[list[R]]:
    """The rows in their order, split for statements of at most `most` rows and of limited size."""
    packet: list[R] = []
    room = CHARACTERS
    for row in rows:
        taken = size(row)
        if packet and (len(packet) == most or taken > room):
            yield packet
            packet, room = [], CHARACTERS
        packet.append(row)
        room -= taken
    if packet:
        yield packet


def length(row: Iterable[Any]) -> int:
    return sum(len(value) for value in row if isinstance(value, str))


def document(rows: Sequence[Sequence[Any]]) -> str:
    return json.dumps(rows, ensure_ascii=False)


def microseconds(duration: timedelta) -> int:
    return duration // MICROSECOND


def _micros(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1e6)


def place(lane: Lane) -> dict[str, Any]:
    return {"queue": lane.queue, "priority": lane.priority, "watermark": text(lane.watermark or EARLIEST)}


# JSON in which every escape of a character stands for its own letters, and that of a backslash for two control
# characters: the server refuses half a surrogate pair, which a payload may hold.
_ESCAPES = {"backslash": r"\\", "controls": r"\b\f", "escape": r"\u", "letters": r"\\u"}


def matching_of(matching: Matching) -> dict[str, Any]:
    """For conditions on the payload. The names in a path need no quotes."""
    parameters = {**_ESCAPES, **place(matching.lane), **(matching.keys._asdict() if matching.keys else {})}
    for number, condition in enumerate(matching.conditions):
        parameters[f"path_{number}"] = f"$.{'.'.join(condition.path)}"
        parameters[f"exact_{number}"] = condition.has_int_bound
        parameters[f"bound_{number}"] = next(iter(condition.values), None)
        values = enumerate(map(_readable, condition.values))
        parameters |= {f"value_{number}_{index}": value for index, value in values}
    return parameters


def _readable(value: str) -> str:
    names = _ESCAPES
    return value.replace(names["backslash"], names["controls"]).replace(names["escape"], names["letters"])


def claimed_from(row: tuple[Any, ...]) -> Claimed:
    return Claimed._make([*row[:9], *map(instant, row[9:12]), *row[12:]])


def record(finish: Finish) -> list[Any]:
    """A row of `sql.RECORD`; only that of a dead letter has what tells it from others."""
    times = _micros(finish.started), _micros(finish.finished)
    row = [finish.claimed.id, finish.outcome.value, *times, finish.result, finish.errors]
    return [*row, *finish.last_error] if finish.outcome is FinalOutcome.FAILED else row


def given_back(back: GiveBack) -> list[Any]:
    """A row of `sql.GIVE_BACK`."""
    times = text(back.until), _micros(back.delay)
    return [back.claimed.id, int(not back.charged), *times, back.errors, back.metadata]


def superseded(id_: int, ran: Finish | GiveBack, worker: str, now: str | None) -> list[Any]:
    """A row of `sql.record_superseded`."""
    claimed = ran.claimed
    return [
        id_,
        *(now, _micros(ran.finished)),
        *(now, _micros(ran.started)),
        *map(text, (claimed.scheduled_at, claimed.scheduled_at_initially, claimed.created_at)),
        *(claimed.priority, claimed.attempt, claimed.max_attempts),
        *(claimed.queue, claimed.kind, claimed.key, worker),
        *(claimed.payload, claimed.metadata, ran.errors or claimed.errors),
    ]


def fence(claimed: Claimed) -> tuple[int, int]:
    return claimed.token, claimed.generation


# Database


#: A statement names at most this many rows.
ROWS = 1_000

#: This transaction was undone to end a deadlock; a lock did not come free in time.
UNDONE = {1213, 1205}
#: The latter.
LOCKED = 1205


def _let_go(session: BaseDatabaseWrapper) -> None:
    """The lock of whoever migrates is free at once, not only when the server sees the session end."""
    with suppress(Error), session.cursor() as cursor:
        cursor.execute(sql.RELEASE_MIGRATION_LOCK)


class MySQLDatabase(Database):
    dialect: ClassVar[Dialect] = MYSQL
    heartbeat: ClassVar[str] = sql.HEARTBEAT
    sessions: ClassVar[str] = sql.OTHER_SESSIONS
    end_session: ClassVar[str] = sql.END_SESSION

    def _clock(self) -> datetime:
        return instant(self.rows(sql.CLOCK)[0][0])

    def connections_left(self) -> int | None:
        most, most_of_user, user = self.rows(sql.MOST_CONNECTIONS)[0]
        taken = int(self.rows(sql.CONNECTIONS)[0][1])
        left = int(most) - taken
        if not int(most_of_user):
            return left
        own = sum(1 for row in self.rows(sql.SESSIONS) if row[1] == user)
        return min(left, int(most_of_user) - own)

    def is_deadlock(self, error: OperationalError) -> bool:
        return error.args[0] in UNDONE

    def migration_lock(self) -> ExitStack | None:
        session = separate(self.alias)
        with ExitStack() as lock:
            lock.callback(session.close)
            with session.cursor() as cursor:
                for statement in sql.MIGRATION_LOCK:
                    cursor.execute(statement)
                is_ours: int = cursor.fetchone()[0]
            lock.callback(_let_go, session)
            return lock.pop_all() if is_ours else None

    @contextmanager
    def short_lock_waits(self) -> Iterator[None]:
        before = self.rows(sql.LOCK_TIMEOUT_NOW)[0][0]
        self.write(sql.SET_LOCK_TIMEOUT, {"seconds": 1})
        try:
            yield
        finally:
            self.write(sql.SET_LOCK_TIMEOUT, {"seconds": before})

    def is_lock_timeout(self, error: OperationalError) -> bool:
        return error.args[:1] == (LOCKED,)

    def rows_of(self, statement: str, ids: Iterable[int], **parameters: Any) -> list[tuple[Any, ...]]:
        """What a statement reads about these ids, in their order: all transactions lock them alike."""
        chunks = batched(sorted(ids), ROWS)
        return [row for some in chunks for row in self.rows(statement, {"ids": json.dumps(some), **parameters})]

    def write_to(self, statement: str, ids: Iterable[int], **parameters: Any) -> None:
        """A statement about these ids."""
        for some in batched(sorted(ids), ROWS):
            self.write(statement, {"ids": json.dumps(some), **parameters})

    def write_given(self, statement: str, given: Iterable[list[Any]]) -> None:
        """A statement about these rows of values."""
        for some in packets(given, length, ROWS):
            self.write(statement, {"given": document(some)})

    def lock_to_delete(self, messages: Sequence[tuple[int, str, str | None]]) -> dict[int, tuple[int | None, int]]:
        """Lock those of these messages (id, kind, key) that are not locked; their tokens and generations."""
        rows = self.rows_of(sql.FREE, [id_ for id_, _, key in messages if key is None])
        names = sorted((kind, key) for _, kind, key in messages if key is not None)
        for some in batched(names, ROWS):
            rows += self.rows(sql.FREE_KEYS, {"names": document(some)})
        return {row[0]: (row[1], row[2]) for row in rows}

    def cancel(self, ids: Iterable[int], errors: str | None = None) -> None:
        """End as cancelled messages that the caller has locked."""
        self.write_to(sql.RECORD_CANCELLED, ids, errors=errors)
        self.write_to(sql.DELETE, ids)


# Asks twice a second for the newest id, which is the last entry of the primary key, and for what is paused.
#
# It notices most messages that were created, and none that was moved: a worker finds those by its next scan, after
# POLL_INTERVAL at the latest.


class MySQLListener(Listener):
    interval: ClassVar[float | None] = 0.5

    def __init__(self, alias: str) -> None:
        super().__init__(alias)
        self._newest = self._ask()

    def _ask(self) -> tuple[int, ...]:
        with self._connection.cursor() as cursor:
            cursor.execute(NEWEST)
            newest: tuple[int, ...] = cursor.fetchone()
        return newest

    def heard(self) -> bool:
        (before, *pauses), (newest, *now) = self._newest, self._ask()
        self._newest = (max(before, newest), *now)
        return newest > before or now != pauses
