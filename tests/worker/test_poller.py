"""Watching the queue from the side: the loop hears of what others did, and knows what is due when."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta

import pytest
from django.db import OperationalError, connections
from django.utils import timezone

from delayedq.models import Message
from delayedq.store.database import WakeUpPipe
from delayedq.store.protocol import ClaimRequest
from delayedq.worker import lanes, poller
from delayedq.worker.lanes import Lanes
from delayedq.worker.loop import Loop
from delayedq.worker.options import ExitCode
from delayedq.worker.outage import Outage
from delayedq.worker.poller import Poller
from delayedq.worker.shared_leases import SharedLeases
from tests.app import chores
from tests.store.given import kill_others, message, succeed, together
from tests.worker.attempts import PATIENCE

#: No test passes because of a periodic scan.
NEVER = 3600.0


class Watching:
    """A poller, and the loop that it wakes."""

    def __init__(self, store, queues=None, poll_interval=NEVER):
        self.lanes = Lanes()
        self.woken = threading.Event()
        self.poller = Poller(store, self.lanes, queues, poll_interval, self.woken.set, Outage("test"))

    def until(self, condition):
        """Wait to be woken until it is true."""
        give_up = time.monotonic() + PATIENCE
        while not condition():
            assert self.woken.wait(max(0.0, give_up - time.monotonic())), "Nobody woke the loop."
            self.woken.clear()

    def planned(self):
        return sorted(f"{lane.queue}{lane.priority}" for lane in self.lanes.plan())


@contextmanager
def watching(*args, **options):
    watch = Watching(*args, **options)
    watch.poller.start()
    try:
        watch.until(lambda: watch.lanes.scans)
        yield watch
    finally:
        watch.poller.stop()


def test_the_first_scan_finds_what_is_there(store):
    store.offer_many([message(queue="a", scheduled_at=None), message(queue="b", priority=5, scheduled_at=None)])
    with watching(store) as watch:
        assert watch.planned() == ["a0", "b5"]


def test_queues_that_nobody_asked_for_are_not_seen(store):
    store.offer_many([message(queue=queue, scheduled_at=None) for queue in "abc"])
    with watching(store, queues=["a", "c"]) as watch:
        assert watch.planned() == ["a0", "c0"]


def test_a_future_message_is_known_by_its_time(store):
    store.offer(message(scheduled_at=timezone.now() + timedelta(hours=1)))
    with watching(store) as watch:
        assert watch.planned() == []
        assert 3500 < watch.lanes.due_in() <= 3600


def test_what_a_long_scan_finds_is_due_as_of_its_begin(store, monkeypatch):
    """With thousands of queues it takes a while until all has come."""
    scan, when = store.scan, timezone.now() + timedelta(hours=1)

    def long_scan(queues):
        found = scan(queues)
        time.sleep(1.0)
        return found

    store.offer(message(scheduled_at=when))
    with watching(store) as watch:
        scans = watch.lanes.scans
        monkeypatch.setattr(store, "scan", long_scan)
        watch.poller.ask_to_scan()
        watch.until(lambda: watch.lanes.scans > scans)
        left = (when - timezone.now()).total_seconds()
        assert watch.lanes.due_in() < left + 0.75


def test_a_loop_that_asks_has_the_lanes_looked_at_that_it_found_empty(store, monkeypatch):
    monkeypatch.setattr(lanes, "MOST_NAMED", 1)
    looked_at = []
    peek = store.peek

    def noted(those):
        looked_at.append([lane.queue for lane in those])
        return peek(those)

    def found_empty():
        watch.lanes.advance(lane_a, [], 1)
        watch.poller.ask()
        return ["a"] in looked_at

    monkeypatch.setattr(store, "peek", noted)
    store.offer_many([message(queue=queue, scheduled_at=None) for queue in "ab"])
    with watching(store) as watch:
        lane_a = [lane for lane in watch.lanes.known() if lane.queue == "a"]
        watch.until(found_empty)


def test_an_offer_of_another_connection_is_heard(store):
    with watching(store) as watch:
        together(lambda: store.offer(message(queue="new", scheduled_at=None)))
        watch.until(lambda: watch.planned() == ["new0"])


ENQUEUE = "import django; django.setup(); from tests.app.tasks import remind; remind.enqueue(7)"


def test_an_offer_of_another_process_is_heard(store, environment):
    with watching(store) as watch:
        subprocess.run([sys.executable, "-c", ENQUEUE], env=environment, check=True, timeout=PATIENCE)
        watch.until(lambda: watch.planned() == ["default0"])


def test_what_is_offered_during_a_long_scan_does_not_wait_for_its_end(store, monkeypatch):
    """Dead rows that are not vacuumed yet make scans long."""
    monkeypatch.setattr(poller, "UNHEARD", -1.0)  # each scan counts as long
    scan, goes_on, is_long = store.scan, threading.Event(), threading.Event()

    def long_scan(queues):
        found = scan(queues)
        is_long.set()
        goes_on.wait(PATIENCE)
        return found

    def claim():
        claimed.extend(store.claim(ClaimRequest(planned, 9, timedelta(minutes=1), "w")) if (planned := plan()) else [])
        watch.lanes.advance(planned, claimed, 9)
        return claimed

    claimed = []
    store.offer(message("first", scheduled_at=None))
    with watching(store) as watch:
        plan = watch.lanes.plan
        assert [one.key for one in claim()] == ["first"]
        monkeypatch.setattr(store, "scan", long_scan)
        watch.poller.ask_to_scan()
        assert is_long.wait(PATIENCE)
        try:
            together(lambda: store.offer(message("second", scheduled_at=None)))
            watch.until(lambda: len(claim()) == 2 or watch.woken.set())
        finally:
            goes_on.set()
    assert [one.key for one in claimed] == ["first", "second"]


def test_where_scans_are_long_a_new_lane_is_found_without_one(store, monkeypatch):
    monkeypatch.setattr(poller, "UNHEARD", -1.0)  # each scan counts as long
    monkeypatch.setattr(poller, "ROUTINE_REST", 1e6)
    store.offer(message(queue="known", scheduled_at=None))
    with watching(store) as watch:
        scans = watch.lanes.scans
        together(lambda: store.offer(message(queue="new", scheduled_at=None)))
        watch.until(lambda: watch.planned() == ["known0", "new0"])
        assert watch.lanes.scans == scans


def test_the_last_of_many_offers_is_heard_too(store):
    with watching(store) as watch:
        for number in range(10):
            together(lambda number=number: store.offer(message(queue=f"q{number}", scheduled_at=None)))
        watch.until(lambda: len(watch.planned()) == 10)


@pytest.mark.parametrize("_again", range(3))
def test_an_offer_right_after_a_later_one_is_claimed_at_once(store, monkeypatch, settings, _again):
    """One wake-up may stand for both, and the scan after it may have seen only the first."""
    monkeypatch.setattr(poller, "WANTED_REST", 0)
    settings.DELAYEDQ = {"POLL_INTERVAL": timedelta(hours=1)}  # so that also the later one wakes
    claimed = []

    def claim():
        claimed.extend(store.claim(ClaimRequest(watch.lanes.plan(), 1, timedelta(minutes=1), "worker")))
        return claimed

    with watching(store) as watch:
        store.offer(message("later", scheduled_at=timezone.now() + timedelta(minutes=30)))
        watch.until(watch.lanes.due_in)
        store.offer(message("now", scheduled_at=None))
        watch.until(claim)
    assert [one.key for one in claimed] == ["now"]


def test_an_offer_of_a_known_lane_makes_it_due_at_once(store):
    store.offer(message(scheduled_at=timezone.now() + timedelta(hours=1)))
    with watching(store) as watch:
        together(lambda: store.offer(message(scheduled_at=None)))
        watch.until(lambda: watch.planned() == ["mail0"])


def test_an_offer_to_a_lane_that_was_empty_needs_no_scan(store, monkeypatch):
    monkeypatch.setattr(poller, "WANTED_REST", 1e6)
    monkeypatch.setattr(poller, "BUSY_INTERVAL", NEVER)
    store.offer(message("first", scheduled_at=None))
    with watching(store) as watch:
        (first,) = store.claim(ClaimRequest(watch.lanes.plan(), 9, timedelta(minutes=1), "worker"))
        store.settle([succeed(first)], "worker")
        watch.lanes.scanned(store.scan(), time.monotonic())
        scans = watch.lanes.scans
        together(lambda: store.offer(message("second", scheduled_at=None)))
        watch.until(watch.lanes.plan)
        claimed = store.claim(ClaimRequest(watch.lanes.plan(), 9, timedelta(minutes=1), "worker"))
        assert [one.key for one in claimed] == ["second"]
        assert watch.lanes.scans == scans


def test_what_a_worker_gives_back_is_claimed_again_without_a_look_at_the_database(store, options, monkeypatch):
    """A scan may have to rest for seconds."""
    monkeypatch.setattr(poller, "BUSY_INTERVAL", NEVER)
    for request in ("ask", "ask_to_scan"):
        monkeypatch.setattr(Poller, request, lambda _: None)
    chores.ask_again.enqueue()
    twice = replace(options, drain=False, max_tasks=2, poll_interval=timedelta(seconds=NEVER))
    assert Loop(store, twice, "test").run() is ExitCode.RECYCLE
    assert Message.objects.get().attempt == 2


def test_a_loop_that_asks_is_woken_by_a_new_scan(store):
    with watching(store) as watch:
        before = watch.lanes.scans
        watch.woken.clear()
        watch.poller.ask_to_scan()
        watch.until(lambda: watch.lanes.scans > before)


def test_a_request_during_a_scan_gets_another_scan(store, monkeypatch):
    scanning, go_on = threading.Event(), threading.Event()
    scan = store.scan

    def slow(queues=None):
        scanning.set()
        assert go_on.wait(PATIENCE)
        return scan(queues)

    with watching(store) as watch:
        before = watch.lanes.scans
        monkeypatch.setattr(store, "scan", slow)
        watch.poller.ask_to_scan()
        assert scanning.wait(PATIENCE)
        watch.poller.ask_to_scan()
        monkeypatch.setattr(store, "scan", scan)
        go_on.set()
        watch.until(lambda: watch.lanes.scans == before + 2)


def test_routine_scans_go_on_without_any_wake_up(store):
    with watching(store, poll_interval=0.01) as watch:
        watch.until(lambda: watch.lanes.scans > 5)


def test_it_stops_at_once_and_closes_its_connections(store, alias, monkeypatch):
    opened = []
    wrapper = type(connections[alias])
    connect = wrapper.connect
    monkeypatch.setattr(wrapper, "connect", lambda self: opened.append(self) or connect(self))
    with watching(store):
        pass
    assert len(opened) == 2  # to listen, and to scan
    assert [one for one in opened if one.connection is not None] == []


def test_it_stops_before_its_first_scan(store):
    for _ in range(10):
        watch = Watching(store)
        watch.poller.start()
        watch.poller.stop()
        assert not watch.poller.is_alive()


# When the database goes away


@pytest.mark.parametrize("alias", ["postgresql", "mariadb"], indirect=True)
def test_it_listens_and_scans_again_after_its_connections_were_killed(store, connection, caplog):
    with watching(store) as watch:
        before = watch.lanes.scans
        assert kill_others(connection) >= 2  # one of an earlier test may be ending
        watch.until(lambda: watch.lanes.scans > before)
        store.offer(message(queue="new", scheduled_at=None))
        watch.until(lambda: watch.planned() == ["new0"])
    assert "the database answers again" in caplog.text


@pytest.mark.parametrize("alias", ["postgresql", "mariadb"], indirect=True)
def test_what_was_offered_while_it_was_deaf_is_found(store, connection):
    with watching(store) as watch:
        kill_others(connection)
        store.offer(message(queue="new", scheduled_at=None))
        watch.until(lambda: watch.planned() == ["new0"])


class Lacks:
    """Parts of a worker that get no connection."""

    def __init__(self):
        self.outage, self.leases, self.tried_at = Outage("test"), SharedLeases(1), 0.0

    def loop(self):
        self.outage.begin(OperationalError("no connection"), lacks_connection=True)

    def keeper(self):
        self.leases.tell_keeper_lacks_connection(lacks=True)

    def tasks(self):
        self.tried_at = time.monotonic()

    def watching(self, store, woken):
        return Poller(
            store, Lanes(), None, 0.05, woken, self.outage, self.leases, tasks_lack=lambda since: self.tried_at > since
        )


@pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
@pytest.mark.parametrize("part", [Lacks.loop, Lacks.keeper, Lacks.tasks])
def test_it_gives_up_its_connection_for_who_lacks_one_now_and_not_for_who_lacked_one_before(store, monkeypatch, part):
    """After an outage, others may not have tried again yet: without its connection it would be deaf for 30 s."""
    monkeypatch.setattr(poller, "SPARE_AFTER", 0.1)
    lacks, scans = Lacks(), threading.Semaphore(0)
    part(lacks)
    watch = lacks.watching(store, scans.release)
    watch.start()
    try:
        give_up, began = time.monotonic() + PATIENCE, time.monotonic()
        while time.monotonic() - began < 3 * poller.SPARE_AFTER:
            assert scans.acquire(timeout=PATIENCE)
            assert not watch.deaf
        part(lacks)
        while not watch.deaf:
            assert time.monotonic() < give_up
            assert scans.acquire(timeout=PATIENCE)
    finally:
        watch.stop()


class NotingPipe(WakeUpPipe):
    """Notes the pauses after failures, in which nothing is listened to, and leaves them out."""

    def __init__(self):
        super().__init__()
        self.pauses = []

    def wait(self, seconds, listener=None):
        if listener is None:
            self.pauses.append(seconds)
        return super().wait(0.0 if listener is None else seconds, listener)


class Flaky:
    """A store whose listener works for one scan, then loses its connection."""

    def __init__(self, store):
        self.alias, self.database = store.alias, store.database
        self.scan, self.peek = store.scan, store.peek
        self.readable, self.writable = os.pipe()
        os.write(self.writable, b".")
        self.asked = 0

    def listener(self):
        self.asked = 0
        return self

    interval = None
    proved = True
    heard_waiting = heard_stopped = False

    def begin_proof(self):
        """It hears."""

    def fileno(self):
        return self.readable

    def heard(self):
        self.asked += 1
        if self.asked == 3:
            raise OperationalError("the connection was lost")
        return False

    def close(self):
        """It has none of its own."""


def test_pauses_do_not_grow_while_it_recovers_in_between(store, monkeypatch):
    """A database that restarts once a day must not find a poller that pauses for longer each day."""
    flaky = Flaky(store)
    monkeypatch.setattr(poller, "WakeUpPipe", NotingPipe)
    with watching(flaky) as watch:
        pauses = watch.poller._pipe.pauses
        watch.until(lambda: len(pauses) >= 8)
    os.close(flaky.readable)
    os.close(flaky.writable)
    assert max(pauses) < 1.0
