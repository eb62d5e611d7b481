"""Why a message does not run: each answer, for a state made with a real store."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.core.management import CommandError, call_command
from django.db import transaction
from django.test.utils import CaptureQueriesContext

from delayedq.models import FinishedMessage, Message, PausedQueue
from delayedq.operations import explain as explaining
from delayedq.operations.explain import Reason, explain
from delayedq.operations.pauses import pause
from delayedq.store import worker_registry
from delayedq.store.protocol import Lane
from tests.app import tasks
from tests.store.given import LEASE, NOW, at, claim, claim_one, fail, message, retry, settle, succeed, together
from tests.store.test_worker_registry import worker

KIND = tasks.remind.module_path


def due(key=None, **fields):
    return message(key, **{"kind": KIND, "scheduled_at": at(-10)} | fields)


@pytest.fixture
def served(store):
    """A live worker that serves all queues and has free threads."""
    worker_registry(store.alias).at(NOW).heartbeat([worker("w:1")])


def why(**filters):
    """The reasons and texts of the answers at NOW."""
    return [(answer.reason, answer.text) for answer in explain(Message.objects.get(**filters), NOW)]


def reasons(**filters):
    return [reason for reason, _ in why(**filters)]


def one(**filters):
    ((reason, text),) = why(**filters)
    return reason, text


# It is not due


def test_it_is_not_due_yet(store, served):
    store.at(NOW).offer(due("a", scheduled_at=at(3 * 3600)))
    assert one() == (Reason.SCHEDULED, "It is due in 3 h, Sun 2026-03-08 05:59:30 EDT.")


def test_another_day_is_named(store, served):
    store.at(NOW).offer(due("a", scheduled_at=at(86_400 * 40)))
    assert one() == (Reason.SCHEDULED, "It is due in 40 d, Fri 2026-04-17 02:59:30 EDT.")


def test_it_failed_and_is_tried_again_later(store, served):
    store.at(NOW).offer(due("a", max_attempts=3))
    settle(store, retry(claim_one(store), delay=90.0))
    assert one()[1] == "It is due in 1 min 30 s, Sun 2026-03-08 03:01:00 EDT. Attempt 1 of 3 failed."


# It runs


def test_a_worker_holds_it_and_keeps_renewing(store):
    store.at(NOW).offer(due("a", scheduled_at=at(-100)))
    held = claim_one(store, worker="w:1", now=at(-40))
    store.at(at(-2)).renew([(held.id, held.token)], LEASE)
    worker_registry(store.alias).at(at(-1)).heartbeat([worker("w:1", lease=60.0)])
    assert one() == (Reason.LEASED, "It is leased by w:1 until Sun 2026-03-08 03:00:28 EDT, last renewed 2 s ago.")


def test_the_worker_that_holds_it_has_been_silent(store):
    store.at(NOW).offer(due("a"))
    claim(store, worker="w:1")
    worker_registry(store.alias).at(at(-300)).heartbeat([worker("w:1")])
    (reason, text) = one()
    assert reason == Reason.LEASED
    assert text.endswith("but that worker was last seen 5 min ago: another one takes over then.")


def test_the_worker_that_holds_it_is_not_known(store):
    store.at(NOW).offer(due("a"))
    claim(store, worker="gone")
    assert "no worker of that name is registered" in one()[1]


def test_it_was_replaced_while_it_ran(store):
    store.at(NOW).offer(due("a"))
    claim(store)
    store.at(NOW).offer(due("a", payload="[1]"))
    assert reasons() == [Reason.LEASED, Reason.REPLACED]


def test_the_lease_of_its_worker_ended(store, served):
    store.at(NOW).offer(due("a", scheduled_at=at(-100)))
    claim(store, worker="dead", now=at(-65))
    assert one() == (Reason.EXPIRED, "The lease of dead ended 5 s ago: the next worker with room takes it.")


# No worker claims it


def test_its_queue_is_paused(store, served):
    store.at(NOW).offer(due("a"))
    PausedQueue.objects.create(queue="mail", paused_at=at(-60), paused_by="ann")
    assert one() == (Reason.PAUSED, "Its queue, mail, was paused by ann 1 min ago, Sun 2026-03-08 01:58:30 EST.")


def test_no_live_worker_serves_its_queue(store):
    store.at(NOW).offer(due("a"))
    worker_registry(store.alias).at(at(-31)).heartbeat([worker("dead")])
    assert one() == (Reason.UNSERVED, "No live worker serves its queue, mail.")


@pytest.mark.parametrize(
    ("queues", "expected"), [("a,b", [Reason.UNSERVED]), ("a,mail", [Reason.READY]), ("", [Reason.READY])]
)
def test_a_worker_serves_the_queues_it_was_told_to(store, queues, expected):
    store.at(NOW).offer(due("a"))
    worker_registry(store.alias).at(NOW).heartbeat([worker(queues=queues)])
    assert reasons() == expected


def test_its_task_is_not_registered_here(store, served):
    store.at(NOW).offer(due("a", kind="os.system"))
    reason, text = one()
    assert reason == Reason.UNKNOWN_TASK
    assert "os.system" in text


def test_it_is_in_a_bare_queue(store, served):
    store.at(NOW).offer(due("a", kind="a|json", queue="a|json"))
    assert reasons() == [Reason.BARE]


def test_all_obstacles_are_listed(store):
    store.at(NOW).offer(due("a", kind="gone", scheduled_at=at(60)))
    pause("mail")
    assert reasons() == [Reason.SCHEDULED, Reason.UNKNOWN_TASK, Reason.PAUSED, Reason.UNSERVED]


# It waits behind others


def test_it_waits_behind_messages_of_higher_priority(store, served):
    store.at(NOW).offer(due("a"))
    store.at(NOW).offer_many(
        [due(priority=5), due(priority=9, queue="other"), due(priority=5, scheduled_at=at(5)), due(priority=-1)],
    )
    assert one(key="a") == (Reason.BEHIND, "It waits behind 2 messages of higher priority.")


def test_it_waits_behind_messages_that_were_due_before_it(store, served):
    store.at(NOW).offer_many([due(scheduled_at=at(-20)), due(), due("a"), due(), due(queue="other")])
    assert one(key="a") == (Reason.BEHIND, "It waits behind 2 messages of its own priority, due before it.")


def test_running_messages_are_not_ahead_of_it(store, served):
    store.at(NOW).offer_many([due(scheduled_at=at(-20)), due("a")])
    claim(store)
    assert reasons(key="a") == [Reason.READY]


def test_a_queue_that_not_all_its_workers_serve_is_not_ahead_of_it(store):
    """A second worker serves only its queue."""
    store.at(NOW).offer_many([due("a"), due(priority=9, queue="other")])
    worker_registry(store.alias).at(NOW).heartbeat([worker("w:1"), worker("w:2", queues="mail")])
    assert reasons(key="a") == [Reason.READY]


def test_a_paused_queue_is_not_ahead_of_it(store, served):
    store.at(NOW).offer_many([due("a"), due(priority=9, queue="other")])
    pause("other")
    assert reasons(key="a") == [Reason.READY]


def test_messages_ahead_are_counted_up_to_a_bound(store, served, monkeypatch):
    monkeypatch.setattr(explaining, "MOST_AHEAD", 5)
    store.at(NOW).offer_many([due("a"), *(due(priority=priority) for priority in (1, 2, 3) for _ in range(3))])
    assert one(key="a")[1] == "It waits behind more than 5 messages of higher priority."


def test_all_threads_are_busy(store):
    store.at(NOW).offer(due("a"))
    worker_registry(store.alias).at(at(-4)).heartbeat(
        [worker("w:1", threads=2, running="[91, 92]"), worker("w:2", threads=1, running="[93]")]
    )
    assert one() == (Reason.BUSY, "All 3 threads of the workers that serve its queue were busy 4 s ago.")


@pytest.mark.parametrize("alias", ["postgresql", "mariadb"], indirect=True)
def test_an_open_transaction_has_locked_it(store, served, alias):
    store.at(NOW).offer(due("a"))
    with transaction.atomic(using=alias):
        store.at(NOW).offer(due("a", payload="[1]"))
        (answers,) = together(why)
    assert [reason for reason, _ in answers] == [Reason.LOCKED]


def test_nothing_is_in_its_way(store, served):
    store.at(NOW).offer(due("a"))
    assert one() == (Reason.READY, "Nothing is in its way: a worker is about to take it.")


def test_nothing_is_in_its_way_and_yet_nobody_takes_it(store, served):
    store.at(NOW).offer(due("a", scheduled_at=at(-420)))
    said = "Nothing that delayedq knows of blocks it, but no worker has taken it for 7 min."
    assert one() == (Reason.LATE, said)


def test_the_answer_takes_few_statements(store, served, connection):
    store.at(NOW).offer_many([due("a", priority=-9), *(due(priority=priority) for priority in range(10))])
    asked = Message.objects.get(key="a")
    with CaptureQueriesContext(connection) as captured:
        explain(asked, NOW)
    assert len(captured) < 40


# It has ended


def ended(key="a"):
    return [
        (answer.reason, answer.text, answer.message_id) for answer in explain(FinishedMessage.objects.get(key=key), NOW)
    ]


def test_it_succeeded(store):
    store.at(NOW).offer(due("a"))
    settle(store, succeed(claim_one(store), finished=60.0))
    assert ended() == [(Reason.ENDED, "It succeeded 1 min ago, Sun 2026-03-08 01:58:30 EST.", None)]


def test_it_failed_for_good_and_its_key_is_held_by_another(store):
    store.at(NOW).offer(due("a"))
    errors = '[{"exception": "builtins.ValueError", "message": "No gate <b>."}]'
    settle(store, fail(claim_one(store), finished=0.0, errors=errors))
    live = store.at(NOW).offer(due("a")).id
    (_, text, _), (reason, held, id_) = ended()
    assert text == "It failed for good now, Sun 2026-03-08 01:59:30 EST: ValueError: No gate <b>."
    assert (reason, id_) == (Reason.KEY_HELD, live)
    assert f"#{live}" in held


@pytest.mark.parametrize(
    "errors", ["", "[]", "{}", "null", '"x"', "[1]", "[{}]", '[{"exception": 1, "message": null}]', "{"]
)
def test_unreadable_errors_are_ignored(store, errors):
    store.at(NOW).offer(due("a"))
    settle(store, fail(claim_one(store), finished=0.0, errors=errors))
    assert ended()[0][0] == Reason.ENDED


# manage.py delayedq


def told(capsys, *arguments):
    call_command("delayedq", *arguments)
    return capsys.readouterr().out


def test_the_command_answers_by_id_and_by_key(store, capsys):
    id_ = store.at(NOW).offer(due("UA1545")).id
    by_key = told(capsys, "explain", "UA1545")
    assert by_key.splitlines() == [f"#{id_} {KIND} UA1545", "  No live worker serves its queue, mail."]
    assert told(capsys, "explain", str(id_)) == by_key


def test_the_command_finds_what_has_ended(store, capsys):
    id_ = store.at(NOW).offer(due("a")).id
    settle(store, succeed(claim_one(store)), now=None)
    assert told(capsys, "explain", str(id_)).startswith(f"#{id_} {KIND} a\n  It succeeded ")


def test_an_unknown_message_is_an_error(store):
    with pytest.raises(CommandError, match="no live message with the id or key 'nothing'"):
        call_command("delayedq", "explain", "nothing")


def test_control_characters_of_a_key_are_escaped_on_the_terminal(store, capsys):
    store.at(NOW).offer(due("\x1b[31mred"))
    assert "\x1b" not in told(capsys, "explain", "\x1b[31mred")


def test_queues_are_paused_and_resumed(store, capsys):
    assert told(capsys, "pause", "mail") == "mail is paused.\n"
    assert told(capsys, "pause", "mail") == "mail was already paused.\n"
    assert store.paused() == {"mail"}
    assert told(capsys, "resume", "mail") == "mail is resumed.\n"
    assert store.paused() == set()
    with pytest.raises(CommandError, match="not paused"):
        call_command("delayedq", "resume", "mail")


@pytest.mark.parametrize("name", ["", "  ", "a|json", "x" * 201])
def test_only_queues_of_tasks_can_be_paused(store, name):
    with pytest.raises(CommandError):
        call_command("delayedq", "pause", name)
    assert store.paused() == set()


def test_its_own_lane_is_not_counted_twice(store, served):
    store.at(NOW).offer(due("a", priority=3))
    assert store.lanes() == [Lane("mail", 3)]
    assert reasons() == [Reason.READY]


def test_a_message_is_due_after_an_hour_that_the_clock_skips(store, served):
    store.at(NOW).offer(due("a", scheduled_at=NOW + timedelta(minutes=1)))
    assert one()[1] == "It is due in 1 min, Sun 2026-03-08 03:00:30 EDT."
