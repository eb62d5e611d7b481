"""PostgreSQL: its clock, its cursors, and its words in the statements that all databases share."""

from __future__ import annotations

import logging
import os
import re
import secrets
import struct
import time
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self
from weakref import WeakKeyDictionary
from zlib import crc32

import psycopg
from django.db import Error, ProgrammingError, connections
from psycopg import IsolationLevel
from psycopg.adapt import Dumper
from psycopg.pq import Format, TransactionStatus

from delayedq.conf import get_settings
from delayedq.core.lifecycle import FinalOutcome
from delayedq.sql.dialects import POSTGRESQL, Dialect
from delayedq.store.claim_tokens import new_token
from delayedq.store.connecting import separate
from delayedq.store.database import Database, Listener
from delayedq.store.postgresql import sql
from delayedq.store.postgresql.sql import LISTEN, LISTEN_TO_STOPPED, LISTEN_TO_WAITING
from delayedq.store.protocol import Offer

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from django.db import OperationalError
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.backends.utils import CursorWrapper

    from delayedq.store.bare_queues import Matching
    from delayedq.store.protocol import Claimed, ClaimRequest, Finish, GiveBack, Lane

logger = logging.getLogger("delayedq")

# Values on their way into the statements of PostgreSQL: a batch travels as one array for each column.


#: The types of a time and of an array of them; from when a time counts, in what, and in how many bytes.
_TIMESTAMPTZ, _TIMESTAMPTZ_ARRAY = 1184, 1185

_EPOCH, _MICROSECOND, _EIGHT_BYTES = datetime(2000, 1, 1, tzinfo=UTC), timedelta(microseconds=1), 8


def of_offer(offer: Offer) -> dict[str, Any]:
    return {name: getattr(offer, name) for name in sql.OFFER_COLUMNS}


def of_offers(offers: Sequence[Offer]) -> dict[str, Any]:
    """Of at least one. What they have in common is sent once."""
    values = dict(zip(Offer._fields, zip(*offers, strict=True), strict=True))
    parameters = {
        "key": texts(values["key"]),
        "payload": texts(values["payload"]),
        "scheduled_at": moments(values["scheduled_at"]),
    }
    for name, array in _ALIKE.items():
        first, is_same = values[name][0], values[name].count(values[name][0]) == len(offers)
        parameters |= {name: None if is_same else array(values[name]), f"same_{name}": first if is_same else None}
    return parameters


def of_lanes(lanes: Sequence[Lane]) -> dict[str, Any]:
    return {
        "queues": texts([lane.queue for lane in lanes]),
        "priorities": numbers(lane.priority for lane in lanes),
        "watermarks": _as_texts([lane.watermark for lane in lanes]),
    }


def of_lease(lease: timedelta, worker: str, token: int | None = None) -> dict[str, Any]:
    return {"token": token or new_token(), "lease": lease, "worker": worker}


def of_request(request: ClaimRequest) -> dict[str, Any]:
    lease = of_lease(request.lease, request.worker, request.token)
    return {**of_lanes(request.lanes), **lease, "limit": request.limit, "expired": request.expired}


def of_matching(matching: Matching) -> dict[str, Any]:
    """For `sql.claim_matching`. Names are ASCII identifiers, so a path is an array as PostgreSQL writes it."""
    parameters = {**matching.lane._asdict(), **(matching.keys._asdict() if matching.keys else {})}
    for number, condition in enumerate(matching.conditions):
        parameters |= {
            f"path_{number}": "{" + ",".join(f'"{name}"' for name in condition.path) + "}",
            f"values_{number}": list(condition.values),
            f"bound_{number}": next(iter(condition.values), None),
            f"exact_{number}": condition.has_int_bound,
        }
    return parameters


def of_held(held: Collection[tuple[int, int]]) -> dict[str, Any]:
    return {"ids": numbers(id_ for id_, _ in held), "tokens": numbers(token for _, token in held)}


def of_leases(claims: Sequence[Claimed]) -> dict[str, Any]:
    return {
        "ids": numbers(claimed.id for claimed in claims),
        "tokens": numbers(claimed.token for claimed in claims),
        "generations": numbers(claimed.generation for claimed in claims),
    }


