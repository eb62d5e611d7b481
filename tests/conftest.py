"""The databases, each set up once for the session and emptied after every test that used it.

A test that touches the queue takes `store` or `alias` and so runs three times, on SQLite, PostgreSQL and MariaDB, with
real commits and real connections; `django_db` is for tests of what does not depend on the database, and means SQLite.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import quote

import pytest
from asgiref.sync import SyncToAsync
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, transaction
from django.db.utils import load_backend
from django.test.utils import setup_databases, teardown_databases
from django.utils import translation

from tests.missing import missing, summary
from tests.router import ChosenDatabase
from tests.server import NoServer, mariadb_socket, postgresql_socket
from tests.settings import SERVED
from tests.template import TEMPLATES

ALIASES = {"sqlite": "default", "postgresql": "postgresql", "mariadb": "mariadb"}
#: Filled by `migrate`, and read by all tests.
KEPT = {"django_migrations", "django_content_type", "auth_permission"}
#: Processes that last until the end of the session.
SERVERS = set()
NO_PARAMETERS = SimpleNamespace(params={})
#: This connection's own counts are written first: else they would come after the reset.
FORGET = ("SELECT pg_stat_force_next_flush()", "SELECT 1", "SELECT pg_stat_reset()")
#: Folders with the longest tests begin first: else one process still runs them when the others are done.
LONGEST = ["pipeline", "browser", "example", "worker"]
#: With more of them, each process of pytest may have a Spark.
MANY_CORES = 4
#: What the default run leaves out, by its marks: what takes minutes, and what a newcomer's environment lacks.
LEFT_OUT = ["nightly", "slow", "mariadb", "spark"]
DEFAULT = f"not ({' or '.join(LEFT_OUT)})"
#: How many tests this run has left out, for each of these marks; "default" are those that the default run does.
LEFT = Counter()
#: Here the pages and the words are tested; what they ask of each database, in `operations` and `store`.
#: So they are slow on all but SQLite.
SAME_EVERYWHERE = {"admin", "desk", "management"}


# Databases


@pytest.fixture(scope="session")
def django_db_setup(django_test_environment, django_db_blocker, tmp_path_factory):
    """SQLite, in a file: threads and processes share it."""
    connections["default"].settings_dict["TEST"]["NAME"] = tmp_path_factory.mktemp("sqlite") / "delayedq.sqlite3"
    with django_db_blocker.unblock():
        databases = _create("default")
    yield
    with django_db_blocker.unblock():
        teardown_databases(databases, verbosity=0)


@pytest.fixture(scope="session")
def postgresql(django_test_environment, django_db_blocker):
    """PostgreSQL; without it these tests are skipped, but fail in CI or where its binaries were named."""
    needed = "DELAYEDQ_TEST_POSTGRESQL_BIN" in os.environ
    with _served("postgresql", postgresql_socket, django_db_blocker, needed=needed):
        yield


@pytest.fixture(scope="session")
def mariadb(django_test_environment, django_db_blocker):
    """MariaDB; without it, or its driver mysqlclient, these tests are skipped, but fail in CI."""
    with _served("mariadb", mariadb_socket, django_db_blocker):
        yield


@contextmanager
def _served(alias, socket, django_db_blocker, *, needed=False):
    before = _children()
    try:
        load_backend(SERVED[alias]["ENGINE"])
        with socket() as path:
            SERVERS.update(_children() - before)
            connections.settings[alias] = {**SERVED[alias], "HOST": path}
            connections.configure_settings(connections.settings)
            with django_db_blocker.unblock():
                _create(alias)
            yield
            connections[alias].close()
    except (NoServer, ImproperlyConfigured) as reason:  # the latter without a driver
        missing(alias, reason, needed=needed)


def _create(alias):
    return setup_databases(verbosity=0, interactive=False, aliases={alias}, serialized_aliases=set())


@pytest.fixture(params=ALIASES)
def alias(request, django_db_setup, django_db_blocker):
    """The alias of a database that holds nothing yet; models are routed to it, and so is the queue."""
    if request.param != "sqlite":
        request.getfixturevalue(request.param)
    chosen = ALIASES[request.param]
    ChosenDatabase.alias = chosen
    with django_db_blocker.unblock():
        yield chosen
        _empty(chosen)
    ChosenDatabase.alias = "default"


def _empty(alias):
    """One transaction of deletes, which is much faster than Django's flush: foreign keys are checked at its end."""
    connection = connections[alias]
    if connection.in_atomic_block or connection.connection is None or not connection.is_usable():
        connection.close()
    with transaction.atomic(using=alias), connection.constraint_checks_disabled(), connection.cursor() as cursor:
        for table in _tables(alias):
            cursor.execute(f"DELETE FROM {connection.ops.quote_name(table)}")


