"""The figures of people, and of each day: throughput, age, time saved and known answers."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest
from django.test import Client

from delayedq import desk
from delayedq.desk import automation_page, figures, trend
from delayedq.desk.agreement import Agreement
from delayedq.desk.figures import PersonFigures
from delayedq.desk.models import Automation, Item
from delayedq.desk.rounds import forget_closed
from delayedq.models import FinishedMessage
from delayedq.operations.counting import Count
from delayedq.operations.figures import Span, durations
from delayedq.operations.figures import figures as queue_figures
from delayedq.testing import clock, run_due
from tests.desk.given import ALL, PAID, QUEUE, opened, person, refund, reviewed

pytestmark = [pytest.mark.usefixtures("store"), pytest.mark.urls("tests.desk.urls")]
START = datetime(2026, 3, 2, 9, tzinfo=UTC)


def signed_in(user):
    client = Client()
    client.force_login(user)
    return client


def cells(client, address, heading):
    """The texts of the rows of the table that has a column of this name, by that column's name."""
    page = client.get(address).content.decode()
    (table,) = [one for one in re.findall(r"<table.*?</table>", page, re.DOTALL) if f">{heading}</th>" in one]
    names = re.findall(r"<th scope=\"col\"[^>]*>(.*?)</th>", table)
    for row in re.findall(r"<tbody>.*?</tbody>", table, re.DOTALL)[0].split("</tr>")[:-1]:
        texts = [re.sub(r"<[^>]*>", "", one).strip() for one in re.findall(r"<t[hd][ >].*?</t[hd]>", row, re.DOTALL)]
        yield dict(zip(names, texts, strict=True))


def test_of_each_person_what_they_have_decided_and_how_old_is_what_they_hold():
    ann, bob, eve = (person(name, *ALL) for name in ("ann", "bob", "eve"))
    with clock(START) as time:
        first, second, third, fallen, put_off = (opened() for _ in range(5))
        fallen.take(bob)
        time.advance(hours=1)
        younger = opened()
        time.advance(hours=2)
        for item in (first, younger, second):
            item.take(ann)
        second.finish(PAID, by=ann)
        put_off.take(eve)
        put_off.postpone(time() + timedelta(days=1), "later", by=eve)
        time.advance(minutes=10)
        third.take(bob)
        time.advance(minutes=5)
        third.finish(PAID, by=bob)
        assert figures.by_person(desk.items(), time()) == [
            PersonFigures("ann", 1, 0.0, 2, START),
            PersonFigures("bob", 1, 300.0),
        ]
        client = signed_in(ann)
        rows = {row["Who"]: row for row in cells(client, "/desk/figures/", "Who")}
        assert (rows["ann"]["Holds now"], rows["bob"]["Holds now"]) == ("2", "0")
        assert rows["ann"]["Oldest"].startswith("3 h 15 min ago")
        assert rows["bob"]["Oldest"] == "-"
        time.advance(days=8)
        assert figures.by_person(desk.items(), time()) == []


def test_the_days_of_the_table_add_up_to_the_time_saved_and_show_who_was_right():
    ann = person("ann", *ALL)
    with clock(START) as time:
        Automation.objects.create(kind=refund.module_path, mode="automatic")
        for amount in (100, 90):  # of two known answers ann knows one, the handler both
            desk.plant(refund, (100,), answer=PAID)
            run_due()
            item = desk.take_next(ann, "refunds")
            time.advance(minutes=10)
            item.finish({"amount": amount, "paid": True}, by=ann)
        time.advance(days=1)
        for _ in range(3):
            opened()
        now = time.advance(hours=1)
        (one,) = [
            one for one in automation_page.tasks_of(ann, desk.items(), now) if one.kind == refund.module_path
        ]  # fmt: skip
        assert [saved for _, saved in one.rows[:3]] == [timedelta(minutes=30), timedelta(), timedelta()]
        assert sum((saved for _, saved in one.rows), timedelta()) == one.total.saved
        client = signed_in(ann)
        today, before, *_ = cells(client, "/desk/automation/", "People right")
    assert (today["Time saved"], today["People right"], today["Handler right"]) == ("30 min", "-", "-")
    assert (before["Time saved"], before["People right"], before["Handler right"]) == ("0 s", "50 %", "100 %")


