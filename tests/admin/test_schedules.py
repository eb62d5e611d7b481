"""The pages of the cron schedules: what they did and will do; running, disabling and enabling them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.admin.models import LogEntry

from delayedq.models import CronSchedule, Message
from tests.admin.given import said, text_of
from tests.cron.given import beat_at, claim_due
from tests.store.given import fail, settle

SCHEDULES = "/admin/delayedq/cronschedule/"
ONE = f"{SCHEDULES}schedule/?name=report"
RUN, DISABLE, ENABLE = (f"{SCHEDULES}{view}/?name=report" for view in ("run", "disable", "enable"))

#: The day before New York's clocks skip an hour: 10:20 there.
NOW = datetime(2026, 3, 7, 15, 20, tzinfo=UTC)
TASK = {"task": "tests.app.tasks.mark", "args": ["x"]}
REPORT = {**TASK, "cron": "30 2 * * *", "timezone": "America/New_York"}
SWEEP = {**TASK, "every": timedelta(minutes=15)}


@pytest.fixture
def now(store, monkeypatch, settings):
    """Stop the clock of the store, at which two schedules are known."""
    monkeypatch.setattr(type(store), "now", lambda self: NOW)
    settings.DELAYEDQ = {"CRON": {"report": REPORT, "sweep": SWEEP}}
    return NOW


@pytest.fixture
def viewer(member):
    return member("view_cronschedule")


def rows(client):
    return {row.name: row for row in client.get(SCHEDULES).context["rows"]}


def ticks_on(page, title):
    (ticks,) = [ticks for name, ticks in page.context["tables"] if name.startswith(title)]
    return [(tick.local, tick.utc, tick.after) for tick in ticks]


# What they do


def test_the_list_tells_when_each_ticks(now, operator):
    found = rows(operator)
    assert list(found) == ["report", "sweep"]
    report = found["report"]
    assert (report.task, report.words, report.state) == (
        "tests.app.tasks.mark",
        ["30 2 * * *", "At 02:30", "America/New_York"],
        "active",
    )
    assert report.last is None
    assert "in 15 h" in report.following
    assert "in 10 min" in found["sweep"].following


def test_the_list_tells_the_last_tick_with_its_outcome(now, store, operator):
    beat_at(store, NOW - timedelta(minutes=30), sweep=SWEEP)
    settle(store, *(fail(one) for one in claim_due(store, NOW)), now=NOW)
    last = rows(operator)["sweep"].last
    assert last["state"] == "failed"
    assert "20 min ago" in last["at"]


def test_a_schedule_has_its_next_ten_ticks(now, operator):
    ticks = ticks_on(operator.get(ONE), "Next 10 ticks")
    assert len(ticks) == 10
    assert ticks[:2] == [
        ("Sun 2026-03-08 03:00 EDT", "Sun 2026-03-08 07:00 UTC", ""),
        ("Mon 2026-03-09 02:30 EDT", "Mon 2026-03-09 06:30 UTC", "23:30:00"),
    ]


def test_a_schedule_has_its_ticks_around_the_changes_of_its_clock(now, operator):
    page = operator.get(ONE)
    spring = ticks_on(page, "Around the change of the clock on 8 March 2026")
    assert spring[4:7] == [
        ("Sat 2026-03-07 02:30 EST", "Sat 2026-03-07 07:30 UTC", "1 day, 0:00:00"),
        ("02:00 EST becomes 03:00 EDT", "Sun 2026-03-08 07:00 UTC", ""),
        ("Sun 2026-03-08 03:00 EDT", "Sun 2026-03-08 07:00 UTC", "23:30:00"),
    ]
    autumn = ticks_on(page, "Around the change of the clock on 1 November 2026")
    assert len(autumn) == 11


def test_a_schedule_whose_clock_is_never_changed_has_none(now, operator):
    page = operator.get(f"{SCHEDULES}schedule/?name=sweep")
    assert [title for title, _ in page.context["tables"]] == ["Next 10 ticks"]


def test_a_schedule_has_its_last_ticks_with_what_became_of_their_messages(now, store, operator):
    beat_at(store, NOW - timedelta(minutes=30), sweep={**SWEEP, "misfire": "all"})
    (first, *_) = claim_due(store, NOW)
    settle(store, fail(first), now=NOW)
    past = operator.get(f"{SCHEDULES}schedule/?name=sweep").context["past"]
    assert past[-1].state == "failed"
    assert past[-1].url == f"/admin/delayedq/finishedmessage/{first.id}/change/"
    beat_at(store, NOW, sweep={**SWEEP, "misfire": "all"})
    waiting = Message.objects.get(key__contains="20260307-151500")
    page = operator.get(f"{SCHEDULES}schedule/?name=sweep")
    assert f'href="/admin/delayedq/message/{waiting.pk}/change/"' in page.content.decode()


def test_a_schedule_that_the_settings_have_no_more_is_told(now, store, operator, settings):
    beat_at(store, NOW, report=REPORT)
    settings.DELAYEDQ = {"CRON": {}}
    assert rows(operator)["report"].state == "not defined"
    page = operator.get(ONE)
    assert page.status_code == 200
    assert page.context["actions"] == []
    assert operator.post(RUN).status_code == 404


def test_settings_that_can_not_be_read_are_told(now, operator, settings):
    settings.DELAYEDQ = {"CRON": {"report": {**REPORT, "timezone": "Mars/Phobos"}}}
    page = operator.get(SCHEDULES)
    assert "DELAYEDQ['CRON']['report']['timezone']" in text_of(page)


def test_what_the_settings_disable_is_told(now, operator, settings):
    settings.DELAYEDQ = {"CRON": {"report": {**REPORT, "enabled": False}}}
    row = rows(operator)["report"]
    assert (row.state, row.following) == ("disabled in the settings", "-")


def test_an_unknown_schedule_is_not_found(now, operator):
    assert operator.get(f"{SCHEDULES}schedule/?name=<b>").status_code == 404
    assert operator.get(f"{SCHEDULES}schedule/").status_code == 404


# What can be done


def test_to_run_is_asked_back_and_then_done(now, store, operator):
    assert operator.get(RUN).status_code == 200
    assert not Message.objects.exists()
    page = operator.post(RUN, follow=True)
    message = Message.objects.get()
    assert said(page) == [f"Schedule report is due now, as message {message.pk}."]
    assert (message.kind, message.key) == ("tests.app.tasks.mark", None)


def test_to_disable_is_asked_back_and_then_done(now, store, operator):
    beat_at(store, NOW, report=REPORT)
    assert operator.get(DISABLE).status_code == 200
    assert Message.objects.exists()
    page = operator.post(DISABLE, follow=True)
    assert said(page) == ["Schedule report is disabled."]
    assert not Message.objects.exists()
    assert page.context["row"].state == "disabled"
    assert (rows(operator)["report"].state, rows(operator)["report"].following) == ("disabled", "-")
    assert page.context["row"].following == "-"
    beat_at(store, NOW, report=REPORT)
    assert not Message.objects.exists()


def test_to_enable_is_asked_back_and_then_done(now, store, operator):
    operator.post(DISABLE)
    assert operator.get(ENABLE).status_code == 200
    assert not Message.objects.exists()
    page = operator.post(ENABLE, follow=True)
    assert page.context["row"].state == "active"
    assert Message.objects.get().scheduled_at == datetime(2026, 3, 8, 7, tzinfo=UTC)


def test_the_button_says_what_can_be_done(now, store, operator):
    def labels():
        return [label for label, _ in operator.get(ONE).context["actions"]]

    assert labels() == ["Run now", "Disable"]
    operator.post(DISABLE)
    assert labels() == ["Run now", "Enable"]


def test_the_log_tells_who_did_what(now, store, operator):
    for url in (RUN, DISABLE, ENABLE):
        operator.post(url)
    entries = LogEntry.objects.order_by("id").values_list("user__username", "object_repr", "change_message")
    run_as = Message.objects.get(key=None).pk
    assert list(entries) == [
        ("ann", "report", f"Run by hand, as message {run_as}."),
        ("ann", "report", "Disabled."),
        ("ann", "report", "Enabled."),
    ]
    assert operator.get("/admin/").status_code == 200


# Who may


def test_who_may_only_look_sees_no_button_and_may_do_nothing(now, store, viewer):
    page = viewer.get(ONE)
    assert (page.status_code, page.context["actions"]) == (200, [])
    for url in (RUN, DISABLE, ENABLE):
        assert viewer.get(url).status_code == 403
        assert viewer.post(url).status_code == 403
    assert not Message.objects.exists()
    assert not CronSchedule.objects.exclude(disabled_at=None).exists()


@pytest.mark.parametrize(("permission", "allowed"), [("run_schedule", [RUN]), ("disable_schedule", [DISABLE, ENABLE])])
def test_each_deed_has_its_permission(now, store, member, permission, allowed):
    client = member("view_cronschedule", permission)
    assert [url for url in (RUN, DISABLE, ENABLE) if client.post(url).status_code == 302] == allowed


def test_who_may_not_look_does_not(now, member):
    nobody = member()
    assert [nobody.get(url).status_code for url in (SCHEDULES, ONE)] == [403, 403]


def test_nothing_is_done_without_a_token(now, store, operator):
    operator.handler.enforce_csrf_checks = True
    assert {operator.post(url).status_code for url in (RUN, DISABLE, ENABLE)} == {403}
    assert not Message.objects.exists()
