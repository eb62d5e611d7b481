"""The worlds: each a Python, packages, a database, settings, and what a process may do there.

`pytest tests/worlds` visits those that every CI run visits, `pytest tests/worlds --worlds=all` the nightly ones too.
README's table of versions is made of the former (`table`), and a test compares them.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

#: Python of `.python-version`.
USUAL = "3.13"
DJANGO = "django~=6.1.0"


def lowest(*extras: str) -> tuple[str, ...]:
    """The lowest versions that pyproject.toml allows, of what everybody needs and of these extras."""
    declared = [*PROJECT["dependencies"], *(one for extra in extras for one in PROJECT["optional-dependencies"][extra])]
    return tuple(re.sub(r">=([\d.]+).*", r"==\1", one) for one in declared)


@dataclass(frozen=True, kw_only=True)
class World:
    """What the traveller finds. `name` is the id of its test."""

    name: str
    #: What is different there, beside what the other columns of a table say.
    about: str = ""
    #: Of `databases.SERVED`; "sqlite" is the file of `startproject`.
    database: str = "sqlite"
    python: str = USUAL
    django: str = DJANGO
    #: Extras of delayedq; that of the database's driver need not be named.
    extras: tuple[str, ...] = ()
    #: Requirements beside the wheel.
    packages: tuple[str, ...] = ()
    #: Python at the end of the settings.
    settings: str = ""
    #: SQL for the administrator of the database, before `migrate`.
    prepare: tuple[str, ...] = ()
    #: Ids of what `check --database default` warns of.
    warned: frozenset[str] = frozenset()
    #: What a line in the log of workers may say, beside what all say; regular expressions.
    logged: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict, hash=False)
    #: Flags of Python.
    flags: tuple[str, ...] = ()
    #: A command that runs its arguments in a narrower place, which may need root.
    wrapper: tuple[str, ...] = ()
    #: Files that must be there.
    needs: tuple[str, ...] = ()
    #: Is visited only if asked for.
    nightly: bool = False

    @property
    def all_extras(self) -> tuple[str, ...]:
        drivers: dict[str, tuple[str, ...]] = {"sqlite": (), "mariadb": ("mysql",), "mysql": ("mysql",)}
        backport = ("django52",) if "5.2" in self.django else ()
        return (*drivers.get(self.database.partition(" ")[0], ("postgres",)), *backport, *self.extras)


def _options(**options: object) -> str:
    return f'DATABASES["default"].setdefault("OPTIONS", {{}}).update({options!r})\n'


def _database(**options: object) -> str:
    return f'DATABASES["default"].update({options!r})\n'


#: Settings that the checks ask for on SQLite.
SQLITE = _options(
    transaction_mode="IMMEDIATE",
    timeout=30,
    init_command="PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
)
AS_STARTPROJECT_MAKES_IT = frozenset({"delayedq.W001", "delayedq.W002"})

#: Each version that README names. The newest of each are also those of all worlds below.
VERSIONS = (
    World(
        name="lowest",
        about="the lowest versions that `pyproject.toml` allows",
        django="django==5.2",
        python="3.12",
        database="postgresql 15",
        packages=lowest("django52", "postgres"),
    ),
    World(name="django-5.2", about="with the options that the checks ask for", django="django~=5.2.0", settings=SQLITE),
    World(name="django-6.0.0", django="django==6.0", python="3.12", database="postgresql 18"),
    World(name="django-6.0", django="django~=6.0.0", database="postgresql 17"),
    World(
        name="django-next",
        about="the newest Django, pre-releases included",
        django="django>=6.1a1",
        database="postgresql 18",
        nightly=True,
    ),
    World(
        name="python-3.14",
        about="with the extras `cli` and `prometheus`",
        python="3.14",
        database="postgresql 18",
        extras=("cli", "prometheus"),
    ),
    World(
        name="sqlite",
        about="as `startproject` leaves it; the wheel alone",
        warned=AS_STARTPROJECT_MAKES_IT,
        logged=(r"Worker .* (\(database is locked\)|answers again).*",),
    ),
    World(name="sqlite-3.14", python="3.14", settings=SQLITE, nightly=True),
    World(name="postgresql-16", database="postgresql 16", nightly=True),
    World(name="mariadb", database="mariadb 10.11"),
    World(name="mariadb-5.2", django="django~=5.2.0", python="3.12", database="mariadb 10.11", nightly=True),
    World(name="mysql", database="mysql 9.7"),
)

#: Settings of the project, on PostgreSQL 18 unless they are of another database.
SETTINGS = (
    World(name="pgbouncer", about="in transaction mode, with `LISTENER_DSN`", database="pgbouncer"),
    World(
        name="pool",
        about='`OPTIONS = {"pool": True}`',
        packages=("psycopg[pool]",),
        settings=_options(pool=True),
        database="postgresql 18",
    ),
    World(
        name="pool-of-two",
        about="a pool of at most 2 connections",
        packages=("psycopg[pool]",),
        settings=_options(pool={"min_size": 1, "max_size": 2, "timeout": 5}),
        database="postgresql 18",
    ),
    World(
        name="connections-kept",
        about="`CONN_MAX_AGE = None` with health checks",
        settings=_database(CONN_MAX_AGE=None, CONN_HEALTH_CHECKS=True),
        database="postgresql 18",
    ),
    World(
        name="connections-not-kept",
        about="`CONN_MAX_AGE = 0` with health checks",
        settings=_database(CONN_MAX_AGE=0, CONN_HEALTH_CHECKS=True) + SQLITE,
    ),
    World(
        name="server-side-binding",
        about='`OPTIONS = {"server_side_binding": True}`',
        settings=_options(server_side_binding=True),
        database="postgresql 18",
    ),
    World(
        name="atomic-requests",
        about="`ATOMIC_REQUESTS`",
        settings=_database(ATOMIC_REQUESTS=True),
        database="postgresql 18",
    ),
    World(
        name="atomic-requests-sqlite",
        about="`ATOMIC_REQUESTS`",
        settings=_database(ATOMIC_REQUESTS=True) + SQLITE,
        nightly=True,
    ),
    World(
        name="prometheus-engine",
        about="the `ENGINE` of django-prometheus",
        packages=("django-prometheus",),
        settings=_database(ENGINE="django_prometheus.db.backends.postgresql"),
        database="postgresql 18",
    ),
    World(
        name="prometheus-engine-sqlite",
        about="the `ENGINE` of django-prometheus",
        packages=("django-prometheus",),
        settings=_database(ENGINE="django_prometheus.db.backends.sqlite3") + SQLITE,
        nightly=True,
    ),
    World(
        name="postgis-engine",
        about="the `ENGINE` of GeoDjango",
        settings=_database(ENGINE="django.contrib.gis.db.backends.postgis"),
        needs=("/usr/share/postgresql/15/extension/postgis.control",),
        database="postgresql 15",
        nightly=True,
    ),
    World(
        name="search-path",
        about="the tables in another schema",
        prepare=("CREATE SCHEMA shop",),
        settings=_options(options="-c search_path=shop"),
        database="postgresql 18",
    ),
    World(
        name="assume-role",
        about='`OPTIONS = {"assume_role": ...}`',
        prepare=("CREATE ROLE owner", "CREATE ROLE guest LOGIN IN ROLE owner", "GRANT ALL ON SCHEMA public TO owner"),
        settings=_database(USER="guest") + _options(assume_role="owner"),
        database="postgresql 18",
    ),
    World(
        name="role-without-ddl",
        about="a role that may only read and write rows; another one migrates",
        prepare=(
            "CREATE ROLE visitor LOGIN",
            "ALTER DEFAULT PRIVILEGES GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO visitor",
            "ALTER DEFAULT PRIVILEGES GRANT USAGE ON SEQUENCES TO visitor",
        ),
        settings='import sys\nif "migrate" not in sys.argv:\n    DATABASES["default"]["USER"] = "visitor"\n',
        database="postgresql 18",
    ),
    World(
        name="serializable",
        about="`isolation_level` SERIALIZABLE",
        settings="from django.db.backends.postgresql.psycopg_any import IsolationLevel\n"
        + _options(isolation_level=4).replace("4", "IsolationLevel.SERIALIZABLE"),
        warned=frozenset({"delayedq.W003"}),
        database="postgresql 18",
    ),
    World(
        name="replica",
        about="a router that reads from a streaming replica",
        settings='DATABASE_ROUTERS = ["journey.router.Replica"]\n',
        database="replica",
    ),
    World(
        name="custom-user",
        about="`AUTH_USER_MODEL` of the project",
        settings='AUTH_USER_MODEL = "journey.Person"\n' + SQLITE,
    ),
    World(
        name="no-logging", about="`LOGGING_CONFIG = None`", settings="LOGGING_CONFIG = None\n", database="postgresql 18"
    ),
)

#: Where processes may do less. Only root can make some of these places.
PLACES = (
    World(name="optimized", about="`python -O`", flags=("-O",), database="postgresql 18"),
    World(
        name="c-locale",
        about="the locale C, without the UTF-8 mode of Python",
        environment={"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        database="postgresql 18",
    ),
    World(
        name="64-files",
        about="at most 64 open files in a process",
        wrapper=("sh", "-c", 'ulimit -n 64 && exec "$@"', "sh"),
        database="postgresql 18",
    ),
    World(
        name="read-only",
        about="a read-only file system, and 64 kB in `/dev/shm`",
        wrapper=(
            *("unshare", "--mount", "sh", "-c"),
            'mount -t tmpfs -o size=64k tmpfs /dev/shm && mount -o remount,bind,ro / && exec "$@"',
            "sh",
        ),
        database="postgresql 18",
    ),
    World(
        name="pid-1",
        about="`run_workers` as process 1 of a namespace",
        wrapper=("unshare", "--pid", "--fork", "--mount-proc", "--kill-child"),
        database="postgresql 18",
    ),
)
WORLDS = (*VERSIONS, *SETTINGS, *PLACES)


# Tables -------------------------------------------------------------------------------------------------------------

#: What may also work, and was not run: another row of README's table.
NOT_RUN = {"Python": "free-threaded builds", "SQLite": "others from 3.37 on", "MySQL": "8.4"}


def versions() -> str:
    """README's table: what every CI run starts a new project on."""
    visited = [one for one in WORLDS if not one.nightly]
    found: dict[str, list[str]] = {
        "Python": [],
        "Django": [],
        "PostgreSQL": [],
        "SQLite": [],
        "MariaDB": [],
        "MySQL": [],
    }
    names = {name.lower(): name for name in found}
    for one in visited:
        found["Python"].append(one.python)
        found["Django"].append(_django(one.django))
        kind, _, number = one.database.partition(" ")
        if number:
            found[names[kind]].append(number)
    found["SQLite"].append("3.40 (of Debian 12)")
    found["PostgreSQL"].append("behind PgBouncer")
    rows = [
        f"| {name} | {', '.join(sorted(set(has), key=_order))} | {NOT_RUN.get(name, '')} |"
        for name, has in found.items()
    ]
    return "\n".join(["| | Every CI run starts a new project on | Not run |", "| --- | --- | --- |", *rows])


