"""`run_workers` as those see it who monitor it: one scrape of all its processes, probes, a file, and systemd."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
from contextlib import suppress
from datetime import timedelta
from types import SimpleNamespace
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from django.core.management import CommandError, call_command

from delayedq.models import Worker
from delayedq.worker.endpoints import HealthFile, Liveness, Reporting
from delayedq.worker.shared_leases import SharedLeases
from tests.app import chores, tasks
from tests.test_metrics import values_of
from tests.worker.conftest import eventually
from tests.worker.test_limits_soak import away

pytestmark = pytest.mark.slow


@pytest.fixture
def port():
    return free_port()


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


@pytest.fixture
def hosts():
    """Addresses of this host: one of IPv4 and, unless the host has none, one of IPv6."""
    with suppress(OSError), socket.socket(socket.AF_INET6) as tried:
        tried.bind(("::1", 0))
        return ["127.0.0.1", "[::1]"]
    return ["127.0.0.1"]


def fetched(port, path, host="127.0.0.1"):
    """Status and text; (0, "") if nobody answers."""
    try:
        with urlopen(f"http://{host}:{port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


def total(found, name):
    return sum(value for key, value in found.items() if re.match(rf"{name}\b", key))


def test_one_scrape_has_all_processes_of_a_supervisor(store, workers, port):
    tasks.echo.enqueue_many([((number,), {}) for number in range(50)])
    workers("--processes", "2", "--metrics-port", f"127.0.0.1:{port}")
    found = {}

    def all_counted():
        found.update(values_of(fetched(port, "/metrics")[1]))
        both = total(found, "delayedq_worker_threads") == 8
        return both and total(found, "delayedq_messages_ended_total") == 50

    eventually(all_counted)
    assert total(found, "delayedq_run_seconds_count") == total(found, "delayedq_attempts_started_total") == 50
    assert total(found, "delayedq_up") == 1
    assert fetched(port, "/other") == (404, "There are /metrics.\n")


def test_what_killed_processes_counted_stays(store, workers, port):
    tasks.echo.enqueue(1)
    workers("--metrics-port", f"127.0.0.1:{port}")
    ends = lambda: total(values_of(fetched(port, "/metrics")[1]), "delayedq_messages_ended_total")  # noqa: E731
    eventually(lambda: ends() == 1)
    eventually(Worker.objects.exists)
    killed = Worker.objects.get().pid
    os.kill(killed, signal.SIGKILL)
    tasks.echo.enqueue(2)

    eventually(lambda: ends() == 2)


def test_probes_answer_from_shared_memory(store, workers, port, tmp_path):
    path = tmp_path / "alive"
    started = workers("--health-port", f"127.0.0.1:{port}", "--health-file", str(path))
    eventually(lambda: fetched(port, "/ready") == (200, "ready\n"))

    assert fetched(port, "/live") == (200, "live\n")
    eventually(path.exists)
    started.send(signal.SIGTERM)
    assert started.finish()[0] == 0
    assert not path.exists()
    assert fetched(port, "/live") == (0, "")


@pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
def test_the_port_alone_is_that_of_ipv4_and_ipv6_and_an_address_may_be_of_either(store, workers, port, hosts):
    other = free_port()
    workers("--health-port", str(port), "--metrics-port", f"{hosts[-1]}:{other}", "--no-cron")
    eventually(lambda: fetched(other, "/metrics", hosts[-1])[0] == 200)
    assert [fetched(port, "/live", host)[0] for host in hosts] == [200] * len(hosts)
    for taken in (str(port), *(f"{host}:{port}" for host in hosts)):
        with pytest.raises(CommandError, match=f"--health-port: nothing can listen on port {port}"):
            call_command("run_workers", "--health-port", taken)


def test_workers_are_not_ready_while_their_database_refuses_them(store, workers, port):
    """What is due meanwhile has to be claimed: a locked SQLite database can still be read."""
    for seconds in range(1, 60):
        tasks.echo.schedule_in(timedelta(seconds=seconds), seconds)
    workers("--health-port", f"127.0.0.1:{port}")
    eventually(lambda: fetched(port, "/ready")[0] == 200)
    with away(store.alias):
        eventually(lambda: fetched(port, "/ready") == (503, "not ready\n"))
        assert fetched(port, "/live")[0] == 200
    eventually(lambda: fetched(port, "/ready")[0] == 200)


@pytest.fixture
def leases():
    """Those of a worker process whose loop has just turned, and gives out work."""
    found = SharedLeases(1)
    found.register(os.getpid())
    return found


@pytest.mark.parametrize(
    ("silent", "still", "live", "ready"),
    [(0, 0, True, True), (20, 0, True, False), (60, 60, False, False)],
    ids=["works", "its database is away", "is frozen"],
)
def test_who_lives_and_who_is_ready(leases, tmp_path, silent, still, live, ready):
    leases._process[0] -= silent * 1000
    leases._process[1] -= still * 1000
    liveness = Liveness([SimpleNamespace(leases=[leases, SharedLeases(1)])])
    Reporting(liveness, HealthFile(tmp_path / "alive")).tell()

    assert (liveness.live(), liveness.ready()) == (live, ready)
    assert (tmp_path / "alive").exists() == live


def test_a_health_file_on_a_full_disk_still_takes_the_time_and_that_is_said_once(tmp_path, caplog):
    path = tmp_path / "alive"
    path.symlink_to("/dev/full")
    file = HealthFile(path)
    before = path.stat().st_mtime_ns
    with caplog.at_level(logging.WARNING, "delayedq"):
        file.tell(live=True)
        file.tell(live=True)

    assert path.stat().st_mtime_ns > before
    assert [record.message.startswith("The health file") for record in caplog.records] == [True]
    file.remove()


def test_a_health_file_that_can_not_be_written_is_refused(store, tmp_path):
    """As in a directory that is read-only; it would have a probe end workers that are well."""
    with pytest.raises(CommandError, match=r"--health-file: .*Is a directory"):
        call_command("run_workers", "--health-file", str(tmp_path))


def test_a_fleet_without_a_process_does_not_live():
    assert not Liveness([SimpleNamespace(leases=[SharedLeases(1)])]).live()


def test_systemd_is_told_that_it_is_ready_lives_and_stops(store, workers, tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(30)
        started = workers(NOTIFY_SOCKET=str(tmp_path / "notify"), WATCHDOG_USEC="10000000")
        told = [systemd.recv(100).decode() for _ in range(3)]
        chores.note.enqueue("ran")
        eventually(lambda: not chores.note.get_backend().store.lanes())
        started.send(signal.SIGTERM)
        started.finish()
        while told[-1] != "STOPPING=1":
            told.append(systemd.recv(100).decode())

    assert set(told) == {"READY=1", "WATCHDOG=1", "STOPPING=1"}
    assert told.count("READY=1") == 1


def test_what_can_not_be_is_named_before_anything_starts(store, port):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        number = taken.getsockname()[1]
        for option in ("--metrics-port", "--health-port"):
            with pytest.raises(CommandError, match=f"{option}: nothing can listen on port {number} of 127.0.0.1"):
                call_command("run_workers", option, f"127.0.0.1:{number}")
    with pytest.raises(CommandError, match="--metrics-port and --health-port must be two ports"):
        call_command("run_workers", "--metrics-port", str(port), "--health-port", str(port))
    with pytest.raises(CommandError, match="--health-file: there is no directory '/no/such'"):
        call_command("run_workers", "--health-file", "/no/such/file")
    with pytest.raises(CommandError, match=r"must be PORT or ADDRESS:PORT, as 9100, 127\.0\.0\.1:9100 or \[::1\]:9100"):
        call_command("run_workers", "--health-port", "x")
    with pytest.raises(CommandError, match="not '::1:9100'"):
        call_command("run_workers", "--health-port", "::1:9100")
