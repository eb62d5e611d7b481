"""`manage.py delayedq retry`, `cancel`, `reschedule`, `shift`, `stop` and `undo`."""

from __future__ import annotations

import getpass
import json
import os
import pty
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from delayedq.management.telling import Exit
from delayedq.models import Edit, EditedMessage, FinishedMessage, Message
from delayedq.operations import counting, edits
from delayedq.operations.bulk import carry_out_part
from delayedq.operations.counting import Count
from delayedq.operations.explain import explain
from delayedq.operations.timeline import timeline
from tests.admin.given import live, offer, run, soon
from tests.management.given_messages import BY, dead, said, shell, told
from tests.store.given import KIND, message

ROOT = Path(__file__).parents[2]
SQLITE = pytest.mark.parametrize("alias", ["sqlite"], indirect=True)


def keys():
    return set(Message.objects.values_list("key", flat=True))


# Each verb, on each store


def test_waiting_messages_are_cancelled_and_undo_brings_them_back(store):
    for key in ("a", "b", "c"):
        offer(store, key)
    offer(store, "held", queue="held")
    run(store, "held")

    done = told("cancel", "a", "b", "held", "--yes", *BY)
    assert (done["action"], done["changed"], done["skipped"]) == ("cancel", 2, {"running": 1})
    assert keys() == {"c", "held"}
    edit = Edit.objects.get()
    assert (edit.pk, edit.made_by, edit.description, edit.changed, edit.skipped) == (
        done["edit"],
        "ann",
        "Cancel",
        2,
        1,
    )
    assert EditedMessage.objects.filter(edit=edit).count() == 2

    assert told("undo", str(edit.pk), "--yes", "--by", "carl")["changed"] == 2
    assert keys() == {"a", "b", "c", "held"}
    edit.refresh_from_db()
    assert edit.undone_by == "carl"


def test_messages_of_a_filter_are_shifted_and_moved_back(store):
    due = timezone.now().replace(microsecond=0) + timedelta(hours=3)
    store.offer_many([message(f"UA{number}", scheduled_at=due) for number in range(3)])
    store.offer(message("KL", scheduled_at=due))

    text = said("shift", "--key", "UA", "--later", "2h", "--yes", *BY)
    assert "Shift 2 h later: 3 messages changed. Undo: manage.py delayedq undo" in text
    moved = dict(Message.objects.values_list("key", "scheduled_at"))
    assert moved == {**{f"UA{number}": due + timedelta(hours=2) for number in range(3)}, "KL": due}

    said("shift", "KL", "--earlier", "90m", "--yes")
    assert Message.objects.get(key="KL").scheduled_at == due - timedelta(minutes=90)
    said("undo", str(Edit.objects.get(made_by="ann").pk), "--yes")
    assert Message.objects.get(key="UA0").scheduled_at == due


def test_messages_are_rescheduled(store):
    first, second, third = (offer(store, key, seconds=7_200) for key in "abc")
    said("reschedule", "a", "--to", "2030-01-02T03:04:05Z", "--yes")
    said("reschedule", "b", "--now", "--yes")
    said("reschedule", "c", "--to", "+3d", "--yes")
    assert live(first).scheduled_at == datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert soon(live(second).scheduled_at)
    assert soon(live(third).scheduled_at - timedelta(days=3))
    said("reschedule", "--all", "--over", "1h", "--from", "2031-01-01T00:00Z", "--yes")
    start = datetime(2031, 1, 1, tzinfo=UTC)
    assert all(
        start <= at <= start + timedelta(hours=1) for at in Message.objects.values_list("scheduled_at", flat=True)
    )
    assert Edit.objects.latest("id").description.startswith("Spread over 1 h from ")


