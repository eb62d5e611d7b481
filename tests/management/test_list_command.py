"""`manage.py delayedq list` and `show`: what the lists of the admin and the page of a message have."""

from __future__ import annotations

import csv
import io
import json
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from delayedq.management.telling import Exit
from delayedq.models import FinishedMessage, Message
from delayedq.operations import browsing
from delayedq.operations.group_names import name_of
from delayedq.operations.pauses import pause
from tests.admin.given import HISTORY, MESSAGES, choose_all, offer, run
from tests.app.tasks import echo, pay
from tests.management.given_messages import dead, ids, said, shell, told
from tests.store.given import KIND, message


@pytest.fixture
def client(alias, settings):
    settings.ROOT_URLCONF = "tests.admin.urls"
    client = Client()
    client.force_login(User.objects.create_superuser("ann"), backend="django.contrib.auth.backends.ModelBackend")
    return client


@pytest.fixture
def everything(store):
    """Of each state and outcome at least one."""
    for number in range(3):
        offer(store, f"UA{number}", f'{{"args":["room {number}"]}}', seconds=-60 + number, priority=number)
    offer(store, "later", seconds=3_600, kind=echo.module_path)
    offer(store, "KL1", queue="slow", kind=echo.module_path)
    offer(store, "held", queue="held")
    run(store, "held")
    offer(store, "again", queue="again")
    offer(store, "lost", queue="lost")
    Message.objects.filter(pk=run(store, "lost").id).update(leased_until=store.now() - timedelta(hours=1))
    Message.objects.filter(key="again").update(attempt=1)
    pause("slow", store=store)
    dead(store, "full", kind=echo.module_path)
    dead(store, "late", "app.Late: UA1545", priority=0)
    dead(store, "ok", payload='{"args":["room 9"]}')
    FinishedMessage.objects.filter(key="ok").update(outcome="succeeded", error=None, fingerprint=None)


FILTERS = {
    "all": ("", ()),
    "queue": ("queue=mail", ("--queue", "mail")),
    "task": (f"kind={echo.module_path}", ("--task", echo.module_path)),
    "due": ("state=due", ("--state", "due")),
    "scheduled": ("state=scheduled", ("--state", "scheduled")),
    "running": ("state=running", ("--state", "running")),
    "paused": ("state=paused", ("--state", "paused")),
    "retrying": ("state=retrying", ("--state", "retrying")),
    "lost": ("state=lost", ("--state", "lost")),
    "since": ("since={soon}", ("--since", "{soon}")),
    "until": ("until={soon}", ("--until", "{soon}")),
    "state and time": ("state=due&until={soon}", ("--state", "due", "--until", "{soon}")),
    "priority": ("priority=2", ("--priority", "2")),
    "worker": ("worker=worker-1", ("--worker", "worker-1")),
    "key": ("q=UA", ("--search", "UA")),
    "two": ("q=UA&priority=1", ("--search", "UA", "--priority", "1")),
}


@pytest.mark.parametrize("name", FILTERS)
def test_live_messages_are_those_of_the_admins_page_count_bulk_and_export(client, store, everything, name):
    soon = f"{timezone.localtime(store.now() + timedelta(minutes=10)):%Y-%m-%dT%H:%M:%S}"
    query, options = FILTERS[name][0].format(soon=soon), [one.format(soon=soon) for one in FILTERS[name][1]]
    page = client.get(f"{MESSAGES}?{query}").context
    listed = told("list", *options)
    preview = choose_all(client, "cancel", query).context["preview"].changing
    export = client.post(f"{MESSAGES}export/", {"query": query, "format": "json"})

    assert [row["id"] for row in listed["messages"]] == [row.id for row in page["rows"]] != []
    assert [row["state"] for row in listed["messages"]] == [row.state for row in page["rows"]]
    assert (listed["count"], listed["exact"]) == tuple(page["how_many"])
    choice = options or ("--all",)
    bulk = told("cancel", *choice, "--dry-run")
    assert (bulk["changing"], bulk["exact"]) == tuple(preview)
    assert said("list", *options, "--export", "json") == b"".join(export.streaming_content).decode()


