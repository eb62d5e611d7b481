"""Check what delayedq needs of a database and Django may do without: psycopg 3, and a version that is new enough."""

from __future__ import annotations

from django.core.exceptions import ImproperlyConfigured
from django.db import NotSupportedError, connections

from delayedq.conf import ExtraMissing
from delayedq.extras import cure

#: Since then psycopg tells what libpq can do (`psycopg.capabilities`).
PSYCOPG = (3, 2)
#: The extra of a driver, by the word with which Django names it.
_EXTRAS = {"psycopg": "postgres", "psycopg2": "postgres", "MySQLdb": "mysql", "mysqlclient": "mysql"}
#: The oldest versions that have what the statements use. Django's own bounds may be higher.
OLDEST = {"PostgreSQL": (15,), "SQLite": (3, 37), "MariaDB": (10, 11), "MySQL": (8, 4)}


def usable_vendor(alias: str) -> str:
    """The vendor of the database. Raises ExtraMissing without a driver that the store can use."""
    try:
        vendor = connections[alias].vendor
    except ImproperlyConfigured as error:
        if (problem := problem_of_driver(error)) is None:
            raise
        raise ExtraMissing(f"DATABASES[{alias!r}]: {problem}") from error
    if vendor == "postgresql" and (problem := _problem_of_psycopg()):
        wanted = ".".join(map(str, PSYCOPG))
        raise ExtraMissing(
            f"DATABASES[{alias!r}]: delayedq needs psycopg {wanted} or newer, and {problem}: {cure('postgres')}."
        )
    return vendor


def problem_of_driver(error: ImproperlyConfigured) -> str | None:
    """What Django says of a driver that it can't import, or finds too old, with the cure; None of any other error."""
    module = getattr(error.__cause__, "name", None) or str(error).partition(" ")[0]
    if (extra := _EXTRAS.get(str(module).partition(".")[0])) is None:
        return None
    said = str(error).partition("\n")[0].rstrip(".")
    return f"{said}: {cure(extra)}."


def _problem_of_psycopg() -> str | None:
    try:
        import psycopg
    except ModuleNotFoundError:
        return "it is not installed (psycopg2 is another package)"
    except ImportError as error:  # without libpq
        return f"it can't be imported ({str(error).partition(chr(10))[0]})"
    found = tuple(int(part) for part in psycopg.__version__.split(".")[:2])
    return None if found >= PSYCOPG else f"this is {psycopg.__version__}"


def too_old(alias: str) -> str | None:
    """What is wrong with the version of the database, in a sentence. It connects, but to SQLite.

    Raises django.db.Error if the database does not answer.
    """
    connection = connections[alias]
    try:
        found, name = connection.get_database_version(), connection.display_name
    except NotSupportedError as error:  # Django does not connect to it
        return f"DATABASES[{alias!r}]: {error}"
    oldest = max(OLDEST.get(name, ()), tuple(connection.features.minimum_database_version or ()))
    if tuple(found) >= oldest:
        return None
    wanted, this = (".".join(map(str, version)) for version in (oldest, found))
    return f"DATABASES[{alias!r}]: delayedq needs {name} {wanted} or newer, and this is {this}."