def test_dead_letters_are_retried_by_error_and_undo_makes_them_dead_again(store):
    for number in range(3):
        dead(store, f"full{number}", f"app.Full: Seat {number} is taken")
    late = dead(store, "late", "app.Late: UA1545")
    group = told("list", "--error", "seat 0")["messages"][0]["group"]

    done = told("retry", "--group", group, "--yes", *BY)
    assert done["changed"] == 3
    assert keys() == {"full0", "full1", "full2"}
    assert all(map(soon, Message.objects.values_list("scheduled_at", flat=True)))
    assert [*FinishedMessage.objects.values_list("id", flat=True)] == [late]

    said("undo", str(done["edit"]), "--yes")
    assert FinishedMessage.objects.failed().count() == 4
    done = told("retry", str(late), "--over", "1h", "--from", "+1d", "--yes")
    assert done["description"].startswith("Retry over 1 h from ")
    assert Message.objects.get().scheduled_at > timezone.now() + timedelta(hours=23)


def test_a_running_message_is_stopped_and_there_is_no_undo(store):
    offer(store, "a")
    claimed = run(store)
    offer(store, "waits")
    done = told("stop", "a", "waits", "--yes", *BY)
    assert [*done["stopped"]] == [str(claimed.id)]
    assert FinishedMessage.objects.get(pk=claimed.id).outcome == "cancelled"
    edit = Edit.objects.get()
    assert (edit.action, edit.made_by) == ("stop", "ann")
    assert keys() == {"waits"}
    with pytest.raises(CommandError, match="can't be undone"):
        call_command("delayedq", "undo", str(edit.pk), "--yes")


# What the preview says


@SQLITE
def test_a_dry_run_shows_what_would_become_of_each_and_changes_nothing(store):
    due = datetime(2030, 1, 1, tzinfo=UTC)
    store.offer(message("a", scheduled_at=due))
    plan = told("shift", "a", "--later", "1h", "--dry-run")
    (one,) = plan["messages"]
    assert (plan["changing"], plan["exact"], plan["description"]) == (1, True, "Shift 1 h later")
    assert (one["before"]["scheduled_at"], one["after"]["scheduled_at"]) == (
        due.isoformat(),
        (due + timedelta(hours=1)).isoformat(),
    )
    text = said("shift", "a", "--later", "1h", "--dry-run")
    assert f"{KIND} a: Mon 2029-12-31 19:00:00 EST -> Mon 2029-12-31 20:00:00 EST" in text
    assert Message.objects.get().scheduled_at == due
    assert not Edit.objects.exists()


@SQLITE
def test_it_stops_at_what_the_preview_said(store, monkeypatch):
    monkeypatch.setattr(counting, "SCANNED_BOUND", 2)
    monkeypatch.setattr(counting, "BOUND", 4)
    monkeypatch.setattr(Count, "most", 5)
    monkeypatch.setattr(edits, "CHUNKS", 1)
    store.offer_many([message(f"{number}", kind="tests.other") for number in range(8)])
    assert "At most 5 are changed now, and then it stops." in said("cancel", "--task", "tests.other", "--dry-run")
    done = told("cancel", "--task", "tests.other", "--yes")
    assert (done["changed"], done["is_cut"], Message.objects.count()) == (5, True, 3)
    assert told("cancel", "--all", "--yes")["is_cut"] is False


@SQLITE
def test_many_are_changed_in_parts(store, monkeypatch):
    monkeypatch.setattr(edits, "CHUNKS", 1)
    monkeypatch.setattr("delayedq.operations.browsing.CHUNK", 3)
    monkeypatch.setattr("delayedq.operations.undo.CHUNKS", 1)
    monkeypatch.setattr("delayedq.operations.undo.CHUNK", 3)
    store.offer_many([message(f"{number}") for number in range(10)])
    done = told("cancel", "--all", "--yes")
    assert (done["changed"], Message.objects.count()) == (10, 0)
    assert told("undo", str(done["edit"]), "--yes")["changed"] == 10
    assert Message.objects.count() == 10