def test_the_time_saved_is_at_the_pace_of_people_and_not_of_code():
    """The figures of tasks, against what happened."""
    ann = person("ann", *ALL)
    with clock(START) as time:
        for by, minutes in ((ann, 10), (ann, 20), (None, 60)):
            item = opened()
            item.take(ann)
            time.advance(minutes=minutes)
            item.finish(PAID, by=by)
        first, second = opened(reviewed), opened(reviewed)
        for item in (first, second):
            item.take(ann)
            item.finish(PAID, by=ann)
        first.send_back("too much", by=person("bob", *ALL))
        Automation.objects.create(kind=refund.module_path, mode="automatic")
        for _ in range(2):
            opened()
        Automation.objects.update(mode="shadow")
        for amount in (100, 90):
            item = opened()
            item.take(ann)
            time.advance(minutes=15)
            item.finish({"amount": amount, "paid": True}, by=ann)
        ours, theirs = figures.by_task(desk.items(), time())
        assert (ours.kind, theirs.kind) == (refund.module_path, reviewed.module_path)
        assert (ours.done, ours.automated, ours.share_automated, ours.sent_back) == (7, 2, 2 / 7, 0)
        assert (ours.seconds, ours.saved, ours.agreement) == (900.0, timedelta(minutes=30), Agreement(1, 2))
        assert (theirs.done, theirs.automated, theirs.sent_back, theirs.saved) == (2, 0, 1, timedelta())
        assert figures.by_task(desk.items(), time.advance(days=8)) == []


def test_a_queue_is_empty_at_the_rate_of_a_week_if_it_shrinks():
    ann = person("ann", *ALL)
    with clock(START) as time:
        old = [opened() for _ in range(6)]
        time.advance(days=8)
        (queue,) = figures.by_queue(desk.items(), time())
        assert (queue.open, queue.done, queue.opened, queue.empty_in()) == (Count(6, True), 0, Count(0, True), None)
        for item in old[:3]:
            item.finish(PAID, by=None)
        opened()
        desk.plant(refund, (100,), answer=PAID)  # which no worker has opened
        (queue,) = figures.by_queue(desk.items(), time())
        assert (queue.open, queue.done, queue.opened) == (Count(4, True), 3, Count(1, True))
        assert queue.empty_in() == timedelta(days=14), "4 at 2 a week"
        (row,) = cells(signed_in(ann), "/desk/figures/", "Empty in")
        assert row["Empty in"] == "14 d"
        for _ in range(2):
            opened()
        assert figures.by_queue(desk.items(), time())[0].empty_in() is None, "as many came as went"


def test_of_each_queue_how_old_its_oldest_open_item_is():
    ann = person("ann", *ALL)
    with clock(START) as time:
        first, second = opened(), opened()
        time.advance(hours=1)
        opened()
        Item.objects.filter(pk=second.pk).update(queue="letters")
        first.finish(PAID, by=None)
        now = time.advance(hours=1)
        found = {queue.queue: queue.oldest for queue in figures.by_queue(desk.items(), now)}
        assert found == {"letters": START, QUEUE: START + timedelta(hours=1)}
        rows = {row["Queue"]: row for row in cells(signed_in(ann), "/desk/figures/", "Empty in")}
        assert rows["letters"]["Oldest"].startswith("2 h ago")
        assert rows[QUEUE]["Oldest"].startswith("1 h")


def test_no_trend_goes_back_behind_what_is_still_stored(store, settings):
    """Of what was deleted, comparisons are left for the brake: by them alone nothing was automated."""
    settings.DELAYEDQ = {"RETENTION": timedelta(days=3)}
    ann = person("ann", *ALL)
    with clock(START) as time:
        Automation.objects.create(kind=refund.module_path, mode="shadow")
        compared = opened()
        compared.take(ann)
        compared.finish(PAID, by=ann)
        Automation.objects.update(mode="automatic")
        opened()
        time.advance(days=4)
        opened()
        forget_closed(store)
        assert Item.objects.closed().count() == 2, "the comparison is kept"
        now = time.advance(hours=1)
        days = trend.by_task(desk.items(), now)[refund.module_path]
        assert [(day.begin, day.done) for day in days] == [
            (now - timedelta(days=3), 0), (now - timedelta(days=2), 0), (now - timedelta(days=1), 1),
        ]  # fmt: skip
        (week,) = trend.by_task(desk.items(), now, step=trend.WEEK, count=2)[refund.module_path]
        assert (week.begin, week.share_automated) == (now - timedelta(days=3), 1.0)
        page = signed_in(ann).get("/desk/automation/").content.decode()
    assert "in 3 days" in page
    assert 'd="M280.0,2.0h0"' in page  # the only day on which something was decided is a point of the chart
    assert page.count('<td class="dq-number" data-label="Compared">') == 3


def test_what_a_person_decides_does_not_poison_the_figures_of_the_queue(store):
    """Its message waits for the next visit of a worker when it ends: a day ahead."""
    ann = person("ann", *ALL)
    item = opened()
    item.take(ann)
    item.finish(PAID, by=ann)
    ended = FinishedMessage.objects.get(pk=item.message_id)
    assert ended.started_at < ended.scheduled_at
    found = {one.name: one for one in durations(store, Span.HOUR).tasks}
    assert (found[refund.module_path].ended, found[refund.module_path].wait_p95) == (1, None)
    assert {bucket.p95 for bucket in queue_figures(store, Span.HOUR, queue=QUEUE).buckets} <= {None}