ENDED = {
    "all": ("", ("--state", "ended")),
    "failed": ("outcome=failed", ("--state", "failed")),
    "succeeded": ("outcome=succeeded", ("--state", "succeeded")),
    "error": ("outcome=failed&error=SEAT", ("--error", "SEAT")),
    "key": ("q=fu", ("--state", "ended", "--search", "fu")),
    "task": (f"kind={echo.module_path}", ("--state", "ended", "--task", echo.module_path)),
    "id": ("q={full}", ("--state", "ended", "--search", "{full}")),
    "argument": ("q=args:room", ("--state", "ended", "--search", "args:room")),
    "queue": ("outcome=failed&queue=dying", ("--state", "failed", "--queue", "dying")),
    "priority": ("outcome=failed&priority=0", ("--state", "failed", "--priority", "0")),
    "worker": ("outcome=failed&worker=worker-1", ("--state", "failed", "--worker", "worker-1")),
    "since": ("outcome=failed&since={ago}", ("--state", "failed", "--since", "{ago}")),
    "group": ("outcome=failed&group={group}", ("--group", "{group}")),
}
#: Those that `retry` has, too: it takes dead letters alone.
RETRIED = {name: [one for one in options if one not in {"--state", "failed"}]
           for name, (query, options) in ENDED.items() if query.startswith("outcome=failed")}  # fmt: skip


@pytest.mark.parametrize("name", ENDED)
def test_ended_messages_are_those_of_the_admins_page_and_export(client, store, everything, name):
    full = FinishedMessage.objects.get(key="full")
    ago = f"{timezone.localtime(store.now() - timedelta(hours=1)):%Y-%m-%dT%H:%M:%S}"
    given = {"full": full.pk, "group": name_of(full.fingerprint), "ago": ago}
    query, options = ENDED[name][0].format(**given), [one.format(**given) for one in ENDED[name][1]]
    page = client.get(f"{HISTORY}?{query}").context
    export = client.post(f"{HISTORY}export/", {"query": query, "format": "json"})

    listed = told("list", *options)
    assert [row["id"] for row in listed["messages"]] == [row.id for row in page["rows"]] != []
    assert (listed["count"], listed["exact"]) == tuple(page["count"])
    assert said("list", *options, "--export", "json") == b"".join(export.streaming_content).decode()
    if name in RETRIED:
        bulk = told("retry", *([one.format(**given) for one in RETRIED[name]] or ["--all"]), "--dry-run")
        preview = choose_all(client, "retry", query, HISTORY).context["preview"].changing
        assert (bulk["changing"], bulk["exact"]) == tuple(preview)
        assert bulk["changing"] == listed["count"]


def test_an_error_group_has_the_name_of_its_address_in_the_admin(client, store, everything):
    group = FinishedMessage.objects.get(key="full").fingerprint
    (listed,) = told("list", "--group", name_of(group))["messages"]
    assert (listed["key"], listed["group"]) == ("full", name_of(group))
    assert f"group={name_of(group)}" in client.get(f"{HISTORY}errors/").content.decode()
    preview = choose_all(client, "retry", f"outcome=failed&group={name_of(group)}", HISTORY).context["preview"]
    assert told("retry", "--group", name_of(group), "--dry-run")["changing"] == preview.changing.number == 1


def test_a_search_also_looks_at_payloads_and_a_prefix_of_keys_does_not(store, everything):
    named = offer(store, "room")
    by_id = offer(store, str(named))
    assert ids("--search", "room 2") == [told("show", "UA2")[0]["id"]]
    assert ids("--search", str(named)) == [named, by_id]
    assert ids("--key", str(named)) == [by_id]
    assert [told("list", way, str(named))["count"] for way in ("--search", "--key")] == [2, 1]
    assert ids("--key", "room 2") == []


def test_times_are_given_as_they_are_or_by_their_distance(store):
    early, now, late = offer(store, "a", seconds=-7_200), offer(store, "b"), offer(store, "c", seconds=7_200)
    assert ids("--since", "1h") == [now, late]
    assert ids("--until", "+1h") == [early, now]
    moment = timezone.localtime(timezone.now() - timedelta(hours=1))
    assert ids("--since", moment.isoformat(), "--until", "+1h") == [now]
    assert ids("--since", moment.replace(tzinfo=None).isoformat()) == [now, late]


def test_more_than_a_page_is_listed_once_each_up_to_the_limit(store):
    store.offer_many([message(f"{number}", queue=f"q{number % 3}") for number in range(130)])
    listed = told("list", "--limit", "120")
    assert len({row["id"] for row in listed["messages"]}) == len(listed["messages"]) == 120
    assert listed["count"] == 130
    assert "130 messages; these are the first 50." in said("list")


def test_a_list_reads_no_more_than_it_shows_however_many_there_are(store, connection):
    numbers = set()
    for _ in range(3):
        store.offer_many([message() for _ in range(120)])
        with CaptureQueriesContext(connection) as asked:
            assert len(ids("--limit", "60")) == 60
        numbers.add(len(asked))
    assert len(numbers) == 1


