from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from delayedq.admin.charts import count, seconds
from delayedq.models import FinishedMessage, Message
from delayedq.operations import counting
from delayedq.operations import figures as operations_figures
from delayedq.operations.figures import Span, figures
from tests.admin.given import text_of

#: Not at the beginning of a minute, a quarter or an hour.
NOW = datetime(2026, 5, 20, 9, 37, 30, tzinfo=UTC)
DASHBOARD = "/admin/delayedq/dashboard/"


def ago(seconds):
    return NOW - timedelta(seconds=seconds)


def ended(id_, at, *, late=1.0, outcome="succeeded", created=None):
    """`late` None: it never started."""
    return FinishedMessage(
        id=id_,
        finished_at=at,
        started_at=None if late is None else at,
        scheduled_at=at - timedelta(seconds=late or 0),
        scheduled_at_initially=at,
        created_at=created or at,
        priority=0,
        attempts=1,
        max_attempts=1,
        outcome=outcome,
        queue="mail",
        kind="tests.remind",
        payload="{}",
    )


def live(id_, created, due=NOW):
    return Message(
        id=id_,
        created_at=created,
        scheduled_at=due,
        scheduled_at_initially=due,
        max_attempts=1,
        queue="mail",
        kind="tests.remind",
        payload="{}",
    )


def summed(found):
    return tuple(sum(getattr(bucket, name) for bucket in found.buckets) for name in ("arrived", "ended", "failed"))


# Counts


def test_ended_messages_count_in_the_minute_they_ended(store):
    FinishedMessage.objects.bulk_create(
        [
            ended(1, datetime(2026, 5, 20, 9, 36, 59, 999_000, tzinfo=UTC)),
            ended(2, datetime(2026, 5, 20, 9, 37, 0, tzinfo=UTC)),
            ended(3, datetime(2026, 5, 20, 9, 37, 29, tzinfo=UTC), outcome="failed"),
        ]
    )
    found = figures(store, Span.HOUR, NOW)

    assert [bucket.start for bucket in found.buckets][-2:] == [NOW.replace(minute=m, second=0) for m in (36, 37)]
    assert [(bucket.ended, bucket.failed) for bucket in found.buckets][-2:] == [(1, 0), (2, 1)]
    assert summed(found)[1:] == (3, 1)
    assert found.one_in == 1.0


@pytest.mark.parametrize(
    ("span", "oldest"), [(Span.HOUR, 59 * 60), (Span.DAY, 86_400 - 900), (Span.WEEK, 7 * 86_400 - 3600)]
)
def test_a_span_ends_with_the_current_bucket_and_has_its_full_length(store, span, oldest):
    FinishedMessage.objects.bulk_create([ended(1, ago(oldest)), ended(2, ago(oldest + span.value[1])), ended(3, NOW)])
    found = figures(store, span, NOW)

    assert summed(found)[1] == 2
    assert found.buckets[0].ended == found.buckets[-1].ended == 1


def test_latencies_are_the_50th_and_95th_percentile(store):
    FinishedMessage.objects.bulk_create(
        [ended(n, ago(20), late=n / 10) for n in range(1, 101)] + [ended(101, ago(20), late=None, outcome="cancelled")]
    )
    last = figures(store, Span.HOUR, NOW).buckets[-1]

    assert (last.ended, last.p50, last.p95) == (101, pytest.approx(5.0), pytest.approx(9.5))


def test_a_bucket_without_started_messages_has_no_latency(store):
    FinishedMessage.objects.bulk_create([ended(1, ago(20), late=None, outcome="cancelled")])

    last = figures(store, Span.HOUR, NOW).buckets[-1]
    assert (last.ended, last.p50, last.p95) == (1, None, None)


def test_arrivals_count_live_and_ended_messages_once(store):
    Message.objects.bulk_create([live(10, ago(10)), live(11, ago(4000))])
    FinishedMessage.objects.bulk_create(
        [
            ended(8, ago(5), created=ago(70)),
            ended(9, ago(5), created=ago(4000)),
            ended(12, ago(5), created=ago(70), outcome="superseded"),
        ]
    )
    found = figures(store, Span.HOUR, NOW)

    assert [bucket.arrived for bucket in found.buckets][-2:] == [1, 1]
    assert summed(found) == (2, 2, 0)


def test_an_empty_store_has_zero_in_all_figures(store):
    assert summed(figures(store, Span.WEEK, NOW)) == (0, 0, 0)


# Samples


@pytest.fixture
def crowded(store, monkeypatch):
    """6,000 messages in a week, with a bound of 1,000 rows."""
    monkeypatch.setattr(counting, "MOST", 1_000)
    step = 7 * 86_400 / 6_000
    FinishedMessage.objects.bulk_create(
        (ended(n * 10, ago(n * step), outcome="failed" if n % 5 == 0 else "succeeded") for n in range(6_000)),
        batch_size=1_000,
    )
    for message in FinishedMessage.objects.order_by("finished_at")[:1]:
        assert message.finished_at < ago(6 * 86_400)


