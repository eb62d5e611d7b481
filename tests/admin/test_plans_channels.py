"""What the forecast reads of channels is bounded, however many messages wait in them."""

from __future__ import annotations

from datetime import timedelta

from delayedq.limits.operator import MOST_COUNTED, listed
from delayedq.limits.waiting import FIRST, MOST_DEAD, due_since
from delayedq.models import Channel, ChannelGroup
from delayedq.operations import counting
from delayedq.operations.figures import Ahead, forecast
from tests.admin.test_plans import NOW, ON_POSTGRESQL, plan, reads, visited

#: 12,000 places in 40 channels of a task that nobody knows.
PLACES = """
INSERT INTO delayedq_channelmessage (message_id, channel_id, group_id, urgency, due_at, lease_token)
SELECT n, n % 40, 7, 0, timestamptz '2026-01-01' + n * 7919 % 12000 * interval '1 second', 0
FROM generate_series(1, 12000) AS n;
INSERT INTO delayedq_channelgroup (id, queue, kind, turn) VALUES (7, 'q1', 'tests.k1', 0);
INSERT INTO delayedq_channel (id, group_id, name, is_ready, ready_at, turn, seconds)
SELECT n, 7, 'tenant ' || n, true, now(), n, 0 FROM generate_series(0, 39) AS n;
ANALYZE delayedq_channelmessage, delayedq_channel
"""


@ON_POSTGRESQL
def test_what_waits_in_channels_is_read_in_slices_of_an_index(store, connection, monkeypatch):
    monkeypatch.setattr(counting, "MOST", 1_000)
    with connection.cursor() as cursor:
        cursor.execute(PLACES.replace("%", "%%"), [])
    asked = reads(connection, lambda: forecast(store, Ahead.DAY, NOW - timedelta(hours=2)))
    of_places = [sql for sql in asked if "delayedq_channelmessage" in sql]

    assert len(asked) <= 22
    # some statements ask for several channels
    assert max(visited(plan(connection, sql)) / max(sql.count(" LIMIT 5005"), 1) for sql in of_places) <= 1_500


@ON_POSTGRESQL
def test_channels_of_which_all_was_cancelled_are_counted_in_bounded_parts(store, connection):
    with connection.cursor() as cursor:
        cursor.execute(PLACES.replace("n % 40, 7", "n % 2, 7").replace("%", "%%"), [])
    channels, groups = list(Channel.objects.filter(id__lt=2)), list(ChannelGroup.objects.all())
    counts = reads(connection, lambda: listed(store, NOW, groups, channels))
    first = reads(connection, lambda: due_since(store, [0, 1], NOW))

    for asked, most in ((counts, MOST_DEAD * (MOST_COUNTED + 1)), (first, FIRST)):
        (sql,) = (sql for sql in asked if "due_at" in sql and "places_0" in sql)
        # of each channel those that are looked at, and a probe for each
        assert visited(plan(connection, sql)) <= 2 * 2 * most + 10