def listing() -> str:
    """The table of docs/deploy/worlds.md: all worlds."""
    rows = [
        f"| {one.name} | {one.python} | {_django(one.django)} | {_database_of(one)} | {one.about} | "
        f"{'nightly' if one.nightly else 'each run'} |"
        for one in WORLDS
    ]
    head = [
        "| World | Python | Django | Database | What is different | When |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    return "\n".join([*head, *rows])


def _database_of(world: World) -> str:
    shown = {"postgresql": "PostgreSQL", "sqlite": "SQLite", "mariadb": "MariaDB", "mysql": "MySQL"}
    others = {"pgbouncer": "PostgreSQL 18 behind PgBouncer", "replica": "PostgreSQL 18 with a replica"}
    kind, space, number = world.database.partition(" ")
    return others.get(kind) or f"{shown[kind]}{space}{number}"


def _django(specifier: str) -> str:
    """`django==5.2` is the first release of that version, `django~=5.2.0` its newest."""
    number = re.sub(r"[^\d.ab]", "", specifier.removeprefix("django"))
    if "==" in specifier:
        return f"{number}.0"
    return number.removesuffix(".0") if "~=" in specifier else "pre-release"


def _order(version: str) -> list[int]:
    numbers = [int(number) for number in re.findall(r"\d+", version)]
    return numbers or [10**6]  # words come last


if __name__ == "__main__":
    print(versions(), listing(), sep="\n\n")  # noqa: T201  to copy into the pages
