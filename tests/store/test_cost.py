"""What a message costs from its offer to its end, counted and never timed: statements, and bytes of write-ahead log."""

from __future__ import annotations

import re

import pytest
from django.test.utils import CaptureQueriesContext

from delayedq.models import LimitState, Message
from delayedq.store.protocol import ClaimRequest
from tests.limits.channels import claims, in_channel, one_by_one
from tests.store.given import LANE, LEASE, NOW, claim, fail, message, retry, succeed

#: Statements that store one message; that store a batch of 10,000; that end 100 messages and claim as many. Those of
#: SQLite run within the process: what counts there is that those of `settle_and_claim` are as many for any batch.
ENQUEUE = {"sqlite": 1, "postgresql": 1, "mariadb": 1}
BATCH = {"postgresql": 3, "mariadb": 60}
SETTLE_AND_CLAIM = {"sqlite": 8, "postgresql": 1, "mariadb": 10}


@pytest.fixture
def counted(connection):
    def count(act):
        with CaptureQueriesContext(connection) as captured:
            act()
        return sum("NOTIFY" not in query["sql"].upper() for query in captured)

    return count


@pytest.fixture
def engine(request):
    return request.node.callspec.params["alias"]


def test_storing_one_message_is_one_statement(store, counted, engine):
    assert counted(lambda: store.offer(message(scheduled_at=None))) == ENQUEUE[engine]


@pytest.mark.parametrize("alias", BATCH, indirect=True)
def test_storing_ten_thousand_messages_takes_few_statements(store, counted, engine):
    offers = [message(payload=f"{number}") for number in range(10_000)]

    assert counted(lambda: store.at(NOW).offer_many(offers)) <= BATCH[engine]


def test_what_is_offered_again_as_it_stands_is_looked_up_together(store, counted):
    offers = [message(f"key {number}", scheduled_at=NOW) for number in range(40)]
    created = counted(lambda: store.at(NOW).offer_many(offers))

    assert counted(lambda: store.at(NOW).offer_many(offers)) <= created + 1


@pytest.mark.parametrize("size", [20, 100])
def test_a_tick_takes_as_many_statements_for_any_batch(store, counted, engine, size):
    store.at(NOW).offer_many([message() for _ in range(3 * size)])
    done = [succeed(claimed) for claimed in claim(store, size)]

    assert (
        counted(lambda: store.at(NOW).settle_and_claim(done, ClaimRequest([LANE], size, LEASE, "first")))
        <= SETTLE_AND_CLAIM[engine]
    )


# The write-ahead log. It is that of the whole server: a checkpoint, after which pages are logged whole, or a vacuum may
# come in between, but not each time.

WRITTEN = "SELECT pg_current_wal_insert_lsn() - %s::pg_lsn"


@pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
def test_a_message_with_200_bytes_of_payload_writes_less_than_1450_bytes_of_log_with_its_history(store, connection):
    assert min(bytes_of_log(store, connection) for _ in range(3)) <= 1450


def bytes_of_log(store, connection):
    """Per message, from its offer to its history."""
    payload, count, settle_and_claim = f'{{"args":["{"x" * 188}"]}}', 4000, 500
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_current_wal_insert_lsn()::text")
        before = cursor.fetchone()[0]
        store.at(NOW).offer_many([message(payload=payload) for _ in range(count)])
        done = []
        while (
            claimed := store.at(NOW)
            .settle_and_claim(done, ClaimRequest([LANE], settle_and_claim, LEASE, "first"))
            .claimed
        ):
            done = [succeed(one) for one in claimed]
        cursor.execute(WRITTEN, [before])
        (size,) = cursor.fetchone()
    return size / count


# Who has no limits, beside others who do

CHANNEL_TABLES = re.compile("delayedq_(channel|limit)")


def others_have_limits(store):
    """Channels that are full, that rest, and that were told of; and limits that were set live."""
    store.at(NOW).offer_many([in_channel(f"c{number}") for number in range(300)] + [in_channel("full")] * 3)
    assert claims(store, 100, rules=one_by_one())
    LimitState.objects.create(scope="mail", definition='{"concurrency": 2}')


def ways_of_a_message(store, number):
    """From its offer to its end."""
    own = store.at(NOW)
    yield lambda: own.offer_many([message(f"k{n}", payload=f"[{number}]") for n in range(9)])
    yield lambda: own.offer_many([message(f"k{n}", payload=f"[{number}, 1]") for n in range(9)])
    taken = claim(store, 9)
    yield lambda: own.renew([(one.id, one.token) for one in taken], LEASE)
    done = [retry(taken[0]), fail(taken[1]), *map(succeed, taken[2:])]
    yield lambda: own.settle_and_claim(done, ClaimRequest([LANE], 1, LEASE, "first"))


def statements_of(store, connection, number):
    """Without the values in them."""
    found = []
    for act in ways_of_a_message(store, number):
        with CaptureQueriesContext(connection) as captured:
            act()
        asked = [query["sql"] for query in captured if "NOTIFY" not in query["sql"].upper()]
        found.append([re.sub(r"[0-9a-f]*[0-9][0-9a-f]*|'[^']*'", "?", sql) for sql in asked])
    Message.objects.filter(priority=0).delete()
    return found


def test_messages_without_a_channel_take_the_same_statements_beside_channels_and_touch_none(store, connection):
    statements_of(store, connection, 1)
    alone = statements_of(store, connection, 2)
    others_have_limits(store)

    assert statements_of(store, connection, 3) == alone
    assert not [sql for each in alone for sql in each if CHANNEL_TABLES.search(sql)]


@pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
def test_messages_without_a_channel_write_as_much_log_beside_channels(store, connection):
    alone = min(bytes_of_log(store, connection) for _ in range(3))
    others_have_limits(store)

    assert min(bytes_of_log(store, connection) for _ in range(3)) <= float(alone) * 1.03
