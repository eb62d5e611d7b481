"""What the data source finds in the queue: live messages in every state, and history with awkward texts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from delayedq.models import FinishedMessage
from tests.autovacuum import outlast_autovacuum
from tests.router import ChosenDatabase
from tests.store.given import LEASE, NOW, claim, keys, message

#: In the hour that New York skips: a time that takes the zone of the machine for its own shows.
NOON = datetime(2026, 3, 8, 7, 0, 0, tzinfo=UTC)
#: Texts on which a format that is not careful comes to grief.
AWKWARD = ['""', '"a\\nb\\t\\"c\\",;"', "\"é 漢 😀 ''\"", '"\\\\N NULL \\\\. \\u0000"', "[]", '"two\nlines\r\n"', '" "']


def ended(number, **fields):
    """A message that ended `number` seconds after NOON."""
    moment = NOON + timedelta(seconds=number)
    given = {
        "id": number,
        "outcome": "succeeded",
        "queue": "mail",
        "kind": "app.tasks.send",
        "key": f"key-{number}",
        "priority": 0,
        "attempts": 1,
        "max_attempts": 3,
        "created_at": moment - timedelta(seconds=30),
        "scheduled_at_initially": moment - timedelta(seconds=20),
        "scheduled_at": moment - timedelta(seconds=10),
        "started_at": moment - timedelta(seconds=1, microseconds=1),
        "finished_at": moment,
        "worker": "host:1",
        "payload": AWKWARD[number % len(AWKWARD)],
        "metadata": None if number % 2 else '{"team": "gate"}',
        "result": None if number % 3 else '"done"',
        "errors": None,
    }
    return FinishedMessage(**given | fields)


def history(numbers, **fields):
    """A stream on PostgreSQL waits for whatever transaction is open, even one of autovacuum."""
    FinishedMessage.objects.bulk_create([ended(number, **fields) for number in numbers], batch_size=500)
    if ChosenDatabase.alias == "postgresql":
        outlast_autovacuum()


def live_messages(store):
    """Three: one is leased for a year, the lease of one has expired, and one waits."""
    for key, now, lease in (("leased", datetime.now(UTC), timedelta(days=365)), ("expired", NOW, LEASE)):
        store.offer(message(key, kind="app.tasks.remind"))
        assert keys(claim(store, now=now, lease=lease, worker="host:2")) == [key]
    store.offer(message("waiting", kind="app.tasks.remind"))
