"""What happens to the processes and the connections of a torture run; each fault is one function.

A fault takes a `Scene` and returns when it is over. What it does is in the audit, between the lines "fault" and "over".
None stops the database itself: that is not ours to do on a server of the user's.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from django.db import Error, connections, transaction

from delayedq.models import Message, Worker
from delayedq.torture.audit import KINDS, write
from delayedq.torture.processes import PATIENCE, freeze, kill, thaw

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from delayedq.store.base import Store
    from delayedq.torture.processes import Process

#: What a connection of these processes says of itself on PostgreSQL, where they alone are cut off. MariaDB and MySQL
#: can not tell them from other sessions of the same user in the same database.
OURS = "delayedq-torture"


class Scene(NamedTuple):
    """What a fault may touch. `lease` is in seconds; `store` has the messages."""

    fleets: Sequence[Process]
    producers: Sequence[Process]
    random: random.Random
    store: Store
    lease: float

    def a_fleet(self) -> Process:
        return self.random.choice(self.fleets)

    def workers_of(self, fleet: Process) -> list[int]:
        """Those of its children that run messages; they stand in the registry."""
        pids = fleet.children()
        with suppress(Error):
            return [*Worker.objects.using(self.store.alias).filter(pid__in=pids).values_list("pid", flat=True)]
        connections[self.store.alias].close()
        return pids

    def keepers_of(self, fleet: Process) -> list[int]:
        """The lease keeper: the child that is no worker."""
        workers = self.workers_of(fleet)
        return [pid for pid in fleet.children() if pid not in workers]


def kill_worker(scene: Scene) -> None:
    workers = scene.workers_of(scene.a_fleet())
    kill(scene.random.sample(workers, min(1, len(workers))))


def kill_keeper(scene: Scene) -> None:
    kill(scene.keepers_of(scene.a_fleet()))


def kill_worker_and_keeper(scene: Scene) -> None:
    """Both, in either order."""
    fleet = scene.a_fleet()
    chosen = [*scene.workers_of(fleet)[:1], *scene.keepers_of(fleet)]
    scene.random.shuffle(chosen)
    kill(chosen)


def kill_supervisor(scene: Scene) -> None:
    """Its children notice that it is gone, and end."""
    fleet = scene.a_fleet()
    left = fleet.children()
    kill([fleet.pid])
    fleet.running.wait()
    _until_gone(left)
    fleet.start()


def kill_fleet(scene: Scene) -> None:
    """All of it at once, as if its machine had lost power."""
    fleet = scene.a_fleet()
    fleet.kill_all()
    fleet.start()


def freeze_worker(scene: Scene) -> None:
    """For longer than a lease: what it ran may run elsewhere, and what it says then is refused."""
    _freeze(scene.workers_of(scene.a_fleet())[:1], scene.lease * 1.5)


def freeze_fleet(scene: Scene) -> None:
    """All of it, for longer than a lease: a laptop that sleeps, a virtual machine that is moved."""
    fleet = scene.a_fleet()
    _freeze([fleet.pid, *fleet.children()], scene.lease * 1.5)


def freeze_briefly(scene: Scene) -> None:
    """For less than a lease: nothing runs twice."""
    _freeze(scene.workers_of(scene.a_fleet())[:1], scene.lease / 4)


def restart(scene: Scene) -> None:
    """SIGTERM, as a deploy sends it: what runs may finish, the rest goes back."""
    fleet = scene.a_fleet()
    fleet.end()
    fleet.start()


def restart_at_once(scene: Scene) -> None:
    """SIGTERM twice: the second one waits for nothing."""
    fleet = scene.a_fleet()
    for pid in [fleet.pid, *fleet.children()]:
        write("killed", "by a second signal", pid=pid)
    fleet.end(twice=True)
    fleet.start()


def kill_producer(scene: Scene) -> None:
    """In the middle of a transaction, or before it could say that it has committed."""
    scene.random.choice(scene.producers).kill_all()  # the run starts another


def cut_connections(scene: Scene) -> None:
    """The server ends every second connection of these processes."""
    with suppress(Error):
        scene.store.database.end_sessions(OURS, lambda: bool(scene.random.randrange(2)))


def lock_rows(scene: Scene) -> None:
    """Somebody's transaction locks messages for longer than a lease, also such that run."""
    with suppress(Error), transaction.atomic(using=scene.store.alias):
        rows = Message.objects.using(scene.store.alias).filter(kind__startswith=KINDS, lease_token__isnull=False)
        list(rows.select_for_update(skip_locked=True).values_list("pk", flat=True)[:20])
        time.sleep(scene.lease * 1.5)


def hold_snapshot(scene: Scene) -> None:
    """A transaction that stays open, so that dead rows must be kept."""
    with suppress(Error), transaction.atomic(using=scene.store.alias):
        Message.objects.using(scene.store.alias).order_by("pk").values_list("pk", flat=True).first()
        time.sleep(scene.lease * 2)


def hold_the_writer(scene: Scene) -> None:
    """SQLite has one writer: nobody else writes meanwhile."""
    with suppress(Error), transaction.atomic(using=scene.store.alias):
        Worker.objects.using(scene.store.alias).filter(pk=0).delete()
        time.sleep(scene.lease / 2)


OF_PROCESSES = (
    kill_worker,
    kill_keeper,
    kill_worker_and_keeper,
    kill_supervisor,
    kill_fleet,
    freeze_worker,
    freeze_fleet,
    freeze_briefly,
    restart,
    restart_at_once,
    kill_producer,
)
OF_SERVERS = (cut_connections, lock_rows, hold_snapshot)


def faults_of(store: Store) -> dict[str, Callable[[Scene], None]]:
    """Those that there are on this database, by name."""
    more = OF_SERVERS if store.database.sessions else (hold_the_writer,)
    return {one.__name__: one for one in (*OF_PROCESSES, *more)}


def _freeze(pids: Sequence[int], seconds: float) -> None:
    frozen = [pid for pid in pids if freeze(pid)]
    for pid in frozen:
        write("frozen", pid=pid)
    time.sleep(seconds)
    for pid in frozen:
        write("thawed", pid=pid)
        thaw(pid)


def _until_gone(pids: Sequence[int]) -> None:
    until = time.monotonic() + PATIENCE
    for pid in pids:
        with suppress(ProcessLookupError):
            while time.monotonic() < until:
                os.kill(pid, 0)
                time.sleep(0.02)
