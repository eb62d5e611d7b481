"""For the tests of exactly-once tasks: a message of one, its attempt, and what that wrote."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from itertools import count

import pytest
from django.db import IntegrityError, connections, transaction

from delayedq.models import FinishedMessage, Message
from delayedq.store.protocol import ClaimRequest, Lane
from delayedq.tasks import task_at
from delayedq.worker.attempt import Attempt
from delayedq.worker.deadlines import Deadlines
from delayedq.worker.shared_leases import SharedLeases
from tests.app import once, tasks
from tests.app.models import Mark
from tests.store.given import LEASE, NOW

LANE = Lane("default", 0)

#: SQLite locks the whole file: nobody else writes while such a task runs.
ROW_LOCKS = pytest.mark.parametrize("alias", ["postgresql", "mariadb"], indirect=True)

_names = (f"once {number}" for number in count(1))


def claim_first(store, now=NOW):
    """The first free message, claimed at that time."""
    return store.at(now).claim(ClaimRequest([LANE], 1, LEASE, "host:1"))[0]


def claim_playing(store, body, now=NOW, key="a"):
    """A claimed message, keyed "a", whose task calls `body`."""
    name = next(_names)
    tasks.bodies[name] = body
    store.at(NOW).offer(once.play.offer((name,), {}, when=NOW, key=key))
    return claim_first(store, now)


def run(message, deadlines=None, asking=None, **changes):
    leases = SharedLeases(1)
    slot = leases.hold(message.id, message.token)
    attempt = Attempt(message, replace(task_at(message.kind), **changes), "host:1", leases, slot)
    attempt.asking = asking or attempt.asking
    with closing(Deadlines(lambda: None)) as own:
        return (deadlines or own).execute_exactly_once(attempt)


def write(name="written"):
    Mark.objects.create(name=name)


def write_and(then):
    """What a task does that writes, and then calls `then`."""
    return lambda: (write(), then())[1]


def _swallow_an_error(_alias):
    mark = Mark.objects.create(name="again")
    with pytest.raises(IntegrityError):
        Mark.objects.create(id=mark.id, name="again")


#: By name, what keeps a transaction on the database of this alias from its commit.
SPOILING = {
    "swallowed error": _swallow_an_error,
    "set_rollback": lambda alias: transaction.set_rollback(True, using=alias),
    "close": lambda alias: connections[alias].close(),
}


def marks():
    return sorted(Mark.objects.values_list("name", flat=True))


def is_untouched(message):
    """The message waits for its end, and nothing was written."""
    row = Message.objects.get()
    return (row.lease_token, row.generation, marks()) == (message.token, message.generation, []) and not (
        FinishedMessage.objects.exists()
    )