def of_finishes(finishes: Sequence[Finish]) -> dict[str, Any]:
    dead = [finish.last_error for finish in finishes] if any(map(_is_dead, finishes)) else []
    return {
        **of_leases([finish.claimed for finish in finishes]),
        "outcomes": texts([None if f.outcome is FinalOutcome.SUCCEEDED else f.outcome.value for f in finishes]),
        "started_us": numbers(None if f.started is None else int(f.started * 1e6) for f in finishes),
        "finished_us": numbers(int(f.finished * 1e6) for f in finishes),
        "results": texts([finish.result for finish in finishes]),
        "errors": texts([finish.errors for finish in finishes]),
        "error_lines": texts([error for error, _ in dead]),
        "fingerprints": numbers(fingerprint for _, fingerprint in dead) if dead else None,
    }


def _is_dead(finish: Finish) -> bool:
    return finish.outcome is FinalOutcome.FAILED


def numbers(values: Iterable[float | None]) -> str:
    """An array of numbers as PostgreSQL writes it: psycopg's own way takes ten times as long for a batch of acks."""
    return "{" + ",".join(["NULL" if value is None else repr(value) for value in values]) + "}"


def texts(values: Sequence[str | None]) -> str | None:
    """The same for texts. An array that holds nothing but NULL need not be sent: unnest() fills it up."""
    if all(value is None for value in values):
        return None
    first = values[0]
    if first is not None and values.count(first) == len(values):  # the metadata of the members of a group
        return "{" + ",".join([_quoted(first)] * len(values)) + "}"
    return "{" + ",".join(["NULL" if value is None else _quoted(value) for value in values]) + "}"


