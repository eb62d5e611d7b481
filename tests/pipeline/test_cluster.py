"""The steps on a standalone cluster whose hosts are cut off in the middle: each message is there once, as it was.

They take minutes, so `.ci/nightly` runs them.
"""

from __future__ import annotations

import csv
import shutil
import subprocess
import time

import pytest

from tests.missing import missing
from tests.pipeline.lake import engines
from tests.pipeline.lake.s3 import bucket, options_of, serving
from tests.server import NoServer

#: More than the command reads by itself, and more than a host does before it is cut off.
ROWS = 150_000
KIND = "tests.app.tasks.nothing"
MONTH = ("--since", "2013-03-01", "--until", "2013-04-01")
#: What tells rows from others, of the table and of the lake.
_TOLD = "count(*), md5(string_agg(concat_ws('|', id, queue, kind, key, payload, {}, attempts), ',' ORDER BY id))"
IN_TABLE = f"SELECT {_TOLD.format('outcome')} FROM delayedq_finishedmessage"
IN_LAKE = f"SELECT {_TOLD.format('state')} FROM delta_scan(?)"
STATE = "SELECT state FROM delayedq_pipeline_archivebatch WHERE is_open"
NOTHING = [(0, None)]

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1_200)]


@pytest.fixture(scope="module")
def running(java):
    """The hosts, Spark and the database, which has no message."""
    if shutil.which("ip") is None or subprocess.run(["unshare", "--net", "true"], check=False).returncode:
        missing("hosts")
    from tests.pipeline.cluster import cluster

    try:
        with cluster() as made:
            yield made
    except NoServer as reason:
        missing("postgresql", reason)


@pytest.fixture
def filled(running):
    """A month of history; the lake is new."""
    from tests.pipeline.cluster import fill

    with running.connection() as connection:
        connection.execute("TRUNCATE delayedq_finishedmessage, delayedq_message, delayedq_pipeline_archivebatch")
    shutil.rmtree(running.shared / "lake", ignore_errors=True)
    fill(running, ROWS, KIND)
    return running


def archive(cluster):
    return cluster.pipeline("archive", "--older-than", "0s")


def in_lake(cluster):
    return engines.asked(IN_LAKE, cluster.lake)


def cut_off(cluster, process, state, before):
    """Cut off a worker that reads or changes the database while the batch is in this state; returns its name.

    before: others, which are cut off already; the server does not know it.
    """
    while process.poll() is None:
        at_database = cluster.workers_at_database() - set(before)
        if at_database and cluster.asked(STATE) == [(state,)]:
            worker = min(at_database)
            cluster.cut(worker)
            if cluster.asked(STATE) == [(state,)]:
                return worker
            cluster.join(worker)  # it was too late
        time.sleep(0.01)
    raise AssertionError(cluster.complained())


def test_hosts_that_are_cut_off_while_they_read_and_while_they_delete_lose_and_double_nothing(filled):
    before = filled.asked(IN_TABLE)
    assert before[0][0] == ROWS
    process = filled.start(*archive(filled))
    cut = []
    try:
        for state in ("planned", "deleting"):
            cut.append(cut_off(filled, process, state, cut))
        process.communicate()
    finally:
        filled.kill(process)
        for worker in cut:
            filled.join(worker)
    assert process.returncode == 0 or "Nothing is lost" in filled.complained(), filled.complained()

    filled.run(*archive(filled))

    assert in_lake(filled) == before
    assert filled.asked(IN_TABLE) == NOTHING


def test_what_is_archived_there_is_reported(filled):
    before = filled.asked(IN_TABLE)
    filled.run(*archive(filled))
    assert in_lake(filled) == before

    assert reported(filled) == ROWS


def reported(cluster):
    """How many messages the report of the month has."""
    cluster.run(*cluster.pipeline("report", *MONTH, "--output", str(cluster.shared / "report")))
    with (cluster.shared / "report" / "tables" / "by_kind.csv").open() as table:
        return max(int(row["n"]) for row in csv.DictReader(table))  # of waits, runs and turnarounds


@pytest.fixture
def in_bucket(filled):
    """The lake is in a bucket that only the host of the driver may reach; all hosts share a directory for staging."""
    from tests.pipeline.cluster import NETWORK

    lake, filled.of_driver = filled.lake, {"LAKE_STAGING": str(filled.shared / "staging")}
    (filled.shared / "staging").mkdir()
    with serving(f"{NETWORK}.1") as endpoint:
        filled.of_driver |= options_of(endpoint)
        filled.lake = bucket(endpoint, "lake")
        yield filled
    filled.lake, filled.of_driver = lake, {}


def test_a_lake_in_a_bucket_is_staged_in_a_directory_that_the_hosts_share(in_bucket):
    before = in_bucket.asked(IN_TABLE)
    assert before[0][0] == ROWS
    in_bucket.run(*archive(in_bucket))

    assert in_bucket.asked(IN_TABLE) == NOTHING
    assert reported(in_bucket) == ROWS
    in_bucket.run(*in_bucket.pipeline("restore", *MONTH))
    assert in_bucket.asked(IN_TABLE) == before
    assert list((in_bucket.shared / "staging").iterdir()) == []
