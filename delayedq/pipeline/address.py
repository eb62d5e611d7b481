"""The database of a store, as executors reach it."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from django.db import connections

from delayedq.exceptions import InvalidOption
from delayedq.pipeline.spark.connecting import Address
from delayedq.pipeline.temporary import temporary_directory

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: What Django adds to libpq's own parameters.
_NOT_LIBPQ = {
    "client_encoding", "context", "cursor_factory", "prepare_threshold", "pool", "server_side_binding",
}  # fmt: skip
_MYSQL_TEXTS = ("unix_socket", "read_default_file", "ssl_mode")


@contextmanager
def address_of(alias: str) -> Iterator[Address]:
    """Good until the end of the block, and for processes on this machine: a file that only we can read.

    What processes that were killed have left is deleted first. Raises InvalidOption for settings that no URL can say.
    """
    url = url_of(alias)
    with temporary_directory("delayedq-database-") as directory:
        path = directory / "database-url"
        path.touch(mode=0o600)
        path.write_text(url)
        yield Address(f"file:{path}")


def url_of(alias: str) -> str:
    """What Django's settings of the database say. Holds the password."""
    connection = connections[alias]
    parameters: dict[str, Any] = connection.get_connection_params()
    if connection.vendor == "postgresql":
        return _postgresql(parameters)
    if connection.vendor == "mysql":
        return _mysql(parameters)
    return f"sqlite:///{quote(str(Path(parameters['database']).absolute()))}"


def database_name(alias: str) -> str:
    """What the database calls itself; of SQLite, the name of its file."""
    name = str(connections[alias].settings_dict["NAME"])
    return Path(name).stem if connections[alias].vendor == "sqlite" else name


def _postgresql(parameters: Mapping[str, Any]) -> str:
    given = {name: value for name, value in parameters.items() if value and name not in _NOT_LIBPQ}
    who, name = _who(given.pop("user", None), given.pop("password", None)), given.pop("dbname", "")
    return f"postgresql://{who}/{quote(name, safe='')}?{urlencode(given, quote_via=quote)}"


def _mysql(parameters: Mapping[str, Any]) -> str:
    if "ssl" in parameters:
        raise InvalidOption(
            "The database's ssl options can't be put into a URL: pass --address, with ssl_mode in its URL."
        )
    who = _who(parameters.get("user"), parameters.get("password"))
    port = f":{parameters['port']}" if parameters.get("port") else ""
    texts = urlencode({name: parameters[name] for name in _MYSQL_TEXTS if parameters.get(name)}, quote_via=quote)
    name = quote(parameters["database"], safe="")
    return f"mysql://{who}{parameters.get('host') or 'localhost'}{port}/{name}?{texts}"


def _who(user: str | None, password: str | None) -> str:
    if not user and not password:
        return ""
    return quote(user or "", safe="") + (f":{quote(password, safe='')}" if password else "") + "@"