def moments(values: Sequence[datetime | None]) -> str | Moments | None:
    """The same for times. In binary they take a third of the time of texts, here and there."""
    if not any(values):
        return None
    if None in values:
        return _as_texts(values)
    sizes_and_times = [_EIGHT_BYTES] * (2 * len(values))
    sizes_and_times[1::2] = [(value - _EPOCH) // _MICROSECOND for value in values]  # type: ignore[operator]
    return Moments(struct.pack(f">5i{'iq' * len(values)}", 1, 0, _TIMESTAMPTZ, len(values), 1, *sizes_and_times))


def _as_texts(values: Sequence[datetime | None]) -> str:
    """Times as texts, also for cursors that do not know `Moments`."""
    return "{" + ",".join(["NULL" if value is None else f'"{value!s}"' for value in values]) + "}"


class Moments(bytes):
    """An array of times as PostgreSQL sends and receives it in binary."""

    __slots__ = ()


class MomentsDumper(Dumper):
    oid, format = _TIMESTAMPTZ_ARRAY, Format.BINARY

    def dump(self, obj: Moments) -> bytes:
        return bytes(obj)


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


#: The columns in which the offers of a batch are mostly alike, and how they are written where they are not.
_ALIKE: dict[str, Callable[[Sequence[Any]], str | None]]

_ALIKE = {"queue": texts, "kind": texts, "metadata": texts, "priority": numbers, "max_attempts": numbers}


def of_returns(returns: Sequence[GiveBack]) -> dict[str, Any]:
    return {
        **of_leases([back.claimed for back in returns]),
        "charged": [back.charged for back in returns],
        "delays": numbers(back.delay for back in returns),
        "untils": [back.until for back in returns],
        "errors": texts([back.errors for back in returns]),
        "metadata": texts([back.metadata for back in returns]),
    }


# Database


#: A deadlock; a serialization failure.
UNDONE = {"40P01", "40001"}
#: A lock was not free in time.
LOCKED = "55P03"

#: What a prepared statement fails with where a pooler has given its transaction another session: it is not there; its
#: name is taken, or names one with other parameters.
ANOTHER_SESSION = {"26000", "42P05", "08P01"}
#: What it fails with, for as long as its session lasts, when a migration has changed the type of a column.
OTHER_TYPES = "0A000"

#: A statement about so many messages is planned once, as if they were ten. That plan compares each with each: with 64,
#: it is still faster than planning; with 512, it takes 53 ms instead of 7.
FEW = 64


class Given(NamedTuple):
    """A statement, and whether it may be prepared."""

    statement: str
    parameters: dict[str, Any]
    may_prepare: bool


class _BatchCursor(psycopg.Cursor[Any]):
    """Never prepares a statement, whatever the connection's settings say: each batch is planned for its own length."""

    def execute(self, query: Any, params: Any = None, **_: Any) -> Self:
        if isinstance(params.get("scheduled_at"), Moments):  # to know their type costs other statements nothing
            self.adapters.register_dumper(Moments, MomentsDumper)
        return super().execute(query, params, prepare=False, binary=True)


class _PreparingCursor(psycopg.RawCursor[Any]):
    """Prepares each statement. With a threshold of None, which is Django's default, psycopg would not even if asked."""

    def execute(self, query: Any, params: Any = None, **_: Any) -> Self:
        numbered, names = _numbered(query)
        before, self.connection.prepare_threshold = self.connection.prepare_threshold, 0
        try:
            super().execute(numbered, [params[name] for name in names], prepare=True, binary=True)
        finally:
            self.connection.prepare_threshold = before
        # Of a prepared statement psycopg keeps no text, which Django before 6.1 logs as None.
        self._query = _Executed(numbered.encode())  # type: ignore[assignment]
        return self


class _Executed(NamedTuple):
    query: bytes


@cache
def _numbered(statement: str) -> tuple[str, Sequence[str]]:
    """It with $1 for its first parameter, and their names. psycopg would look for them each time in one of more than
    4,096 characters.
    """
    names: dict[str, int] = {}
    numbered = re.sub(r"%\((\w+)\)s", lambda found: f"${names.setdefault(found[1], len(names) + 1)}", statement)
    return numbered.replace("%%", "%"), [*names]


#: For so many seconds a session keeps the plans of prepared statements.
PLANS_LAST = 1.0


@dataclass(slots=True)
class _Use:
    """Of a connection by statements that may be prepared: when each was sent last, and when their plans began.

    is_direct: whether it has one session of the server for itself; None: that was not asked.
    """

    sent_at: dict[str, float] = field(default_factory=dict)
    planned_at: float | None = None
    is_direct: bool | None = None


_USES: WeakKeyDictionary[psycopg.Connection[Any], _Use] = WeakKeyDictionary()

#: Aliases behind a pooler that tells its clients the number of a session, and then gives them others.
_POOLED: set[str] = set()


def _let_go(session: BaseDatabaseWrapper) -> None:
    """End its transaction, whose locks are free at once, not only when the server sees the session end."""
    with suppress(Error):
        session.rollback()


class PostgreSQLDatabase(Database):
    dialect: ClassVar[Dialect] = POSTGRESQL
    heartbeat: ClassVar[str] = sql.HEARTBEAT
    sessions: ClassVar[str] = sql.OTHER_SESSIONS
    end_session: ClassVar[str] = sql.END_SESSION

    def connections_left(self) -> int | None:
        return int(self.rows(sql.CONNECTIONS_LEFT)[0][0])

    def end_lost_session(self, number: int, age: float) -> None:
        """Within `batches` the server takes it for busy, and `idle_in_transaction_session_timeout` does not end it."""
        with suppress(ProgrammingError):  # a role that may not
            self.write(sql.END_LOST_SESSION, {"session": number, "age": age})

    def _clock(self) -> datetime:
        moment: datetime = self.rows(sql.CLOCK)[0][0]
        return moment

    @contextmanager
    def atomic(self, *, savepoint: bool = True) -> Iterator[None]:
        """A transaction of the queue's own runs at READ COMMITTED, whatever OPTIONS say of the others."""
        if self.in_transaction or (level := self._level()) is None:
            with super().atomic(savepoint=savepoint):
                yield
            return
        connection = self.connection.connection
        connection.isolation_level = IsolationLevel.READ_COMMITTED
        try:
            with super().atomic(savepoint=savepoint):
                yield
        finally:
            if not connection.closed:
                connection.isolation_level = level

    def _level(self) -> IsolationLevel | None:
        """What OPTIONS say; None: nothing."""
        self.connection.ensure_connection()
        level: IsolationLevel | None = self.connection.connection.isolation_level
        return level

    def is_deadlock(self, error: OperationalError) -> bool:
        return getattr(error.__cause__, "sqlstate", None) in UNDONE

    builds_indexes_beside: ClassVar[bool] = True

    def migration_lock(self) -> ExitStack | None:
        with ExitStack() as lock:
            is_ours = lock.enter_context(self._holding(sql.MIGRATION_LOCK))
            return lock.pop_all() if is_ours else None

    @contextmanager
    def _holding(self, statement: str) -> Iterator[Any]:
        """What the statement has returned, and the lock that it has taken, in a session of its own.

        It is in a transaction, for which a pooler keeps the session. It has no snapshot, so nothing waits for its end.
        """
        session = separate(self.alias)
        try:
            session.set_autocommit(False)
            with session.cursor() as cursor:
                for one in (*sql.LONG_TRANSACTION, statement):
                    cursor.execute(one)
                answer = cursor.fetchone()[0]
            yield answer
        finally:
            _let_go(session)
            session.close()

    @contextmanager
    def partitions_kept(self) -> Iterator[None]:
        with self._holding(sql.PARTITIONS_LOCK):
            yield

    def partitions(self, table: str) -> list[str]:
        return [row[0] for row in self.rows(sql.PARTITIONS, {"table": table})]

    @contextmanager
    def short_lock_waits(self) -> Iterator[None]:
        """Within a transaction."""
        before = self.rows(sql.LOCK_TIMEOUT_NOW)[0][0]
        self.write(sql.MIGRATION_LOCK_TIMEOUT)
        yield  # after an error the savepoint is rolled back, and with it this setting
        self.rows(sql.SET_LOCK_TIMEOUT, {"timeout": before})

    def is_lock_timeout(self, error: OperationalError) -> bool:
        return getattr(error.__cause__, "sqlstate", None) == LOCKED

    def batch(self, statement: str, parameters: dict[str, Any], *, may_prepare: bool = False) -> list[tuple[Any, ...]]:
        """`rows` for hundreds of messages: parameters stay out of the statement, and rows come in binary.

        Django's cursors write parameters into the statement, and have times written and read as texts.

        may_prepare: it takes longer to plan than to execute. The end of a message with the next claim takes 0.5 ms of
        the server's processor time instead of 2.5. It is prepared where it is sent often. After five times the server
        keeps its plan if that seems not dearer than one for the values at hand, for PLANS_LAST: one of a table that was
        empty reads all of it. It does seem dearer beside a million messages of the future, and then each is planned;
        `plan_cache_mode` must not forbid that, as it is also for batches that are not prepared.
        """
        given = Given(statement, parameters, may_prepare)
        return self.retried(partial(self._batch, given, self._cursor_for(given)))

    def _batch(self, given: Given, kind: type[psycopg.Cursor[Any]]) -> list[tuple[Any, ...]]:
        with self._healing(kind), self._batch_cursor(kind) as cursor:
            cursor.execute(given.statement, {"now": self.now_parameter, **given.parameters})
            rows: list[tuple[Any, ...]] = cursor.fetchall() if cursor.description else []
        return rows

    def _cursor_for(self, given: Given) -> type[psycopg.Cursor[Any]]:
        return _PreparingCursor if given.may_prepare and self._prepares(given.statement) else _BatchCursor

    def _prepares(self, statement: str) -> bool:
        """Whether it is sent often, by a connection that has a session for itself. Old plans of that are forgotten."""
        self.connection.ensure_connection()
        raw, now = self.connection.connection, time.monotonic()
        use = _USES.setdefault(raw, _Use())
        before, use.sent_at[statement] = use.sent_at.get(statement, -inf), now
        if now - before >= PLANS_LAST or not self._is_direct(use):
            return False
        if use.planned_at is None:
            use.planned_at = now
        elif now - use.planned_at >= PLANS_LAST:
            use.planned_at = now
            # By a cursor of Django's, the task would be taken for one that has changed its session.
            with self.connection.wrap_database_errors:
                raw.execute(sql.DISCARD_PLANS)
        return True

    def _is_direct(self, use: _Use) -> bool:
        """Whether no pooler is in between, which may give the next transaction another session. A pooler tells its
        clients a number of its own, and not that of the process that serves them. One that does not is seen when a
        statement fails that was prepared in another session.
        """
        if self.alias in _POOLED:
            return False
        if use.is_direct is None:
            use.is_direct = self.connection.connection.info.backend_pid == self.rows(sql.SESSION)[0][0]
        return use.is_direct

    @contextmanager
    def _healing(self, *kinds: type[psycopg.Cursor[Any]]) -> Iterator[None]:
        """After an error that prepared statements bring, it does not come again."""
        try:
            yield
        except Error as error:
            state = getattr(error.__cause__, "sqlstate", None) if _PreparingCursor in kinds else None
            if state in ANOTHER_SESSION and self.alias not in _POOLED:
                _POOLED.add(self.alias)
                logger.warning(
                    "%s: prepared statements change between transactions, as behind a pooler that does not show "
                    "itself. Claims are not prepared any more.", self.alias, extra={"pid": os.getpid()},
                )  # fmt: skip
            elif state == OTHER_TYPES:
                self.connection.connection.close()  # a pool would lend it again
                self.connection.close()
            raise

    def _batch_cursor(self, kind: type[psycopg.Cursor[Any]] = _BatchCursor) -> CursorWrapper:
        cursor = self.connection.cursor()
        cursor.cursor = kind(self.connection.connection)
        return cursor

    def batches[T](
        self, first: Given, second: Given, meanwhile: Callable[[], T]
    ) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]], T]:
        """Two of `batch` in one round trip, and what is done here meanwhile; in a transaction.

        Where libpq can't do that, one after the other.
        """
        together = self.connection.connection.pipeline if psycopg.capabilities.has_pipeline() else nullcontext
        kinds = [self._cursor_for(given) for given in (first, second)]
        with self._healing(*kinds), self._batch_cursor(kinds[0]) as one, self._batch_cursor(kinds[1]) as other:
            with self.connection.wrap_database_errors, together():
                for cursor, given in ((one, first), (other, second)):
                    cursor.execute(given.statement, {"now": self.now_parameter, **given.parameters})
                done = meanwhile()
            return one.fetchall(), other.fetchall(), done

    def commit_with(self, statement: str, parameters: dict[str, Any]) -> bool:
        """Carry out the last statement of the caller's transaction and commit that, in one round trip.

        False: it has failed, or can't be sent so; nothing was done, and the transaction goes on.

        Django's own commit finds nothing to do then. After an error nobody knows whether it has committed. It is a text
        with a prepared statement in it: a pipeline takes longer than it saves where the database is near.
        """
        if not self._is_outermost() or not self._prepares(statement):
            return False
        raw = self.connection.connection
        if _names(raw) is None:
            return False
        match raw.info.transaction_status:
            case TransactionStatus.IDLE:
                return self._alone(statement, parameters)
            case TransactionStatus.INTRANS:
                return self._in_front_of_commit(statement, parameters)
        return False

    def _is_outermost(self) -> bool:
        """Whether the end of one block is that of the transaction, and commits."""
        one = self.connection
        return one.in_atomic_block and one.commit_on_exit and not (one.savepoint_ids or one.needs_rollback)

    def _alone(self, statement: str, parameters: dict[str, Any]) -> bool:
        """Nothing was sent in the transaction, not even its BEGIN: the statement is one by itself."""
        raw = self.connection.connection
        raw.autocommit = True
        try:
            self._send(statement, parameters, "{}")
        except Error:
            if raw.info.transaction_status is not TransactionStatus.IDLE:
                raise
            raw.autocommit = False
            return False
        return True

    def _in_front_of_commit(self, statement: str, parameters: dict[str, Any]) -> bool:
        raw = self.connection.connection
        try:
            self._send(statement, parameters, sql.AND_COMMIT)
        except Error:
            if raw.info.transaction_status is not TransactionStatus.INERROR:
                raise
            self._write(sql.UNDO_LAST, {})
            return False
        return True

    def _send(self, statement: str, parameters: dict[str, Any], frame: str) -> None:
        """Execute it by the name that it has in this session, or gets now, in this frame of other statements.

        psycopg takes the name for one of its own: it deallocates all of them when it sees a rollback, and is asked
        whether that is still there. It is after a rollback by itself.
        """
        raw = self.connection.connection
        name, prepare, execute = _named(statement)
        known, key = _names(raw), (name, ())
        text = execute if key in known else f"{prepare}; {execute}"
        known[key] = name
        # By a cursor of Django's, the task would be taken for one that has changed its session.
        with self.connection.wrap_database_errors, psycopg.ClientCursor(raw) as cursor:
            cursor.execute(frame.format(text), {"now": self.now_parameter, **parameters})