@SQLITE
def test_what_is_interrupted_names_its_edit_which_can_be_undone(store, monkeypatch):
    monkeypatch.setattr(edits, "CHUNKS", 1)
    monkeypatch.setattr("delayedq.operations.browsing.CHUNK", 3)
    store.offer_many([message(f"{number}") for number in range(10)])

    def and_interrupt(*arguments):
        progress = carry_out_part(*arguments)
        if Message.objects.count() < 5:
            signal.raise_signal(signal.SIGINT)
        return progress

    monkeypatch.setattr("delayedq.management.editing.carry_out_part", and_interrupt)
    with pytest.raises(CommandError, match=r"Interrupted in edit \d+: 3 messages changed so far") as refused:
        call_command("delayedq", "cancel", "--all", "--yes")
    assert (refused.value.returncode, Message.objects.count()) == (Exit.INTERRUPTED, 4)
    said("undo", str(Edit.objects.get().pk), "--yes")
    assert Message.objects.count() == 10


# What is refused


@SQLITE
@pytest.mark.parametrize(
    "arguments",
    [
        ("cancel",),
        ("cancel", "a", "--queue", "mail"),
        ("cancel", "a", "--all"),
        ("cancel", "nobody"),
        ("cancel", "7\0"),
        ("retry", "a"),
        ("shift", "a"),
        ("shift", "a", "--later", "2h", "--earlier", "1h"),
        ("reschedule", "a"),
        ("reschedule", "a", "--to", "soon"),
        ("reschedule", "a", "--to", "2h"),
        ("reschedule", "a", "--to", "2030-11-03T01:30"),  # it comes twice
        ("reschedule", "a", "--to", "2030-03-10T02:30"),  # it never comes
        ("reschedule", "a", "--now", "--from", "+2h"),
        ("cancel", "--priority", "99999"),
        ("reschedule", "a", "--over", "1h", "--jitter", "101"),
        ("reschedule", "a", "--now", "--over", "1h"),
        ("cancel", "a", "--by", ""),
        ("undo", "77"),
        ("undo", "x"),
        ("undo",),
        ("stop", "nobody"),
        ("cancel", "--search", "args.room:7"),
        ("retry", "--search", "args:Berlin"),
    ],
    ids=" ".join,
)
def test_what_is_wrong_changes_nothing(store, arguments):
    offer(store, "a")
    shown, code = shell(*arguments, "--yes")
    assert (shown, code) == ("", Exit.FAILED)
    assert keys() == {"a"}
    assert not Edit.objects.exists()


@SQLITE
def test_a_key_that_several_messages_have_is_not_guessed(store):
    first = offer(store, "a")
    offer(store, "a", kind="tests.other")
    offer(store, str(first), kind="tests.other")
    for text in ("a", str(first)):
        with pytest.raises(CommandError, match="may be several messages"):
            call_command("delayedq", "cancel", text, "--yes")
    assert Message.objects.count() == 3


@SQLITE
def test_a_preview_has_no_message_that_a_search_finds_by_its_id_alone(store):
    id_ = offer(store, "zzz")
    store.offer_many([message(f"{id_}-{number}") for number in range(3)])
    assert [row["key"] for row in told("cancel", "--search", f"{id_}", "--dry-run")["messages"]] == [
        f"{id_}-0", f"{id_}-1", f"{id_}-2",
    ]  # fmt: skip


@SQLITE
def test_what_only_the_payload_has_is_not_changed_as_a_whole(store):
    """As in the admin."""
    offer(store, "a", '{"args":["Berlin"]}')
    assert "No key of these messages begins with 'Berlin'" in said("cancel", "--search", "Berlin", "--yes")
    assert keys() == {"a"}


@SQLITE
def test_where_nothing_can_be_changed_the_code_says_so(store):
    offer(store, "a")
    run(store)
    for arguments in (("cancel", "a"), ("cancel", "--all"), ("reschedule", "--state", "running", "--now")):
        assert shell(*arguments, "--yes")[1] == Exit.UNCHANGED
    offer(store, "b")
    assert shell("stop", "b", "--yes")[1] == Exit.UNCHANGED
    assert shell("reschedule", "b", "--now", "--yes")[1] == Exit.UNCHANGED  # it is due already
    assert shell("cancel", "--queue", "mail", "--priority", "5", "--yes") == ("No message matches.\n", Exit.DONE)


