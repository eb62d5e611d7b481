"""One Spark for all tests that need no other, and the addresses of their databases."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

if find_spec("pyspark") is None:
    if os.environ.get("CI") == "true":
        pytest.fail("PySpark is not installed: uv sync --extra spark.")
    collect_ignore_glob = ["test_*.py"]
else:
    from delayedq.exceptions import JavaMissing
    from delayedq.spark.connecting import Address
    from delayedq.spark.java import require_java
    from delayedq.spark.session import start

from tests.conftest import SERVERS, _children

#: Small: the tests share one machine with other tests.
SMALL = {
    "spark.driver.memory": "1g",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
}


def pytest_collection_modifyitems(items):
    for test in items:
        if "java" in test.fixturenames:
            test.add_marker("spark")
            # Spark alone takes minutes to start on a busy machine.
            test.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session")
def java():
    """Without Java these tests are skipped, but fail in CI."""
    try:
        require_java()
    except JavaMissing as reason:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(str(reason))


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


@pytest.fixture(scope="session")
def python():
    """The interpreter that runs the tests, for sessions in subprocesses."""
    return sys.executable