@cache
def _tables(alias):
    return sorted(set(connections[alias].introspection.django_table_names(only_existing=True)) - KEPT)


@pytest.fixture
def connection(alias):
    """The connection of the test's own thread."""
    return connections[alias]


@pytest.fixture
def store(alias):
    """A store that remembers nothing of earlier tests, such as when renewals beside locked rows are to be deleted."""
    from delayedq.store import store_for

    store_for.cache_clear()
    return store_for(alias)


@pytest.fixture
def registry():
    """The registry of tasks, which forgets at the end what the test defines."""
    from delayedq.tasks import registered

    before = dict(registered)
    yield registered
    registered.clear()
    registered.update(before)


@pytest.fixture
def asleep():
    """The id of a child process that does nothing; if it is killed, it stays a zombie until the end of the test."""
    child = subprocess.Popen(["sleep", "600"])
    yield child.pid
    child.kill()
    child.wait()


@pytest.fixture
def environment(alias):
    """The environment of a subprocess that works on the database of this test."""
    settings = connections[alias].settings_dict
    url = f"sqlite:///{settings['NAME']}"
    if alias == "postgresql":
        url = f"postgres://{settings['USER']}@/{settings['NAME']}?host={quote(settings['HOST'])}"
    elif alias == "mariadb":
        url = f"mysql://{settings['USER']}@localhost/{settings['NAME']}?unix_socket={quote(settings['HOST'])}"
    return {**os.environ, "DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": "tests.worker_settings"}


@pytest.fixture(autouse=True)
def _no_flood(monkeypatch):
    """Each test logs as if nothing had been logged in the second before."""
    from delayedq import signals

    monkeypatch.setattr(signals, "_floods", signals.Floods())


# What a test must not leave behind


@pytest.fixture(autouse=True)
def _own_language():
    """A request leaves the language of its reader in the thread: the next test speaks that of the settings."""
    yield
    translation.deactivate()


@pytest.fixture(autouse=True)
def _nothing_left_running():
    """Fail a test that leaves a thread or a child process behind."""
    threads, children = _threads(), _children()
    yield
    deadline = time.monotonic() + 20
    while _threads() - threads and time.monotonic() < deadline:
        time.sleep(0.01)  # Rather than join: a server may start another thread meanwhile, which cannot be joined yet.
    left = [thread.name for thread in _threads() - threads] + [f"process {pid}" for pid in _children() - children]
    assert not left, f"The test left {', '.join(left)} running."


def _threads():
    """Running threads, but for the one that asgiref keeps for all of the process."""
    kept = getattr(SyncToAsync.single_thread_executor, "_threads", set())
    return {thread for thread in threading.enumerate() if thread not in kept}


def _children():
    """The ids of child processes, where the system lists them (Linux)."""
    lists = Path("/proc/self/task").glob("*/children")
    return {pid for children in lists for pid in _text(children).split()} - SERVERS - TEMPLATES.pids()


def _text(path):
    try:
        return path.read_text()
    except OSError:  # that thread has just ended
        return ""


@pytest.fixture
def no_statistics_of_other_tests(request):
    """The doctor judges what PostgreSQL has counted since its statistics were reset; so other tests count for it."""
    if "alias" in request.fixturenames and request.getfixturevalue("alias") == "postgresql":
        with connections["postgresql"].cursor() as cursor:
            for statement in FORGET:
                cursor.execute(statement)


# How pytest runs


def pytest_addoption(parser):
    parser.addoption("--worlds", choices=["usual", "all"], help="Visit worlds: those of each CI run, or all.")


def pytest_ignore_collect(collection_path, config):
    """Worlds take minutes, and install packages: they are visited only if the command line names them."""
    if collection_path.name == "test_worlds.py" and not config.getoption("worlds"):
        return not any("worlds" in Path(path.partition("::")[0]).parts for path in config.args) or None
    return None


def pytest_configure(config):
    """Without arguments, pytest leaves out what LEFT_OUT says. A folder or a file that is named runs whole."""
    if is_default(config):
        config.option.markexpr = DEFAULT
    _write_bytecode(config)


def is_default(config):
    return config.args_source is pytest.Config.ArgsSource.TESTPATHS and not config.option.markexpr


