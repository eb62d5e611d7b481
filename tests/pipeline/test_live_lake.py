"""The live table of the example project: each end of a message once, whatever is killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from example_project.flights import live
from example_project.flights.live import CHECKPOINT, add, trigger
from tests.pipeline.queued import history

ROOT = Path(__file__).parents[2]
LAST_ENDS = re.search(r"^SELECT id, max_by.*?;", (ROOT / "docs" / "pipeline.md").read_text(), re.MULTILINE | re.DOTALL)[
    0
]
#: Seconds that a stream has to start and to add a batch, on a busy machine.
PATIENCE = 300


def ids(path):
    if not DeltaTable.is_deltatable(str(path)):
        return []
    return sorted(DeltaTable(str(path)).to_pyarrow_table(columns=["id"])["id"].to_pylist())


def test_a_batch_that_is_run_again_is_added_once(tmp_path):
    rows = of(a=1, b=2)

    assert add(rows, 0, tmp_path)
    assert not add(rows, 0, tmp_path)
    assert add(of(c=3), 1, tmp_path)
    assert not add(rows, 0, tmp_path)

    assert ids(tmp_path) == [1, 2, 3]


def of(minute=0, **messages):
    """Rows of messages that ended in this minute, by their state."""
    ended = [datetime(2013, 3, 8, 12, minute, tzinfo=UTC)] * len(messages)
    ends = pa.array(ended, pa.timestamp("us", "UTC"))
    return pa.table({"id": [*messages.values()], "state": [*messages], "finished_at": ends})


def test_a_message_that_is_changed_takes_the_place_of_its_former_row(tmp_path):
    """As its result expires, or it is discarded: PostgreSQL writes the row anew, and the stream has it again."""
    for number, rows in enumerate([of(succeeded=1, failed=2), of(minute=5, failed=3), of(discarded=2, cancelled=4)]):
        assert add(rows, number, tmp_path)
        assert not add(rows, number, tmp_path)
    assert add(of(minute=9, succeeded=2), 3, tmp_path)  # it was retried, and ended again
    assert ids(tmp_path) == [1, 2, 2, 3, 4]
    rows = DeltaTable(str(tmp_path)).to_pyarrow_table()
    found = zip(rows["id"].to_pylist(), rows["state"].to_pylist(), strict=True)
    assert {(id_, state) for id_, state in found if id_ == 2} == {(2, "discarded"), (2, "succeeded")}


def test_the_last_end_of_each_message_as_the_guide_asks_for_it(tmp_path):
    duckdb = pytest.importorskip("duckdb")
    for number, rows in enumerate([of(failed=2), of(minute=1, succeeded=1), of(minute=9, cancelled=2)]):
        assert add(rows, number, tmp_path)
    ends = DeltaTable(str(tmp_path)).to_pyarrow_table()
    with duckdb.connect() as connection:
        connection.register("ends", ends)
        found = connection.execute(LAST_ENDS.replace("delta_scan('/srv/live')", "ends")).fetchall()

    assert sorted(row[:2] for row in found) == [(1, "succeeded"), (2, "cancelled")]


def test_small_files_are_joined_and_deleted_when_no_reader_needs_them(monkeypatch, tmp_path):
    monkeypatch.setattr(live, "JOINED_AFTER", 4)
    (tmp_path / CHECKPOINT).mkdir()
    (tmp_path / CHECKPOINT / "metadata").touch()
    for number in range(4):
        assert add(of(number, succeeded=number), number, tmp_path)
    assert len(DeltaTable(str(tmp_path)).file_uris()) == 1
    small = set(tmp_path.glob("*.parquet"))
    assert len(small) == 5  # readers that have begun go on
    assert not add(of(succeeded=3), 3, tmp_path)

    let_a_month_pass(tmp_path)
    for number in range(4, 8):
        assert add(of(number, succeeded=number), number, tmp_path)

    assert ids(tmp_path) == [*range(8)]
    assert len(small & set(tmp_path.glob("*.parquet"))) == 1
    assert (tmp_path / CHECKPOINT / "metadata").exists()


def let_a_month_pass(path):
    """Since files were removed, as the log says."""
    for log in (path / "_delta_log").glob("*.json"):
        earlier = re.sub(
            r'("deletionTimestamp":)(\d+)',
            lambda found: f"{found[1]}{int(found[2]) - 30 * 86_400_000}",
            log.read_text(),
        )
        log.write_text(earlier)


@pytest.mark.parametrize(
    ("every", "given"),
    [
        (timedelta(seconds=60), {"processingTime": "60 seconds"}),
        (timedelta(days=1), {"processingTime": "86400 seconds"}),
        (None, {"availableNow": True}),
    ],
)
def test_the_pause_between_two_batches_may_be_days(every, given):
    assert trigger(every) == given


@contextmanager
def streaming(environment, path, *options):
    """The command in a group of its own, with Java and Python's workers; all of them are killed at the end."""
    command = [sys.executable, "manage.py", "live_lake", str(path), *options]
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def until(process, condition):
    """Wait for it while the process runs."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert process.poll() is None, process.stdout.read().decode()[-3000:]
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
def test_a_stream_that_is_killed_again_and_again_loses_and_doubles_nothing(java, store, environment, tmp_path):
    path = tmp_path / "live"
    environment |= {"DJANGO_SETTINGS_MODULE": "example_project.settings"}
    commits, planned = path / CHECKPOINT / "commits", path / CHECKPOINT / "offsets"
    moments = [
        (planned / "0").exists,  # a batch is planned
        lambda: len(ids(path)) >= 100,  # it is in the table, and Spark may not know
        (commits / "1").exists,  # a second one is done
    ]
    for number, moment in enumerate(moments):
        history(range(1 + 100 * number, 101 + 100 * number))
        with streaming(environment, path, "--every", "1") as process:
            until(process, moment)

    with streaming(environment, path, "--once") as process:
        until(process, lambda: ids(path) == list(range(1, 301)))
    with streaming(environment, path, "--once") as process:
        assert process.wait(PATIENCE) == 0

    assert ids(path) == list(range(1, 301))