def _names(raw: psycopg.Connection[Any]) -> Any:
    """The names that psycopg knows of prepared statements of this session. None: this version keeps them elsewhere."""
    return getattr(getattr(raw, "_prepared", None), "_names", None)


@cache
def _named(statement: str) -> tuple[bytes, str, str]:
    """A name for it, what prepares it under that, and what executes that."""
    numbered, names = _numbered(statement)
    name = f"delayedq_{crc32(statement.encode()):x}"
    values = ", ".join(f"%({one})s" for one in names)
    return name.encode(), f"PREPARE {name} AS {numbered.replace('%', '%%')}", f"EXECUTE {name} ({values})"


# LISTEN on a connection of its own, which must be a session of its own: not one of PgBouncer in transaction mode.


WAITING, STOPPED = "delayedq_waiting", "delayedq_stopped"

# Only the listener that sends a proof knows its payload. Others are woken, and scan nothing.
LISTEN_TO_PROOF = "LISTEN delayedq_proof"

SEND_PROOF = "SELECT pg_notify('delayedq_proof', %(proof)s)"


class PostgreSQLListener(Listener):
    """Connects as the alias does, or by DELAYEDQ["LISTENER_DSN"], which goes round a pooler."""

    interval: ClassVar[float | None] = None
    listen_to: ClassVar[tuple[str, ...]] = (LISTEN, LISTEN_TO_WAITING, LISTEN_TO_STOPPED)
    channel: ClassVar[str] = "delayedq"

    def __init__(self, alias: str) -> None:
        super().__init__(alias)
        self._proof = secrets.token_hex(8)
        with self._connection.cursor() as cursor:
            for statement in self.listen_to:
                cursor.execute(statement)

    def _connect(self) -> BaseDatabaseWrapper:
        connection = super()._connect()
        if dsn := get_settings().LISTENER_DSN:
            _address(connection.settings_dict, dsn)
        return connection

    @property
    def _psycopg(self) -> Any:
        return self._connection.connection

    def fileno(self) -> int:
        fd: int = self._psycopg.fileno()
        return fd

    def begin_proof(self) -> None:
        self.proved = False
        with self._connection.cursor() as cursor:
            cursor.execute(LISTEN_TO_PROOF)
        with connections[self._alias].cursor() as cursor:
            cursor.execute(SEND_PROOF, {"proof": self._proof})

    def heard(self) -> bool:
        with self._connection.wrap_database_errors:
            notifications = list(self._psycopg.notifies(timeout=0))
        self.proved = self.proved or any(one.payload == self._proof for one in notifications)
        self.heard_waiting = self.heard_waiting or any(one.channel == WAITING for one in notifications)
        self.heard_stopped = self.heard_stopped or any(one.channel == STOPPED for one in notifications)
        return any(one.channel == self.channel for one in notifications)


def _address(settings: dict[str, Any], dsn: str) -> None:
    """Put where the DSN points to into the settings of a Django connection; what it leaves out is libpq's default."""
    from psycopg.conninfo import conninfo_to_dict  # only projects on PostgreSQL have it

    given = conninfo_to_dict(dsn)
    names = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host", "PORT": "port"}
    settings.update({name: given.pop(parameter, "") for name, parameter in names.items()})
    settings["OPTIONS"] = {**settings["OPTIONS"], "pool": False, **given}