def _write_bytecode(config):
    """Tests start hundreds of processes; each compiles Django and all else again if Python may write no bytecode.

    That takes 0.9 of the 1.4 seconds of processor time that `run_workers` needs to start. So it is written, but not
    beside the source.
    """
    if sys.dont_write_bytecode:
        sys.dont_write_bytecode = False
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = str(config.rootpath / ".cache" / "bytecode")


def pytest_unconfigure():
    TEMPLATES.stop()


def pytest_xdist_auto_num_workers(config):
    """Files and single tests run in this process, where a debugger works and nothing starts twice; folders in several.

    That is one more than there are processors, as tests wait for processes a third of their time; `-n 2` on the command
    line says otherwise.
    """
    return os.cpu_count() + 1 if any(Path(path.partition("::")[0]).is_dir() for path in config.args) else 0


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """A file is run by one process, and so are all files that share the Spark of `tests/pipeline/conftest.py`.

    It takes minutes of a core until Java has compiled what they call, and each process with a Spark of its own would do
    it again. Who has cores to spare is done sooner all the same if each does.
    """
    if config.getoption("dist") != "loadfile" or os.cpu_count() > MANY_CORES:
        return None
    from xdist.scheduler import LoadFileScheduling

    class OneSpark(LoadFileScheduling):
        def _split_scope(self, nodeid):
            return scope_of(super()._split_scope(nodeid))

    return OneSpark(config, log)


def scope_of(file):
    """Files of one scope run in one process, one after the other. Those named `elsewhere` start Sparks themselves."""
    return "spark" if file.startswith("tests/pipeline/") and "elsewhere" not in file else file


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    """What a test logged travels from the process that ran it as UTF-8; some log what that can't hold."""
    report = yield
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report


def pytest_collection_modifyitems(items):
    """Begin with what takes long, and mark for `pytest -m` what needs the extra `mysql`, and what is slow.

    What is slow runs on PostgreSQL each time, or on SQLite if it knows no PostgreSQL; the others wait for the night.
    """
    items.sort(key=_turn)
    elsewhere = {
        "sqlite": {_without_database(test) for test in items if _database(test) == "postgresql"},
        "mariadb": {_without_database(test) for test in items if _database(test) in {"sqlite", "postgresql"}},
    }
    for test in items:
        database = _database(test)
        if "mariadb" in test.fixturenames or database == "mariadb":
            test.add_marker("mariadb")
        if database not in {None, "sqlite"} and _folder(test.path) in SAME_EVERYWHERE:
            test.add_marker("slow")
        if test.get_closest_marker("slow") and _without_database(test) in elsewhere.get(database, ()):
            test.add_marker("nightly")


def pytest_collection_finish():
    """The collected tests, a million objects, live until the end: the garbage collector looks at them no more."""
    gc.collect()
    gc.freeze()


def _database(test):
    """The one on which this run of the test is; None: it has no choice of them."""
    parameters = getattr(test, "callspec", NO_PARAMETERS).params.values()
    return next((one for one in ALIASES if one in parameters), None)


def _without_database(test):
    return test.nodeid.replace(str(_database(test)), "")


@cache
def _folder(path):
    return path.relative_to(Path(__file__).parent).parts[0]


def _turn(test):
    folder = _folder(test.path)
    return LONGEST.index(folder) if folder in LONGEST else len(LONGEST)


# What was not tested


def pytest_deselected(items):
    """Count what the command line leaves out, by the first of the marks that say why the default run does so."""
    for test in items:
        LEFT[next((mark for mark in LEFT_OUT if test.get_closest_marker(mark)), "default")] += 1


def pytest_sessionfinish(session):
    """Processes of xdist, each of which has collected all, tell the one that prints the summary."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left"] = dict(LEFT)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error):
    LEFT.update({} if LEFT else getattr(node, "workeroutput", {}).get("left", {}))


def pytest_terminal_summary(terminalreporter):
    """Say what was not tested: what was left out, and what lacks something that can be installed."""
    if LEFT and (marks := terminalreporter.config.option.markexpr):
        counts = ", ".join(f"{LEFT[one]:,} {one}" for one in [*LEFT_OUT, "default"] if LEFT[one])
        terminalreporter.write_line(f'Left out by -m "{marks}", by their first mark: {counts}.', yellow=True)
    for line in summary(terminalreporter.stats.get("skipped", [])):
        terminalreporter.write_line(line, yellow=True)
