"""The cost of the pages: the number of queries and their plans do not depend on the number of messages."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from django.test.utils import CaptureQueriesContext

from delayedq.models import FinishedMessage, Message
from delayedq.operations import browsing, counting, queues
from delayedq.operations import error_groups as grouping
from delayedq.operations import explain as explaining
from delayedq.operations import verdict as judging
from delayedq.operations.browsing import EndedSelection
from delayedq.operations.busy_threads import BusySpan, busy_threads
from delayedq.operations.error_groups import error_groups
from delayedq.operations.explain import Reason, explain
from delayedq.operations.figures import Ahead, Span, figures, forecast
from delayedq.operations.queues import queue_states
from delayedq.operations.verdict import verdict
from delayedq.store import worker_registry
from tests.admin.given import HISTORY, MESSAGES, choose_all, dead, offer, tick
from tests.app.tasks import mark
from tests.autovacuum import outlast_autovacuum
from tests.store.test_worker_registry import worker

LISTS = {
    "messages": (MESSAGES, {}),
    "due": (MESSAGES, {"state": "due"}),
    "scheduled": (MESSAGES, {"state": "scheduled"}),
    "running": (MESSAGES, {"state": "running"}),
    "retrying": (MESSAGES, {"state": "retrying"}),
    "lost": (MESSAGES, {"state": "lost"}),
    "queue": (MESSAGES, {"queue": "q1"}),
    "task": (MESSAGES, {"kind": "tests.rare"}),
    "time": (MESSAGES, {"since": "2025-12-31T19:00", "until": "2025-12-31T20:00"}),
    "later page": (MESSAGES, {"after": "2026-01-01T00:00:00+00:00~7", "kind": "tests.rare"}),
    "key": (MESSAGES, {"q": "key-77"}),
    "history": (HISTORY, {}),
    "dead letters": (HISTORY, {"outcome": "failed"}),
    "dead letters of a task": (HISTORY, {"outcome": "failed", "kind": "tests.rare"}),
    "succeeded": (HISTORY, {"outcome": "succeeded"}),
    "history of a queue": (HISTORY, {"queue": "q1"}),
    "history of a task": (HISTORY, {"kind": "tests.rare"}),
    "history of a key": (HISTORY, {"q": "key-77"}),
    "history of a time": (HISTORY, {"since": "2025-12-31T19:00", "until": "2025-12-31T20:00"}),
}
EACH_LIST = pytest.mark.parametrize(("url", "query"), LISTS.values(), ids=LISTS)
#: A count of one queue of four reads four times the rows that it counts.
MOST = 5_000
#: Near the end of the live and of the ended messages of `FILL`.
NOW = datetime(2026, 1, 1, 3, tzinfo=UTC)
READS = re.compile(r"\s*(SELECT|WITH)\b")
ON_POSTGRESQL = pytest.mark.parametrize("alias", ["postgresql"], indirect=True)

#: 12,000 live messages in 12 lanes, and as many that ended; one in 6,000 is of the rare task, one in 1,000 failed.
FILL = """
TRUNCATE delayedq_message, delayedq_finishedmessage;
INSERT INTO delayedq_message (queue, kind, key, priority, max_attempts, payload, scheduled_at, scheduled_at_initially,
    created_at, attempt, generation)
SELECT 'q' || n % 4, CASE n % 6000 WHEN 5 THEN 'tests.rare' ELSE 'tests.k' || n % 5 END, 'key-' || n, n % 3, 1,
    repeat('x', 200), at, at, at, 0, 0
FROM (SELECT n, timestamptz '2026-01-01' + n * 7919 % 12000 * interval '1 second' AS at
    FROM generate_series(1, 12000) AS n) AS made;
INSERT INTO delayedq_finishedmessage (id, finished_at, scheduled_at, scheduled_at_initially, created_at, priority,
    attempts, max_attempts, outcome, queue, kind, key, payload)
SELECT 100000 + n, at, at, at, at, 0, 1, 1, CASE n % 1000 WHEN 1 THEN 'failed' ELSE 'succeeded' END, 'q' || n % 4,
    CASE n % 6000 WHEN 5 THEN 'tests.rare' ELSE 'tests.k' || n % 5 END, 'key-' || n, repeat('x', 200)
