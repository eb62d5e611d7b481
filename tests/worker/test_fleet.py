"""Workers, lease keeper and supervisor, when one of them is killed or the database is away."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest
from django.db import connections, transaction

from delayedq.models import FinishedMessage, Message, Worker
from tests.app import chores
from tests.app.models import Mark
from tests.store.given import together
from tests.worker.conftest import eventually

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
    pytest.mark.parametrize("alias", ["postgresql"], indirect=True),
]


def children(process):
    """The lease keeper first: it is started before any worker."""
    pid = process.process.pid
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def overlaps():
    """Messages of `nap` that began while an attempt of theirs was running."""
    marks, running, found = Mark.objects.order_by("id").values_list("name", flat=True), set(), []
    for name in marks:
        number, _, what = name.rpartition(" ")
        if what == "began":
            found += [number] if number in running else []
            running.add(number)
        else:
            running.discard(number)
    return found


def test_a_worker_that_is_killed_at_full_speed_leaves_nothing_leased_and_nothing_charged(workers):
    """Its last claim may not have reached the shared leases: the keeper knows the token of that claim."""
    chores.nothing.enqueue_many(((number,), {}) for number in range(20_000))
    one = workers("--lease", "600", "--threads", "2")
    for _ in range(3):
        before = FinishedMessage.objects.count()
        eventually(lambda before=before: FinishedMessage.objects.count() > before)
        os.kill(children(one)[-1], signal.SIGKILL)
    eventually(lambda: not Message.objects.filter(lease_token=None).exists())
    one.send(signal.SIGTERM)
    one.finish()
    # Started and not settled: at most what waits for its round trip. These alone are left to their leases.
    left = Message.objects.count()
    assert left + FinishedMessage.objects.count() == 20_000
    assert set(FinishedMessage.objects.values_list("attempts", flat=True)) == {1}


def test_a_claim_that_commits_after_its_worker_died_is_released(workers):
    """The worker is killed while its claim waits in the server."""
    chores.note.enqueue("first")
    one = workers("--lease", "600", poll=60)
    eventually(FinishedMessage.objects.exists)
    with transaction.atomic("postgresql"), connections["postgresql"].cursor() as cursor:
        cursor.execute("LOCK TABLE delayedq_pausedqueue IN ACCESS EXCLUSIVE MODE")
        together(lambda: chores.note.enqueue("second"))
        eventually(lambda: waiting_claims(cursor))
        os.kill(children(one)[-1], signal.SIGKILL)
        time.sleep(1.0)  # the keeper has searched for what it leased, and found nothing
    eventually(lambda: Mark.objects.filter(name="second").exists())
    eventually(lambda: FinishedMessage.objects.count() == 2)
    assert set(FinishedMessage.objects.values_list("attempts", flat=True)) == {1}


def waiting_claims(cursor):
    """The claim, and the scan that was asked for at the same time."""
    cursor.execute("SELECT count(*) >= 2 FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
    return cursor.fetchone()[0]


def test_a_new_keeper_releases_nothing_that_living_workers_hold(workers):
    chores.nap.enqueue_many(((f"{number}", 0.3), {}) for number in range(60))
    first = workers("--lease", "20", "--threads", "4")
    eventually(lambda: Mark.objects.filter(name__endswith="began").count() > 4)
    keeper = children(first)[0]
    os.kill(keeper, signal.SIGKILL)
    eventually(lambda: len(children(first)) == 2 and keeper not in children(first))
    second = workers("--lease", "20", "--threads", "4")
    second.ready()
    first.process.kill()
    eventually(lambda: FinishedMessage.objects.count() == 60)
    assert overlaps() == []
    second.send(signal.SIGTERM)
    assert second.finish()[0] == 0


@pytest.fixture
def closed_database(alias):
    """Lets nobody connect, and ends all connections, while it is `closed`."""
    name = connections[alias].settings_dict["NAME"]

    def close(closed):
        with connections["postgresql"]._nodb_cursor() as cursor:
            cursor.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS {"false" if closed else "true"}')
            if closed:
                cursor.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])

    yield close
    close(False)
    connections[alias].close()


def test_a_worker_that_dies_while_the_database_is_away_is_replaced(workers, closed_database):
    one = workers("--lease", "20")
    one.ready()
    keeper, before = children(one)
    closed_database(True)
    time.sleep(1)
    os.kill(before, signal.SIGKILL)
    replaced = eventually(lambda: next((pid for pid in children(one) if pid not in {keeper, before}), None))
    closed_database(False)
    connections["postgresql"].close()
    began = time.monotonic()
    chores.nap.enqueue("after", 0)
    eventually(lambda: Mark.objects.filter(name="after ended").exists())
    assert time.monotonic() - began < 25, "a pause of at most 10 s, and what starting takes"
    assert Mark.objects.get(name="after ended").value == str(replaced)
    eventually(lambda: Worker.objects.filter(pid=replaced).exists())  # the lease keeper, too, has had an answer
    one.send(signal.SIGTERM)
    code, output = one.finish()
    assert code == 0, output
    assert output.count("the database answers again") <= output.count("the database has not answered")
    assert "the database answers again" in output


def test_workers_say_why_they_stop_when_their_supervisor_is_gone(workers):
    one = workers()
    one.ready()
    one.process.kill()
    output, _ = one.process.communicate(timeout=20)
    assert f"its supervisor (pid {one.process.pid}) is gone" in output


def test_a_pipe_that_nobody_reads_stops_nobody(workers):
    """More failures than the pipe of its output can hold."""
    chores.fail_loudly.enqueue_many(((number,), {}) for number in range(2_000))
    one = workers("--lease", "5")
    eventually(lambda: FinishedMessage.objects.count() == 2_000)
    chores.note.enqueue("after")
    eventually(lambda: Mark.objects.filter(name="after").exists())
    began = time.monotonic()
    one.send(signal.SIGTERM)
    assert one.process.wait(timeout=15) == 0
    assert time.monotonic() - began < 10
