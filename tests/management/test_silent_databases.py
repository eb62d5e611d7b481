"""Databases that are silent when `run_workers` starts: they are asked at once, and only once each."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import contextmanager, suppress

import pytest
from django.core.management import call_command
from django.db import connections

from delayedq.management.commands import run_workers
from delayedq.store import store_for

BACKEND = "delayedq.backend.DelayedQBackend"
NAMES = ["silent", "silent too"]


@contextmanager
def silent(accepted):
    """A server that accepts connections, notes when, and says nothing; its port."""
    server, kept = socket.create_server(("127.0.0.1", 0)), []

    def accept():
        with suppress(OSError):  # it is closed
            while True:
                kept.append(server.accept()[0])
                accepted.append(time.monotonic())

    thread = threading.Thread(target=accept)
    thread.start()
    yield server.getsockname()[1]
    server.shutdown(socket.SHUT_RDWR)
    thread.join()
    for one in (server, *kept):
        one.close()


@pytest.fixture
def accepted(settings, postgresql, monkeypatch, django_db_setup, django_db_blocker):
    """When each connection was accepted by one of two silent databases, which are those of TASKS."""
    found = []
    with silent(found) as first, silent(found) as second:
        for name, port in zip(NAMES, (first, second), strict=True):
            given = {"HOST": "127.0.0.1", "PORT": str(port), "OPTIONS": {"connect_timeout": 2}}
            monkeypatch.setitem(connections.settings, name, {**connections["postgresql"].settings_dict, **given})
        settings.TASKS = {name: {"BACKEND": BACKEND, "OPTIONS": {"DATABASE": name}} for name in NAMES}
        with django_db_blocker.unblock():
            yield found
        for name in NAMES:
            connections[name].close()
            del connections[name]
    store_for.cache_clear()


def test_silent_databases_are_asked_at_once_and_once_each(accepted, monkeypatch):
    monkeypatch.setattr(run_workers.Supervisor, "run", lambda _: 0)
    call_command("run_workers", skip_checks=True)
    assert len(accepted) == 2
    assert max(accepted) - min(accepted) < 1.0