FROM (SELECT n, timestamptz '2026-01-01' + n * interval '1 second' AS at FROM generate_series(1, 12000) AS n) AS made;
ANALYZE delayedq_message, delayedq_finishedmessage
"""


TABLES = {"delayedq_message", "delayedq_finishedmessage"}


@pytest.fixture
def many(connection, monkeypatch):
    """All bounds divided by 10, and tables that are far larger than they are."""
    monkeypatch.setattr(browsing, "DEPTH", 1_000)
    monkeypatch.setattr(browsing, "DEPTH_BY_KEY", 3_000)
    monkeypatch.setattr(counting, "BOUND", 1_000)
    monkeypatch.setattr(counting, "SCANNED_BOUND", 100)
    monkeypatch.setattr(counting, "MOST", 1_000)
    monkeypatch.setattr(queues, "MOST", 2_000)
    monkeypatch.setattr(queues, "MOST_ENDED", 1_000)
    monkeypatch.setattr(explaining, "MOST_AHEAD", 1_000)
    with connection.cursor() as cursor:
        cursor.execute(FILL.replace("%", "%%"), [])
    yield
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE delayedq_message, delayedq_finishedmessage; ANALYZE delayedq_finishedmessage")


def statements(connection, act):
    with CaptureQueriesContext(connection) as captured:
        assert act().status_code == 200
    return [query["sql"] for query in captured]


def reads(connection, ask):
    """The statements on the tables of messages."""
    with CaptureQueriesContext(connection) as captured:
        ask()
    return [query["sql"] for query in captured if "delayedq_" in query["sql"] and READS.match(query["sql"])]


def plan(connection, sql):
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql.replace('%', '%%')}", [])
        answer = cursor.fetchone()[0]
    return (json.loads(answer) if isinstance(answer, str) else answer)[0]["Plan"]


def nodes(explained):
    yield explained
    for child in explained.get("Plans", []):
        yield from nodes(child)


def visited(explained):
    """The rows read from the tables of messages, including filtered ones."""
    scans = [node for node in nodes(explained) if node.get("Relation Name", "").startswith("delayedq_")]
    return sum((n["Actual Rows"] + n.get("Rows Removed by Filter", 0)) * n["Actual Loops"] for n in scans)


@ON_POSTGRESQL
def test_each_page_reads_a_bounded_number_of_rows(operator, connection, many):
    pages = {name: partial(operator.get, *asked) for name, asked in LISTS.items()}
    pages["confirmation"] = partial(choose_all, operator, "cancel", "")
    for name, act in pages.items():
        about_messages = [sql for sql in statements(connection, act) if "delayedq_" in sql and READS.match(sql)]
        assert about_messages
        for sql in about_messages:
            assert visited(plan(connection, sql)) <= MOST, f"{name}: {sql}"


def first_of_priority_0(_):
    """The page of a message that waits behind all of higher priority."""
    message = Message.objects.filter(queue="q1", priority=0).earliest("scheduled_at")
    message.kind = mark.module_path
    answers = explain(message, NOW)
    assert [answer.reason for answer in answers] == [Reason.BEHIND]


#: The queries of a page, how many statements each may take, and how many rows each of these may visit, if that is not
#: VISITED: one statement counts all queues.
VISITED = 1_500
ASKED = {
    "dashboard of an hour": (lambda store: figures(store, Span.HOUR, NOW), 35),
    "dashboard of a day": (lambda store: figures(store, Span.DAY, NOW), 35),
    "dashboard of a week": (lambda store: figures(store, Span.WEEK, NOW), 35),
    "busy threads of a day": (lambda store: busy_threads(store, BusySpan.DAY, NOW), 8),
    "busy threads of a week": (lambda store: busy_threads(store, BusySpan.WEEK, NOW), 8),
    "forecast of a day": (lambda store: forecast(store, Ahead.DAY, NOW - timedelta(hours=2)), 8),
    "forecast of a week": (lambda store: forecast(store, Ahead.WEEK, NOW - timedelta(hours=2)), 8),
    "queues": (lambda store: queue_states(store, NOW), 6, 2_500),
    "why it does not run": (first_of_priority_0, 20),
}


@ON_POSTGRESQL
@pytest.mark.parametrize("asked_of", ASKED.values(), ids=ASKED)
def test_counts_read_slices_of_an_index_and_never_a_table(store, connection, many, asked_of):
    ask, most, bound = (*asked_of, VISITED)[:3]
    worker_registry(store.alias).at(NOW).heartbeat([worker("w1", threads=9)])
    asked = reads(connection, partial(ask, store))
    plans = [plan(connection, sql) for sql in asked if not sql.startswith("EXPLAIN")]
    scans = [node for explained in plans for node in nodes(explained) if node.get("Relation Name") in TABLES]

    assert 0 < len(asked) <= most
    assert "Seq Scan" not in {scan["Node Type"] for scan in scans}
    assert max(visited(explained) for explained in plans) <= bound


@ON_POSTGRESQL
def test_failures_are_counted_in_their_own_index_alone(store, connection, many):
    outlast_autovacuum()
    with connection.cursor() as cursor:
        cursor.execute("VACUUM delayedq_finishedmessage")
    asked = [sql for sql in reads(connection, lambda: figures(store, Span.DAY, NOW)) if "'failed'\n" in sql]
    (scan,) = [node for node in nodes(plan(connection, *asked)) if node.get("Relation Name") in TABLES]

    assert (scan["Node Type"], scan["Index Name"]) == ("Index Only Scan", "delayedq_dead")


@ON_POSTGRESQL
def test_dead_letters_are_found_by_their_own_index(operator, connection, many):
    sent = statements(connection, partial(operator.get, HISTORY, {"outcome": "failed"}))
    ended = [
        node.get("Index Name")
        for sql in sent
        if "'failed'" in sql and READS.match(sql)
        for node in nodes(plan(connection, sql))
        if node.get("Relation Name") == "delayedq_finishedmessage"
    ]
    assert ended
    assert set(ended) == {"delayedq_dead"}


#: Filters of the history that an index of the dead letters answers without their rows.
BY_INDEX = [
    {"outcome": "failed"},
    {"outcome": "failed", "kind": "tests.absent"},
    {"outcome": "failed", "queue": "q9"},
    {"outcome": "failed", "group": "0000000000000007"},
]


@ON_POSTGRESQL
@pytest.mark.parametrize("query", BY_INDEX)
def test_dead_letters_are_counted_and_sought_without_reading_their_rows(operator, connection, many, query):
    with connection.cursor() as cursor:
        cursor.execute("UPDATE delayedq_finishedmessage SET outcome = 'failed', error = '', fingerprint = id % 40")
    outlast_autovacuum()
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE delayedq_finishedmessage")
    sent = statements(connection, partial(operator.get, HISTORY, query))
    counts = [
        sql
        for sql in sent
        if READS.match(sql)
        and "delayedq_finishedmessage" in sql
        and "payload_start" not in sql
        and "newest_" not in sql  # the latest row of the group, which names its error
    ]

    plans = [node for sql in counts for node in nodes(plan(connection, sql))]
    ended = [node for node in plans if node.get("Relation Name") == "delayedq_finishedmessage"]
    assert ended
    assert {(node["Node Type"], node["Heap Fetches"]) for node in ended} == {("Index Only Scan", 0)}


@ON_POSTGRESQL
def test_counts_are_exact_up_to_a_bound_and_then_estimates(operator, connection, many):
    def count(url, **query):
        return str(operator.get(url, query).context["count"])

    assert count(MESSAGES) == "about 12 k"
    assert count(HISTORY) == "about 12 k"
    assert count(HISTORY, outcome="failed") == "12"
    assert count(MESSAGES, since="2025-12-31T19:00", until="2025-12-31T19:10") == "601"
    assert count(MESSAGES, q="key-7777") == "1"
    assert count(MESSAGES, queue="q1").startswith("about ")


@EACH_LIST
def test_no_page_counts_skips_or_filters_a_whole_table(operator, store, connection, url, query):
    for number in range(60):
        offer(store, f"key-{number}", queue=f"q{number % 3}")
    for sql in statements(connection, partial(operator.get, url, query)):
        assert "OFFSET" not in sql
        assert "DISTINCT" not in sql
        assert "COUNT(" not in sql.upper() or re.search(r"LIMIT 10?001\b", sql) or "delayedq_" not in sql


@pytest.mark.parametrize("where", [MESSAGES, HISTORY])
def test_the_number_of_queries_does_not_grow_with_the_rows(operator, store, connection, where):
    make = offer if where == MESSAGES else dead
    first = make(store, "first")
    cost = {}
    for size in (5, 40):
        for number in range(size):
            make(store, f"{size}-{number}")
        cost[size] = len(statements(connection, partial(operator.get, where)))
    assert cost[5] == cost[40] <= 16

    one = len(statements(connection, partial(operator.get, f"{where}{first}/change/")))
    assert one <= 16
    action = "cancel" if where == MESSAGES else "retry"
    assert len(statements(connection, partial(tick, operator, action, first, where=where))) <= 16


@ON_POSTGRESQL
def test_the_count_of_a_task_among_dead_letters_follows_from_what_was_read(operator, connection, many):
    """Not from the planner's statistics, as if all tasks failed alike."""
    with connection.cursor() as cursor:
        cursor.execute("UPDATE delayedq_finishedmessage SET outcome = 'failed', error = '', fingerprint = 0")
        cursor.execute("ANALYZE delayedq_finishedmessage")

    def count(**query):
        return operator.get(HISTORY, {"outcome": "failed", **query}).context["count"]

    assert str(count(kind="tests.absent")) == "not yet known how many"
    assert not count(kind="tests.k1").exact
    assert count(kind="tests.k1").number == pytest.approx(2400, rel=0.2)
    assert count(queue="q1").number == pytest.approx(3000, rel=0.2)