def test_a_look_stops_at_its_bound_and_says_where_it_goes_on(store, monkeypatch):
    monkeypatch.setattr(browsing, "DEPTH", 60)
    monkeypatch.setattr(browsing, "PAGE", 50)
    rare = [offer(store, f"{n}", seconds=n - 500, kind="tests.rare" if n % 100 == 99 else KIND) for n in range(300)]
    listed = told("list", "--task", "tests.rare")
    assert listed["reached"] is not None
    assert f"go on with --after {listed['reached']}" in said("list", "--task", "tests.rare")
    found = [row["id"] for row in listed["messages"]]
    while listed["reached"]:
        listed = told("list", "--task", "tests.rare", "--after", listed["reached"])
        found += [row["id"] for row in listed["messages"]]
    assert sorted(set(found)) == rare[99::100]
    assert shell("list", "--after", "tomorrow") == ("", Exit.FAILED)


def test_a_look_goes_on_where_many_are_due_at_one_moment(store, monkeypatch):
    monkeypatch.setattr(browsing, "DEPTH", 60)
    rare = [offer(store, f"{n}", kind="tests.rare" if n % 100 == 99 else KIND) for n in range(300)]
    Message.objects.update(scheduled_at=store.now() - timedelta(hours=1))
    found, listed = [], told("list", "--task", "tests.rare")
    while listed["reached"]:
        found += [row["id"] for row in listed["messages"]]
        listed = told("list", "--task", "tests.rare", "--after", listed["reached"])
    found += [row["id"] for row in listed["messages"]]
    assert sorted(set(found)) == rare[99::100]


def test_the_export_is_a_table_or_objects_with_payloads(store, everything):
    (row,) = csv.DictReader(io.StringIO(said("list", "--search", "UA1", "--export", "csv"), newline=""))
    assert (row["key"], row["payload"]) == ("UA1", '{"args":["room 1"]}')
    assert json.loads(said("list", "--search", "UA1", "--export", "json"))["payload"] == '{"args":["room 1"]}'


def test_a_name_that_nobody_knows_is_told_with_a_near_one(store, everything, capsys):
    text = call_command("delayedq", "list", "--queue", "mial")
    found = capsys.readouterr()
    assert text is None
    assert "Did you mean 'mail'?" in found.err
    assert "No message matches." in found.out
    with pytest.raises(CommandError, match=r"Did you mean 'tests.app.tasks.echo'"):
        call_command("delayedq", "cancel", "--task", "tests.app.tasks.ecko", "--yes")


@pytest.mark.parametrize(
    "wrong",
    [
        ("--state", "gone"),
        ("--priority", "x"),
        ("--since", "yesterday"),
        ("--group", "x"),
        ("--search", ""),
        ("--key", "x" * 201),
        ("--queue", "a\0b"),
        ("--state", "due", "--error", "x"),
        ("--key", "a", "--search", "b"),
    ],
    ids=" ".join,
)
def test_a_filter_that_is_not_valid_lists_nothing(store, everything, wrong):
    text, code = shell("list", *wrong)
    assert (text, code) == ("", 1)


# show


def test_a_message_is_shown_with_its_timeline_and_why_it_waits(store, everything):
    (about,) = told("show", "UA1")
    assert (about["state"], about["key"], about["arguments"]) == ("due", "UA1", {"payload": '{"args":["room 1"]}'})
    assert {event["what"] for event in about["timeline"]} == {"created", "due"}
    assert {answer["reason"] for answer in about["answers"]} >= {"unserved"}
    text = said("show", "UA1")
    assert f"#{about['id']} tests.remind UA1: due" in text
    assert "No live worker serves its queue, mail." in text


def test_a_dead_letter_is_shown_with_its_error(store, everything):
    id_ = FinishedMessage.objects.get(key="full").pk
    (about,) = told("show", str(id_))
    assert (about["state"], about["outcome"]) == ("failed", "failed")
    assert "at app.Full" in said("show", str(id_))


def test_secrets_are_masked(store):
    offer(store, "a", '{"args":[7,"tok_4c11e9"]}', kind=pay.module_path)
    text = said("show", "a") + said("show", "a", "--json") + said("list", "--export", "json")
    assert "tok_4c11e9" not in text
    assert told("show", "a")[0]["arguments"]["amount"] == 7


def test_what_is_nowhere_is_an_error(store):
    with pytest.raises(CommandError, match="There is no live message with the id or key 'x'"):
        call_command("delayedq", "show", "x")
