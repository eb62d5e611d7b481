"""Connections to the queue's database, on the driver and in executors.

What travels in plans, logs and web pages is an `Address`: a reference to a database URL, not the URL. Each process
follows the reference where it runs, so on a cluster the variable or file has to be there, as secrets are.
"""

from __future__ import annotations

import os
import re
import sqlite3
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from delayedq.core.bounds import is_storable
from delayedq.exceptions import DatabaseUnreachable, InvalidOption
from delayedq.extras import told

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import pyarrow as pa

#: By the scheme of the URL.
_VENDORS = {
    "postgresql": "postgresql",
    "postgres": "postgresql",
    "mysql": "mysql",
    "mariadb": "mysql",
    "sqlite": "sqlite",
}
#: The extra of a driver, by its module; all others are of "spark".
_EXTRAS = {"psycopg": "postgres", "MySQLdb": "mysql"}
_KINDS = "env:NAME, file:PATH, service:NAME or sqlite:PATH"
#: In the query of a URL; one with an `&` seems to be several options.
_PASSWORD_OPTION = re.compile(r"[?&][^=&]*pass[^=&]*=(.*)", re.IGNORECASE)
_PLACEHOLDER = re.compile(r"%\((\w+)\)s")
#: The function that SQLite is given, as it has none for SHA-256.
SQLITE_FUNCTION = "delayedq_sha256"
#: Seconds for which SQLite waits for its write lock.
_SQLITE_TIMEOUT = 60


@dataclass(frozen=True, slots=True)
class Address:
    """Where a database's URL is kept. Safe to show.

    `env:NAME`      an environment variable that holds the URL
    `file:PATH`     a file that holds it, readable by its owner only
    `service:NAME`  a PostgreSQL service file (PGSERVICEFILE, PGPASSFILE)
    `sqlite:PATH`   a SQLite file itself, which has no password

    A URL is postgresql://user:password@host/name, mysql://... or sqlite:///path, each with ?option=value of its driver.
    """

    reference: str

    def __post_init__(self) -> None:
        kind, _, name = self.reference.partition(":")
        if kind not in {"env", "file", "service", "sqlite"} or not name or not is_storable(name):
            raise InvalidOption(f"An address is {_KINDS}; a URL itself would show its password in plans and logs.")

    def resolve(self) -> str:
        """The URL, or for a service libpq's text. Holds the password.

        Raises DatabaseUnreachable if the reference leads nowhere.
        """
        kind, _, name = self.reference.partition(":")
        if kind == "service":
            return "service='" + re.sub(r"(['\\])", r"\\\1", name) + "'"
        if kind == "sqlite":
            return f"sqlite:///{quote(name)}"
        try:
            return (os.environ[name] if kind == "env" else Path(name).read_text()).strip()
        except (KeyError, OSError, ValueError) as error:  # the last one: bytes that are no text
            raise DatabaseUnreachable(
                f"The URL at the address {self.reference} can't be read: {type(error).__name__}."
            ) from None

    @property
    def vendor(self) -> str:
        """The name of the engine, as Django's connections have it: postgresql, mysql or sqlite."""
        url = self.resolve()
        scheme = "postgresql" if url.startswith("service=") else url.partition(":")[0]
        if scheme not in _VENDORS:
            raise InvalidOption(f"The URL at {self.reference} is not one of postgresql://, mysql:// and sqlite:///.")
        return _VENDORS[scheme]


class Connection:
    """One way to speak to the three engines: `%(name)s` for parameters, aware times, transactions that say so."""

    def __init__(self, vendor: str, raw: Any) -> None:
        self.vendor = vendor
        self._raw = raw

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._raw.close()

    def execute(self, statement: str, parameters: Mapping[str, object] | None = None) -> int:
        """Run it; returns how many rows it changed."""
        with self._executed(statement, parameters) as cursor:
            count: int = cursor.rowcount
        return count

    def execute_many(self, statement: str, rows: list[dict[str, Any]]) -> None:
        """Run it once for each row."""
        with closing(self._raw.cursor()) as cursor:
            cursor.executemany(self._worded(statement), [self._adapted(row) for row in rows])

    def rows(self, statement: str, parameters: Mapping[str, object] | None = None) -> list[tuple[Any, ...]]:
        """All rows that it finds, as tuples."""
        with self._executed(statement, parameters) as cursor:
            return [tuple(row) for row in cursor.fetchall()]

    def stream(self, statement: str, parameters: Mapping[str, object], size: int) -> Iterator[list[tuple[Any, ...]]]:
        """The rows in lists of `size`, without holding them all. For SQLite and MySQL; PostgreSQL has `arrow`."""
        with self._executed(statement, parameters, streams=True) as cursor:
            while rows := cursor.fetchmany(size):
                yield list(rows)

    @contextmanager
    def transaction(self, *begin: str) -> Iterator[None]:
        """All or nothing. `begin` replaces the plain BEGIN; on SQLite that takes the write lock at once."""
        for statement in begin or ("BEGIN IMMEDIATE" if self.vendor == "sqlite" else "BEGIN",):
            self.execute(statement)
        try:
            yield
        except BaseException:
            self._raw.rollback()
            raise
        self.execute("COMMIT")

    @contextmanager
    def _executed(
        self, statement: str, parameters: Mapping[str, object] | None, *, streams: bool = False
    ) -> Iterator[Any]:
        with closing(self._cursor(streams=streams)) as cursor:
            if parameters:
                cursor.execute(self._worded(statement), self._adapted(parameters))
            else:
                cursor.execute(statement)
            yield cursor

    def _cursor(self, *, streams: bool) -> Any:
        if streams and self.vendor == "mysql":
            from MySQLdb.cursors import SSCursor

            return self._raw.cursor(SSCursor)
        return self._raw.cursor()

    def _worded(self, statement: str) -> str:
        return _PLACEHOLDER.sub(r":\1", statement) if self.vendor == "sqlite" else statement

    def _adapted(self, parameters: Mapping[str, object]) -> dict[str, object]:
        return {name: self._stored(value) for name, value in parameters.items()}

    def _stored(self, value: object) -> object:
        """Times as Django stores them: SQLite and MySQL know no zones, and get UTC."""
        if self.vendor == "postgresql" or not isinstance(value, datetime):
            return value
        naive = value.astimezone(UTC).replace(tzinfo=None)
        return str(naive) if self.vendor == "sqlite" else naive