def errors_of_the_day(store):
    """12,000 dead letters of 40 errors."""
    return error_groups(store, NOW)


@ON_POSTGRESQL
@pytest.mark.parametrize(("ask", "most"), [(errors_of_the_day, 5), (lambda store: verdict(store, NOW), 12)])
def test_error_groups_and_the_verdict_read_a_bounded_part_of_an_index(store, connection, many, monkeypatch, ask, most):
    monkeypatch.setattr(grouping, "FULL", 1_000)
    monkeypatch.setattr(grouping, "LEAST", 10)
    monkeypatch.setattr(grouping, "MOST_LATELY", 10)
    monkeypatch.setattr(judging, "MOST_RECENT", 10)
    monkeypatch.setattr(judging, "MOST_BEFORE", 10)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE delayedq_finishedmessage SET outcome = 'failed', error = '', fingerprint = id % 40")
    outlast_autovacuum()
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE delayedq_finishedmessage")
    worker_registry(store.alias).at(NOW).heartbeat([worker("w1")])

    asked = reads(connection, partial(ask, store))
    plans = [plan(connection, sql) for sql in asked]
    scans = [node for explained in plans for node in nodes(explained) if node.get("Relation Name") in TABLES]

    assert 0 < len(asked) <= most
    assert "Seq Scan" not in {scan["Node Type"] for scan in scans}
    assert max(visited(explained) for explained in plans) <= 1_500


