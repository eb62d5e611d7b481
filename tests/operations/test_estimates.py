"""What PostgreSQL's planner estimates of many messages, where lists of all queues and priorities would mislead it."""

from __future__ import annotations

import pytest
from django.utils import timezone

from delayedq.operations import activity as what_goes_on
from delayedq.operations import backlogs, counting
from delayedq.operations.browsing import Selection
from delayedq.operations.counting import count_live, state_counts
from delayedq.operations.pauses import pause
from delayedq.sql.states import MessageState
from tests.autovacuum import outlast_autovacuum

pytestmark = pytest.mark.parametrize("alias", ["postgresql"], indirect=True)

#: Three queues and three priorities have a third each: as the statistics store them, thirds are more than 1 together.
FILL = """
INSERT INTO delayedq_message (queue, kind, priority, max_attempts, payload, scheduled_at, scheduled_at_initially,
    created_at, attempt, generation)
SELECT 'q' || n % 3, 'tests.work', n / 3 % 3, 1, '{}', at, at, at, 0, 0
FROM (SELECT n, now() + (n % 2 * 2 - 1) * interval '1 hour' AS at FROM generate_series(1, 5400) AS n) AS made;
ANALYZE delayedq_message
"""
EACH = 2_700


@pytest.fixture
def now(store, connection, monkeypatch):
    for module, name in ((counting, "BOUND"), (what_goes_on, "COUNTED"), (backlogs, "FEW")):
        monkeypatch.setattr(module, name, 100)
    outlast_autovacuum()
    with connection.cursor() as cursor:
        cursor.execute(FILL.replace("%", "%%"), [])
    return timezone.now()


def near(number):
    return pytest.approx(number, rel=0.05)


def test_the_tabs(store, now):
    found = state_counts(store, now)
    assert (found.due.number, found.scheduled.number) == (near(EACH), near(EACH))
    assert found.due.exact is False


@pytest.mark.parametrize(
    "chosen",
    [{"state": MessageState.DUE}, {"state": MessageState.SCHEDULED}, {"until": "now"}, {"since": "now"}],
    ids=str,
)
def test_a_list(store, now, chosen):
    given = {name: now if value == "now" else value for name, value in chosen.items()}
    assert count_live(store, Selection(as_of=now, **given)).number == near(EACH)


def test_what_is_due_now_but_in_paused_queues(store, now):
    assert what_goes_on.activity(store, now).due.number == near(EACH)
    pause("q0", "ann", store)
    assert what_goes_on.activity(store, now).due.number == near(EACH * 2 / 3)


def test_the_metrics_of_each_queue(store, now):
    found = backlogs.backlog(store)
    assert (found.due["q1", ""], found.scheduled["q1", ""]) == (near(EACH / 3), near(EACH / 3))