class ArrowConnection:
    """PostgreSQL, in Arrow."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._raw.close()

    def execute(self, statement: str, *parameters: object) -> None:
        with closing(self._raw.cursor()) as cursor:
            cursor.execute(statement, parameters or None)

    def batches(self, statement: str) -> Iterator[pa.RecordBatch]:
        """The rows as they arrive."""
        with closing(self._raw.cursor()) as cursor:
            cursor.execute(statement)
            yield from cursor.fetch_record_batch()

    def ingest(self, table: str, batches: pa.RecordBatchReader) -> int:
        """COPY into the columns of the same names, all or nothing; returns how many rows."""
        with closing(self._raw.cursor()) as cursor:
            count: int = cursor.adbc_ingest(table, batches, mode="append")
        return count


def as_instant(time: datetime | str) -> datetime:
    """A time as drivers give it: where it tells no zone, it means UTC."""
    moment = datetime.fromisoformat(time) if isinstance(time, str) else time
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def connect(address: Address) -> Connection:
    """A connection that commits each statement, unless `transaction` says otherwise.

    Raises DatabaseUnreachable, which shows no password.
    """
    vendor, url = address.vendor, address.resolve()
    openers: dict[str, Callable[[str], Any]] = {"postgresql": _postgresql, "mysql": _mysql, "sqlite": _sqlite}
    return Connection(vendor, _reached(address, partial(openers[vendor], url)))


def arrow(address: Address) -> ArrowConnection:
    """A connection to PostgreSQL that speaks Arrow, and commits each statement. Raises DatabaseUnreachable."""
    return ArrowConnection(_reached(address, partial(_arrow, address.resolve())))


def _reached[T](address: Address, opener: Callable[[], T]) -> T:
    try:
        return opener()
    except ImportError as error:
        extra = _EXTRAS.get(str(error.name), "spark")
        raise DatabaseUnreachable(f"No driver of {address.vendor} here: {told(error, extra)}") from None
    except Exception as error:  # noqa: BLE001 - each driver has errors of its own
        reason = _without_password(str(error), address.resolve())
        raise DatabaseUnreachable(f"No connection to the database of {address.reference}: {reason}") from None


def _without_password(text: str, url: str) -> str:
    """Drivers show the part of a URL that they can't read: of a password with an `@` or `/`, what comes after that."""
    password = url.partition("://")[2].rpartition("@")[0].partition(":")[2]
    given = {password, *_PASSWORD_OPTION.findall(url)}
    for secret in sorted({url, *given, *map(unquote, given)} - {""}, key=len, reverse=True):
        text = text.replace(secret, "***")
    words = {word for secret in given | {*map(unquote, given)} for word in re.findall(r"\w+", secret)}
    return re.sub(r"\w+", lambda found: "***" if found[0] in words else found[0], text).strip()


def _postgresql(url: str) -> Any:
    import psycopg

    return psycopg.connect(url, autocommit=True)


def _arrow(url: str) -> Any:
    from adbc_driver_postgresql import dbapi

    return dbapi.connect(url, autocommit=True)


def _mysql(url: str) -> Any:
    import MySQLdb

    parts = urlsplit(url)
    given = {"host": parts.hostname, "port": parts.port, "user": parts.username, "password": parts.password}
    options: dict[str, Any] = {
        name: unquote(value) if isinstance(value, str) else value for name, value in given.items() if value is not None
    }
    options |= dict(parse_qsl(parts.query))
    return MySQLdb.connect(
        **options, database=unquote(parts.path[1:]), charset="utf8mb4", autocommit=True, init_command=_MYSQL_ZONE
    )


_MYSQL_ZONE = "SET time_zone = '+00:00', sql_mode = concat(@@sql_mode, ',STRICT_TRANS_TABLES')"


def _sqlite(url: str) -> sqlite3.Connection:
    """A file that is not there is an error, not an empty database."""
    file = Path(unquote(urlsplit(url).path[1:])).absolute().as_uri()
    raw = sqlite3.connect(f"{file}?mode=rw", uri=True, timeout=_SQLITE_TIMEOUT, isolation_level=None)
    raw.create_function(SQLITE_FUNCTION, 1, _sha256, deterministic=True)
    return raw


def _sha256(text: str | bytes | None) -> str | None:
    """The body of SQLITE_FUNCTION. SQLite stores bytes in columns of texts, too; they are read as texts."""
    if text is None:
        return None
    return sha256(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")).hexdigest()