@pytest.mark.parametrize("alias", ["mariadb"], indirect=True)
def test_mariadb_counts_dead_letters_in_the_index_of_fingerprints(store, connection):
    FinishedMessage.objects.bulk_create(ended(number) for number in range(3_000))
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE TABLE delayedq_finishedmessage")

    with CaptureQueriesContext(connection) as captured:
        assert counting.count_ended(store, EndedSelection(outcome="failed")) == (30, True)

    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN {captured[0]['sql'].replace('%', '%%')}", [])
        plans = [dict(zip((column[0] for column in cursor.description), row, strict=True)) for row in cursor.fetchall()]
    (read,) = [step for step in plans if step["table"] == "delayedq_finishedmessage"]
    assert (read["key"], read["Extra"]) == ("delayedq_fingerprint", "Using where; Using index")
    assert int(read["rows"]) < 100


@pytest.mark.parametrize("alias", ["mariadb"], indirect=True)
def test_mariadb_looks_for_dead_letters_among_a_bounded_number_of_ended_messages(store, monkeypatch):
    monkeypatch.setattr(browsing, "DEPTH", 150)
    FinishedMessage.objects.bulk_create(ended(number) for number in range(1_000))
    page = browsing.ended_page(store, EndedSelection(outcome="failed"))
    assert (len(page.rows), page.is_cut) == (2, True)


def ended(number):
    at = NOW - timedelta(seconds=number)
    dead_ = {"outcome": "failed", "error": "E", "fingerprint": -(2**63) + number} if number % 100 == 1 else {}
    given = {"outcome": "succeeded", "queue": "q", "kind": "k", "payload": "{}", **dead_}
    times = dict.fromkeys(("finished_at", "scheduled_at", "scheduled_at_initially", "created_at"), at)
    return FinishedMessage(id=number + 1, priority=0, attempts=1, max_attempts=1, **times, **given)
