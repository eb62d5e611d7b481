"""Queues that an operator names: a slip of the pen is told, with the nearest name there is."""

from __future__ import annotations

from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from tests.store.given import message

BACKEND = "delayedq.backend.DelayedQBackend"


@pytest.fixture
def closed(settings):
    """The backend takes these queues and no other."""
    settings.TASKS = {"default": {"BACKEND": BACKEND, "QUEUES": ["default", "mail"]}}


def pause(queue):
    err = StringIO()
    call_command("delayedq", "pause", queue, stdout=StringIO(), stderr=err)
    return err.getvalue()


def test_a_queue_that_can_have_no_messages_is_not_paused(store, closed):
    with pytest.raises(CommandError, match=r"There is no queue 'mial'. Did you mean 'mail'\? Known: .*default, mail\b"):
        pause("mial")
    assert store.paused() == set()
    assert pause("mail") == ""
    assert store.paused() == {"mail"}


def test_a_queue_that_left_the_settings_and_has_messages_is_known(store, closed):
    store.offer(message("a", queue="old"))

    assert pause("old") == ""


def test_where_any_queue_is_taken_a_new_one_is_warned_of(store):
    store.offer(message("a", queue="mail"))

    warned = pause("mial")
    assert "Warning: no task and no message has the queue 'mial' so far. Did you mean 'mail'?" in warned
    assert store.paused() == {"mial"}
    assert pause("mail") == ""


@pytest.mark.parametrize("flag", ["--queues", "--exclude-queues"])
def test_workers_do_not_start_for_a_queue_that_there_is_not(alias, closed, flag):
    with pytest.raises(CommandError, match=r"There is no queue 'mial'. Did you mean 'mail'\?"):
        call_command("run_workers", flag, "mail,mial", "--drain")


def test_what_is_resumed_and_not_paused_is_told_with_what_is(store, closed):
    with pytest.raises(CommandError, match="'mial' is not paused; no queue is"):
        call_command("delayedq", "resume", "mial")
    pause("mail")
    with pytest.raises(CommandError, match="'mial' is not paused; paused: mail"):
        call_command("delayedq", "resume", "mial")
