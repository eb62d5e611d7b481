"""What docs/stores.md says in numbers."""

from __future__ import annotations

from pathlib import Path

import delayedq
from delayedq.core.backoff import TRIES
from delayedq.core.bounds import EARLIEST
from delayedq.store.mysql.database import MySQLListener
from delayedq.store.postgresql.database import PostgreSQLListener
from delayedq.store.sqlite.database import SQLiteListener

GUIDE = (Path(delayedq.__file__).parent.parent / "docs" / "stores.md").read_text()


def test_the_guide_knows_how_often_a_listener_asks():
    assert PostgreSQLListener.interval is None
    assert f"within {SQLiteListener.interval * 1000:g} ms (`PRAGMA data_version`)" in GUIDE
    assert f"within {MySQLListener.interval:g} s (asks for the newest id)" in GUIDE


def test_the_guide_knows_the_limits_of_mysql():
    assert f"tried up to {TRIES} times" in GUIDE
    assert f"from the year {EARLIEST.year} on" in GUIDE
