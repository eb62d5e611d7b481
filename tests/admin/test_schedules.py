"""The pages of the cron schedules: what they did and will do; running, disabling and enabling them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.admin.models import LogEntry

from delayedq import schedules
from delayedq.models import CronSchedule, CronTick, Edit, Message
from tests.admin.given import dead, said, text_of, undo
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


# The list and the page of a schedule


def test_the_list_shows_when_each_schedule_ticks(now, operator):
    found = rows(operator)
    assert list(found) == ["report", "sweep"]
    report = found["report"]
    assert (report.task, report.words, report.state) == (
        "tests.app.tasks.mark",
        ["30 2 * * *", "At 02:30", "America/New_York"],
        "active",
    )
    assert report.last is None
    assert "in 16 h" in report.following, "in 15 h 40 min"
    assert "in 10 min" in found["sweep"].following


def test_the_list_shows_the_last_tick_with_its_outcome(now, store, operator):
    beat_at(store, NOW - timedelta(minutes=30), sweep=SWEEP)
    settle(store, *(fail(one) for one in claim_due(store, NOW)), now=NOW)
    last = rows(operator)["sweep"].last
    assert last["state"] == "failed"
    assert "20 min ago" in last["at"]


def test_a_schedule_has_its_next_ten_ticks(now, operator):
    ticks = ticks_on(operator.get(ONE), "Next 10 ticks")
    assert len(ticks) == 10
    assert ticks[:2] == [
        ("Sun 2026-03-08 03:00:00 EDT", "Sun 2026-03-08 07:00:00 UTC", ""),
        ("Mon 2026-03-09 02:30:00 EDT", "Mon 2026-03-09 06:30:00 UTC", "23:30:00"),
    ]


def test_a_schedule_has_its_ticks_around_the_changes_of_its_clock(now, operator):
    page = operator.get(ONE)
    spring = ticks_on(page, "Around the change of the clock on Sun 2026-03-08 03:00:00 EDT")
    assert spring[4:7] == [
        ("Sat 2026-03-07 02:30:00 EST", "Sat 2026-03-07 07:30:00 UTC", "1 day, 0:00:00"),
        ("02:00 EST becomes 03:00 EDT", "Sun 2026-03-08 07:00:00 UTC", ""),
        ("Sun 2026-03-08 03:00:00 EDT", "Sun 2026-03-08 07:00:00 UTC", "23:30:00"),
    ]
    autumn = ticks_on(page, "Around the change of the clock on Sun 2026-11-01 01:00:00 EST")
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


def test_a_schedule_removed_from_the_settings_has_no_actions(now, store, operator, settings):
    beat_at(store, NOW, report=REPORT)
    settings.DELAYEDQ = {"CRON": {}}
    assert rows(operator)["report"].state == "not defined"
    page = operator.get(ONE)
    assert page.status_code == 200
    assert page.context["actions"] == []
    assert operator.post(RUN).status_code == 404


def test_invalid_settings_are_reported(now, operator, settings):
    settings.DELAYEDQ = {"CRON": {"report": {**REPORT, "timezone": "Mars/Phobos"}}}
    page = operator.get(SCHEDULES)
    assert "DELAYEDQ['CRON']['report']['timezone']" in text_of(page)


def test_a_schedule_disabled_in_the_settings_is_marked(now, operator, settings):
    settings.DELAYEDQ = {"CRON": {"report": {**REPORT, "enabled": False}}}
    row = rows(operator)["report"]
    assert (row.state, row.following) == ("disabled in the settings", "-")


def test_an_unknown_schedule_is_not_found(now, operator):
    assert operator.get(f"{SCHEDULES}schedule/?name=<b>").status_code == 404
    assert operator.get(f"{SCHEDULES}schedule/").status_code == 404


# Actions


def test_running_asks_for_confirmation(now, store, operator):
    assert operator.get(RUN).status_code == 200
    assert not Message.objects.exists()
    page = operator.post(RUN, follow=True)
    message = Message.objects.get()
    assert said(page) == [f"Schedule report is due now, as message {message.pk}."]
    assert (message.kind, message.key) == ("tests.app.tasks.mark", None)


def test_disabling_asks_for_confirmation(now, store, operator):
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


def test_enabling_asks_for_confirmation(now, store, operator):
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


def test_actions_are_in_the_log_of_the_admin(now, store, operator):
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


# Permissions


def test_view_permission_alone_shows_no_button_and_changes_nothing(now, store, viewer):
    page = viewer.get(ONE)
    assert (page.status_code, page.context["actions"]) == (200, [])
    for url in (RUN, DISABLE, ENABLE):
        assert viewer.get(url).status_code == 403
        assert viewer.post(url).status_code == 403
    assert not Message.objects.exists()
    assert not CronSchedule.objects.exclude(disabled_at=None).exists()


@pytest.mark.parametrize(("permission", "allowed"), [("run_schedule", [RUN]), ("disable_schedule", [DISABLE, ENABLE])])
def test_each_action_has_its_permission(now, store, member, permission, allowed):
    client = member("view_cronschedule", permission)
    assert [url for url in (RUN, DISABLE, ENABLE) if client.post(url).status_code == 302] == allowed


def test_the_page_needs_view_permission(now, member):
    nobody = member()
    assert [nobody.get(url).status_code for url in (SCHEDULES, ONE)] == [403, 403]


def test_requests_without_a_csrf_token_change_nothing(now, store, operator):
    operator.handler.enforce_csrf_checks = True
    assert {operator.post(url).status_code for url in (RUN, DISABLE, ENABLE)} == {403}
    assert not Message.objects.exists()


# Schedules of the database

ADD, EDIT, DELETE = f"{SCHEDULES}add/", f"{SCHEDULES}edit/?name=tea", f"{SCHEDULES}delete/?name=tea"
TEA = {
    "name": "tea",
    "task": "tests.app.tasks.mark",
    "cron": "30 2 * * *",
    "timezone": "America/New_York",
    "args": '["x"]',
}


def add(client, **fields):
    return client.post(ADD, {**TEA, "save": "Save", **fields}, follow=True)


def test_a_schedule_is_previewed_and_then_added(now, store, operator):
    page = operator.post(ADD, {**TEA, "preview": "Preview"})
    assert ticks_on(page, "Next 10 ticks")[0][0] == "Sun 2026-03-08 03:00:00 EDT"
    assert len([title for title, _ in page.context["tables"] if title.startswith("Around")]) == 2
    assert not CronSchedule.objects.exists()

    assert said(add(operator)) == ["Schedule tea is added."]
    assert schedules.get("tea")["args"] == ["x"]
    assert Message.objects.get().scheduled_at == datetime(2026, 3, 8, 7, tzinfo=UTC)
    assert "tea" in rows(operator)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"cron": "61 * * * *"}, "its minute can't be '61'"),
        ({"every": "900"}, "either 'cron' or 'every'"),
        ({"cron": "", "timezone": "", "every": "soon"}, "This is no duration"),
        ({"args": "[", "kwargs": ""}, "This is no JSON"),
        ({"start": "tomorrow"}, "This is no instant"),
        ({"priority": "1000"}, "It is a whole number from -100 to 100, not 1000"),
        ({"name": "report"}, "There is a schedule 'report' already"),
    ],
    ids=str,
)
def test_what_is_wrong_is_refused_as_in_the_settings(now, store, operator, fields, problem):
    page = add(operator, **fields)
    assert problem in text_of(page)
    assert not CronSchedule.objects.filter(definition__isnull=False).exists()


def test_a_schedule_is_edited_with_its_values_in_the_form(now, store, operator):
    schedules.create("tea", "tests.app.tasks.mark", every=timedelta(days=1, minutes=15), args=["x"], misfire="skip")
    page = operator.get(EDIT)
    assert 'value="1 0:15:00"' in page.content.decode()
    page = operator.post(EDIT, {**TEA, "cron": "0 4 * * *", "save": "Save"}, follow=True)
    assert said(page) == ["Schedule tea is changed."]
    expected = {"task": "tests.app.tasks.mark", "cron": "0 4 * * *", "timezone": "America/New_York", "args": ["x"]}
    assert schedules.get("tea") == expected


def test_arguments_that_json_does_not_have_are_not_edited_here(now, store, operator):
    schedules.create("tea", "tests.app.tasks.mark", every=timedelta(days=1), args=[NOW])
    assert "can only be changed by code" in said(operator.get(EDIT, follow=True))[0]


def test_to_delete_is_asked_back_and_then_done(now, store, operator):
    add(operator)
    assert operator.get(DELETE).status_code == 200
    assert said(operator.post(DELETE, follow=True)) == ["Schedule tea is deleted."]
    assert "tea" not in rows(operator)
    assert operator.get(f"{SCHEDULES}edit/?name=report").status_code == 404


def test_each_change_is_in_the_log_and_can_be_undone(now, store, operator):
    add(operator)
    operator.post(EDIT, {**TEA, "cron": "0 4 * * *", "save": "Save"})
    operator.post(f"{SCHEDULES}disable/?name=tea")
    operator.post(DELETE)
    entries = LogEntry.objects.order_by("id").values_list("object_repr", "change_message")
    assert [said for _, said in entries] == ["Added.", "Changed.", "Disabled.", "Deleted."]

    undo(operator)
    assert (schedules.get("tea")["cron"], rows(operator)["tea"].state) == ("0 4 * * *", "disabled")
    undo_edit(operator, 2)
    assert rows(operator)["tea"].state == "active"
    undo_edit(operator, 1)
    assert schedules.get("tea")["cron"] == "30 2 * * *"
    undo_edit(operator, 0)
    assert "tea" not in rows(operator)


def undo_edit(client, number):
    edit = Edit.objects.order_by("id")[number]
    client.post(f"/admin/delayedq/edit/{edit.pk}/undo/")


def test_a_schedule_that_was_changed_since_is_not_undone(now, store, operator):
    add(operator)
    operator.post(EDIT, {**TEA, "cron": "0 4 * * *", "save": "Save"})
    schedules.update("tea", cron="0 5 * * *")
    undo_edit(operator, 1)
    assert schedules.get("tea")["cron"] == "0 5 * * *"


def test_to_edit_needs_its_own_permission(now, store, member, operator):
    add(operator)
    client = member("view_cronschedule", "run_schedule", "disable_schedule")
    for url in (ADD, EDIT, DELETE):
        assert (client.get(url).status_code, client.post(url, TEA).status_code) == (403, 403)
    editor = member("view_cronschedule", "edit_schedule", name="eve")
    assert said(add(editor, name="other")) == ["Schedule other is added."]


def test_the_list_is_paged_with_a_bounded_number_of_statements(
    now, store, operator, connection, django_assert_max_num_queries
):
    for number in range(120):
        schedules.create(f"user {number:03}", "tests.app.tasks.mark", every=timedelta(days=1), args=["x"])
    names = []
    for page in range(3):
        with django_assert_max_num_queries(12, connection=connection):
            names += [row.name for row in operator.get(f"{SCHEDULES}?after={50 * page}").context["rows"]]
    assert names == ["report", "sweep", *(f"user {number:03}" for number in range(120))]


def test_the_list_shows_how_the_last_twenty_ticks_of_each_schedule_ended(now, store, operator):
    schedules.create("often", "tests.app.tasks.mark", every=timedelta(days=1), args=["x"])
    schedules.create("rarely", "tests.app.tasks.mark", every=timedelta(days=1), args=["x"])
    rows = {row.name: row for row in CronSchedule.objects.filter(name__in=["often", "rarely"])}
    CronTick.objects.filter(schedule__in=rows.values()).delete()
    ended = dead(store, "failed")
    for number in range(30):
        CronTick.objects.create(
            schedule=rows["often"],
            nominal_at=store.now() - timedelta(hours=number + 1),
            message_id=ended if number == 0 else None,
        )
    CronTick.objects.create(schedule=rows["rarely"], nominal_at=store.now() - timedelta(hours=1))
    CronTick.objects.create(schedule=rows["rarely"], nominal_at=store.now() + timedelta(hours=1))
    bars = {row.name: row.bars for row in operator.get(SCHEDULES).context["rows"]}
    assert [state for *_, state in bars["often"].bars] == ["unknown"] * 19 + ["failed"]
    assert [state for *_, state in bars["rarely"].bars] == ["unknown"]
    assert bars["often"].words == "The last 20 ticks: unknown 19, failed 1"