def test_figures_of_a_sample_are_close_to_the_exact_ones(store, crowded):
    found = figures(store, Span.WEEK, NOW)

    assert 2 < found.one_in < 60
    assert summed(found)[1] == pytest.approx(6_000, rel=0.15)


def test_failures_are_exact_while_the_rest_is_sampled(store, connection, crowded):
    found = figures(store, Span.WEEK, NOW)
    within = FinishedMessage.objects.failed().filter(finished_at__gte=found.buckets[0].start).count()

    if connection.features.supports_partial_indexes:
        assert (summed(found)[2], found.failed_one_in) == (within, 1.0)
    else:
        assert summed(found)[2] == pytest.approx(1_200, rel=0.3)
        assert found.failed_one_in == found.one_in


def test_very_many_failures_are_sampled_too(store, crowded, monkeypatch):
    monkeypatch.setattr(operations_figures, "DEAD_TIMES", 1)
    found = figures(store, Span.WEEK, NOW)

    assert found.failed_one_in > 1
    assert summed(found)[2] == pytest.approx(1_200, rel=0.3)


def test_the_number_of_statements_is_bounded(store, connection, crowded):
    with CaptureQueriesContext(connection) as captured:
        figures(store, Span.WEEK, NOW)

    asked = [query["sql"] for query in captured if query["sql"].lstrip("( \n").startswith(("SELECT", "WITH"))]
    assert len(asked) < 35


def test_the_first_id_of_a_span_is_found_without_reading_the_span(store, monkeypatch):
    monkeypatch.setattr(counting, "MOST", 100)
    Message.objects.bulk_create(live(n * 7, ago(2_000 - n)) for n in range(1, 2_001))

    first, last = counting.ids_since(Message.objects.all(), ago(500))
    assert 1490 * 7 <= first <= 1500 * 7
    assert last == 2_000 * 7 + 1
    assert counting.ids_since(Message.objects.none(), NOW) == (0, 0)


# The page


def test_the_page_has_the_same_numbers_in_text_tables_and_json(operator):
    now = timezone.now()
    FinishedMessage.objects.bulk_create(ended(n, now, outcome="failed" if n == 1 else "succeeded") for n in range(1, 4))
    page = operator.get(DASHBOARD, {"span": "hour"})

    assert page.context["totals"] == [
        ("arrived", "3", "3.0 per hour"),
        ("finished", "3", "3.0 per hour"),
        ("of them failed", "1", "1.0 per hour"),
        ("worst p95 of latency", "1 s", ""),
        ("due now", "0", ""),
    ]
    flow, failures, latency = page.context["drawn"]
    assert [sum(series["values"]) for series in flow["series"]] == [3, 3]
    assert sum(failures["series"][0]["values"]) == 1
    assert latency["zone"] == "America/New_York"
    assert page.content.count(b"<td>3</td>") == 2
    assert "sample" not in text_of(page)


def test_the_page_marks_estimates(operator, connection, monkeypatch):
    monkeypatch.setattr(counting, "MOST", 1_000)
    now = timezone.now()
    FinishedMessage.objects.bulk_create(
        (ended(n * 10, now - timedelta(seconds=n / 2)) for n in range(6_000)), batch_size=1_000
    )

    said = text_of(operator.get(DASHBOARD, {"span": "hour"}))
    assert "estimated from a sample of one in" in said
    assert ("Failures are counted exactly." in said) is connection.features.supports_partial_indexes


def test_an_unknown_span_is_an_hour(operator):
    assert operator.get(f"{DASHBOARD}?span=<b>").context["span"] is Span.HOUR
    assert operator.get(f"{DASHBOARD}?span=week").context["span"] is Span.WEEK


@pytest.mark.parametrize("address", [DASHBOARD, f"{DASHBOARD}forecast/"])
def test_the_dashboard_has_a_permission_of_its_own(member, address):
    assert member().get(address).status_code == 403
    assert member("view_dashboard", name="eve").get(address).status_code == 200


@pytest.mark.parametrize("address", [DASHBOARD, f"{DASHBOARD}forecast/"])
def test_no_script_and_no_style_is_written_into_the_page(operator, address):
    page = operator.get(address).content.decode()

    scripts = [part.split(">")[0] for part in page.split("<script")[1:]]
    assert all("src=" in script or 'type="application/json"' in script for script in scripts)
    assert "style=" not in page
    assert "onclick" not in page


# Numbers


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (None, "-"),
        (0, "0 ms"),
        (0.0123, "12.3 ms"),
        (0.9999, "1000 ms"),
        (3.456, "3.46 s"),
        (90, "1.5 min"),
        (7200, "2.0 h"),
        (-2, "-2 s"),
    ],
)
def test_seconds_are_shown_in_a_fitting_unit(duration, text):
    assert seconds(duration) == text


def test_counts_have_commas():
    assert (count(1234567), count(None)) == ("1,234,567", "-")