@SQLITE
def test_of_an_edit_that_was_changed_again_nothing_is_undone(store):
    id_ = offer(store, "a", seconds=900)
    edit = told("shift", "a", "--later", "1h", "--yes")["edit"]
    said("shift", "a", "--later", "1h", "--yes")
    assert shell("undo", str(edit), "--yes")[1] == Exit.UNCHANGED
    assert live(id_).scheduled_at > timezone.now() + timedelta(hours=2)
    with pytest.raises(CommandError, match="undone already"):
        call_command("delayedq", "undo", str(edit), "--yes")


@SQLITE
def test_edits_are_listed_with_who_made_them(store):
    offer(store, "a", seconds=900)
    said("shift", "a", "--later", "1h", "--yes")
    (edit,) = told("undo", "--list")
    assert (edit["made_by"], edit["description"], edit["can_undo"]) == (getpass.getuser(), "Shift 1 h later", True)
    assert "Shift 1 h later (1 message changed)" in said("undo", "--list")
    assert f"reschedule by {getpass.getuser()}" in str(timeline(store, Message.objects.get(), store.now()))
    assert explain(Message.objects.get(), store=store)


# In a process of its own


def command(environment, *arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "django", "delayedq", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        **options,
    )


def test_without_a_terminal_nothing_is_done(store, environment):
    offer(store, "a", seconds=900)
    done = command(environment, "cancel", "a", stdin=subprocess.DEVNULL)
    assert done.returncode == Exit.UNCONFIRMED
    assert "add --yes" in done.stderr
    assert "Cancel: 1 message." in done.stdout
    assert keys() == {"a"}

    done = command(environment, "cancel", "a", "--yes", "--json", "--by", "ann", stdin=subprocess.DEVNULL)
    assert (done.returncode, json.loads(done.stdout)["changed"]) == (Exit.DONE, 1)
    assert keys() == set()
    assert Edit.objects.get().made_by == "ann"


@SQLITE
@pytest.mark.parametrize(("answer", "code", "left"), [("y\n", Exit.DONE, set()), ("\n", Exit.UNCONFIRMED, {"a"})])
def test_at_a_terminal_it_asks(store, environment, answer, code, left):
    offer(store, "a", seconds=900)
    ours, theirs = pty.openpty()
    os.write(ours, answer.encode())
    try:
        done = command(environment, "cancel", "a", stdin=theirs)
    finally:
        os.close(ours), os.close(theirs)
    assert (done.returncode, keys()) == (code, left)
    assert "Cancel: 1 message? [y/N]" in done.stderr


@SQLITE
def test_a_command_line_that_can_not_be_read_has_a_code_of_its_own(environment):
    assert command(environment, "shift", "a").returncode == 2
    assert command(environment, "show", "nobody").returncode == Exit.FAILED


@SQLITE
def test_a_reader_that_has_read_enough_is_no_error(store, environment):
    store.offer_many([message(f"{number}", '{"x":"%s"}' % ("y" * 1_000)) for number in range(500)])
    line = f"{sys.executable} -m django delayedq list --export json | head -1"
    done = subprocess.run(
        ["sh", "-c", line], cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert json.loads(done.stdout)["queue"] == "mail"
    assert done.stderr == ""


def test_the_reason_is_recorded_and_has_a_bound(store):
    store.offer_many([message("a"), message("b")])
    told("cancel", "a", "--yes", "--why", " never ordered ")
    assert [edit.why for edit in Edit.objects.all()] == ["never ordered"]
    with pytest.raises(CommandError, match="--why has at most 500 characters"):
        call_command("delayedq", "cancel", "b", "--yes", "--why", "x" * 501)
    assert Message.objects.filter(key="b").exists()
