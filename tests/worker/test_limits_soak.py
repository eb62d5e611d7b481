"""Everything that happens to limits at once, with real workers that are killed: no limit is exceeded, nothing is lost.

Three processes offer, replace, cancel, stop, unschedule, drop, redrive and change limits; one does so in transactions
that stay open for longer than a lease; and one polls a bare queue. Meanwhile, workers are killed and restarted, and the
database goes away. DELAYEDQ_SOAK_LIMITS=100000 has as many operations.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest
from django.db import connections, transaction
from django.db.models import Count, Exists, OuterRef

from delayedq.limits.channels import Channels
from delayedq.limits.places import Places
from delayedq.models import ChannelGroup, ChannelMessage, FinishedMessage, Message
from delayedq.sql.priority import BOUNDARY
from tests.worker import soak_checks
from tests.worker.conftest import ROOT, eventually
from tests.worker.soak_checks import SHARED, SIZE, TASKS, Lines, write
from tests.worker.test_channels_killed import state_of
from tests.worker.test_fleet import children

pytestmark = pytest.mark.slow

SOAK = int(os.environ.get("DELAYEDQ_SOAK_LIMITS", "0"))
OPERATIONS, FLEETS, PATIENCE = (SOAK, 2, 7_200) if SOAK else (300, 1, 100)
SEED = int(os.environ.get("DELAYEDQ_SOAK_SEED", "0")) or random.randrange(10**6)
#: Seconds. In a soak, long enough for a keeper that was killed to come back on a busy machine; try 3, too. SQLite has
#: one writer: whoever keeps a transaction open keeps everybody waiting.
LEASE = 6 if SOAK else 3
OPEN, OPEN_SQLITE, AWAY = LEASE + 4, 0.3, [0.2, 1, 2 * LEASE]


class Fleet:
    """All processes of the soak."""

    def __init__(self, alias, workers, environment, path):
        self.alias, self.path = alias, path
        self.random = random.Random(SEED)
        spare = OPEN_SQLITE if alias == "default" else OPEN
        given = {"LIMITS": f'{{"{soak_checks.QUEUE}": {{"concurrency": {SHARED}}}}}', "SOAKED": str(path)}
        self.variables = given | {"SOAKED_OPEN": str(spare if SOAK else min(spare, 1))}
        self.variables |= {"SOAKED_LONG": str(3 * LEASE if SOAK else 1)}
        self._start, self._environment = workers, environment | self.variables
        self.workers = [self.start() for _ in range(FLEETS)]
        self.producers = [self.produce(role, OPERATIONS * share // 20) for role, share in ROLES]
        self.slow, self.consumer = self.produce("slow", 10**9), self.produce("consume", 0)
        self.fullest, self.happened = Counter(), Counter()

    def start(self):
        return self._start("--lease", str(LEASE), "--threads", "8", "--processes", "2", poll=0.3, **self.variables)

    def produce(self, role, operations):
        seed = str(self.random.randrange(10**6))
        command = [sys.executable, "-m", "tests.worker.soak_producer", role, seed, str(operations)]
        return subprocess.Popen(command, cwd=ROOT, env=self._environment)

    def produces(self):
        return any(one.poll() is None for one in self.producers)

    # What happens to them

    def disturb(self):
        """One of what may happen."""
        what = self.random.choice([self.kill_one] * 5 + [self.kill_all, self.restart, self.go_away, self.kill_consumer])
        self.happened[what.__name__] += 1
        what()

    def kill_one(self):
        if processes := children(self.random.choice(self.workers)):
            kill([self.random.choice(processes)])

    def kill_all(self, number=None):
        """A supervisor and all of its processes, as if the machine had lost its power."""
        number = self.random.randrange(len(self.workers)) if number is None else number
        one = self.workers[number]
        one.send(signal.SIGSTOP)  # so that it starts no other
        kill([*children(one), one.process.pid])
        self.workers[number] = self.start()

    def restart(self):
        """What they have not started is released."""
        number = self.random.randrange(len(self.workers))
        self.workers[number].send(signal.SIGTERM)
        self.workers[number] = self.start()

    def kill_consumer(self):
        kill([self.consumer.pid])
        self.consumer.wait()
        self.consumer = self.produce("consume", 0)

    def go_away(self):
        with away(self.alias):
            time.sleep(self.random.choice(AWAY if SOAK else AWAY[:1]))

    def look(self):
        """The messages of each channel with a size, at one instant."""
        live = Message.objects.filter(pk=OuterRef("message_id"), kind=f"{TASKS}measure")
        rows = ChannelMessage.objects.filter(Exists(live)).values_list("channel_id").annotate(Count("pk"))
        for channel, number in rows:
            self.fullest[channel] = max(self.fullest[channel], number)

    def end(self):
        for one in (self.slow, self.consumer, *self.producers):
            if one.poll() is None:
                kill([one.pid])
            one.wait()


ROLES = [("change", 6), ("operate", 7), ("operate", 7)]


def kill(processes):
    """They have begun all that they ever will before their ends are written down."""
    for one in processes:
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            os.kill(one, signal.SIGSTOP)
            eventually(lambda one=one: state_of(one) in "TZ")
    for one in processes:
        write("killed", one)
    for one in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)


@contextlib.contextmanager
def away(alias):
    """Connections are lost, and none is accepted; on SQLite, somebody else writes."""
    if alias == "default":
        with transaction.atomic(using=alias):
            yield
        return
    with connections[alias].cursor() as own:
        begin, end = AWAY_ON[alias](own, connections[alias].settings_dict["NAME"])
    with connections[alias]._nodb_cursor() as cursor:
        for statement in begin:
            cursor.execute(statement)
        try:
            yield
        finally:
            for statement in end:
                cursor.execute(statement)


def postgresql_away(own, name):
    own.execute("SELECT pg_backend_pid()")
    others = f"FROM pg_stat_activity WHERE pid <> {own.fetchone()[0]} AND datname = '{name}'"
    allow = f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS'
    return [f"{allow} false", f"SELECT pg_terminate_backend(pid) {others}"], [f"{allow} true"]


def mariadb_away(own, name):
    own.execute("SELECT id FROM information_schema.processlist WHERE db = %s AND id <> connection_id()", [name])
    return [*(f"KILL {id_}" for (id_,) in own.fetchall()), "FLUSH TABLES WITH READ LOCK"], ["UNLOCK TABLES"]


AWAY_ON = {"postgresql": postgresql_away, "mariadb": mariadb_away}


@pytest.mark.timeout(PATIENCE + 200)
def test_no_limit_is_exceeded_and_nothing_is_lost_whatever_happens(store, workers, environment, tmp_path, monkeypatch):
    monkeypatch.setenv("SOAKED", str(tmp_path / "lines"))
    fleet = Fleet(store.alias, workers, environment, tmp_path / "lines")
    began = time.monotonic()
    try:
        disturb_at = began + 3
        while fleet.produces():
            assert time.monotonic() < began + PATIENCE
            fleet.look()
            time.sleep(0.1)
            if time.monotonic() > disturb_at:
                fleet.disturb()
                disturb_at = time.monotonic() + fleet.random.uniform(1, 6 if SOAK else 2)
        for number in range(FLEETS):
            fleet.kill_all(number)
        check_counts(store)
        killed = time.monotonic()
        drain(store, fleet)
        ended = time.monotonic()
    finally:
        fleet.end()
    for one in fleet.workers:
        one.send(signal.SIGTERM)
        one.finish()
    assert check_counts(store) == {}
    assert [one.wait() for one in fleet.producers] == [0, 0, 0]
    report(fleet, Lines(tmp_path / "lines"), ended - began, ended - killed)


def drain(store, fleet):
    kill([fleet.slow.pid])
    fleet.slow.wait()
    eventually(lambda: not Message.objects.exists(), timeout=PATIENCE)
    eventually(lambda: not ChannelMessage.objects.exists())


def check_counts(store):
    """What is counted as running is what is leased, by any message's own row; returns it.

    A producer and the consumer go on, so one look may fall between two of their commits. What has drifted stays so.
    """
    for _ in range(10):
        counted, expected = counts(store)
        if counted == expected:
            break
        time.sleep(0.1)
    assert counted == expected
    return counted


def counts(store):
    """The attempt of a message that was moved counts by its held place, and not where the message waits for it."""
    with transaction.atomic(using=store.alias):
        now = store.now()
        groups = {one.pk: (one.queue, one.kind) for one in ChannelGroup.objects.all()}
        counted = Counter()
        for id_, number in Places(Channels.of(store), now).running_by_group(groups).items():
            counted[groups[id_]] += number
        moved = ChannelMessage.objects.filter(message_id__gt=0, held_until__isnull=False, lease_token__gt=0)
        leased = Message.objects.filter(leased_until__gt=now, priority__lt=BOUNDARY)
        leased = leased.exclude(id__in=moved.values("message_id"))
        expected = Counter(leased.values_list("queue", "kind"))
        held = ChannelMessage.objects.filter(message_id__lt=0, held_until__gt=now).values_list("group_id", flat=True)
        expected.update(groups[id_] for id_ in held)
    return counted, expected


def report(fleet, lines, seconds, after):
    attempts = [*lines.attempts()]
    found, fullest = soak_checks.exceeded(attempts, lines.changes())
    stored = {int(id_) for _, id_ in lines.by_name["stored"]}
    ended = set(FinishedMessage.objects.values_list("id", flat=True))
    sys.stdout.write(
        f"seed {SEED}: {OPERATIONS} operations, {len(attempts)} attempts in {seconds:.0f} s; {dict(fleet.happened)}\n"
    )
    sys.stdout.write(
        f"fullest: {dict(sorted(fullest.items()))}; sizes {sorted(fleet.fullest.values())}; all ended {after:.1f} s\n"
    )
    assert found == []
    assert soak_checks.overlapping(attempts) == []
    assert soak_checks.too_fast(attempts) == {}
    assert max(fleet.fullest.values(), default=0) <= SIZE
    assert stored <= ended
