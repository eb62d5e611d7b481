"""One Spark for all tests that need no other, and the addresses of their databases."""

from __future__ import annotations

import fcntl
import os
import sys
import tempfile
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.conftest import SERVERS, _children
from tests.missing import missing

HAS_SPARK = find_spec("pyspark") is not None
HAS_ENGINES = all(find_spec(name) for name in ("polars", "duckdb_ext", "moto"))
NEED_ENGINES = {
    *("test_engines.py", "test_outside_engines.py", "test_engines_elsewhere.py", "test_s3.py", "test_lake_in_s3.py"),
    *("test_questions.py", "test_judged.py", "test_cluster.py"),
}
if HAS_SPARK:
    from delayedq.exceptions import JavaMissing
    from delayedq.pipeline.spark.connecting import Address
    from delayedq.pipeline.spark.java import require_java
    from delayedq.pipeline.spark.session import start

#: Small: the tests share one machine with other tests.
SMALL = {
    "spark.driver.memory": "1g",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
}


#: It runs without PySpark.
NEEDS_NOTHING = Path(__file__).with_name("test_checks.py")


def pytest_pycollect_makemodule(module_path):
    """Without PySpark these modules can't be imported; some need other engines, too."""
    if not HAS_SPARK and module_path != NEEDS_NOTHING:
        missing("pyspark", allow_module_level=True)
    if not HAS_ENGINES and module_path.name in NEED_ENGINES:
        missing("engines", allow_module_level=True)


def pytest_collection_modifyitems(items):
    for test in items:
        if _needs_spark(test.path):
            test.add_marker("spark")
        if "java" in test.fixturenames:
            # Spark alone takes minutes to start on a busy machine.
            test.add_marker(pytest.mark.timeout(600))


@cache
def _needs_spark(path):
    return path.is_relative_to(Path(__file__).parent) and path != NEEDS_NOTHING


@pytest.fixture(scope="session")
def java():
    """Without Java these tests are skipped, but fail in CI."""
    try:
        require_java()
    except JavaMissing as reason:
        missing("java", reason)


@pytest.fixture(scope="session")
def spark(java, tmp_path_factory):
    """Two threads that may try each task three times."""
    before = _children()
    warehouse = tmp_path_factory.mktemp("spark")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path.cwd()), os.environ.get("PYTHONPATH")]))
    session = start("local[2,3]", conf=SMALL | {"spark.sql.warehouse.dir": str(warehouse)})
    SERVERS.update(_children() - before)
    yield session
    session.stop()


@pytest.fixture
def address(environment, tmp_path):
    """Of the database of this test: a file that holds its URL."""
    path = tmp_path / "database-url"
    path.write_text(environment["DATABASE_URL"])
    path.chmod(0o600)
    return Address(f"file:{path}")


@pytest.fixture
def connect_port():
    """One Spark Connect server at a time: PySpark gives each that it starts here the same port."""
    with (Path(tempfile.gettempdir()) / "delayedq-connect-port.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def python():
    """The interpreter that runs the tests, for sessions in subprocesses."""
    return sys.executable
