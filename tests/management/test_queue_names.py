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


def pause(*words):
    err = StringIO()
    call_command("delayedq", "pause", *words, stdout=StringIO(), stderr=err)
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


def test_a_queue_that_nobody_knows_is_paused_only_if_it_is_said_to_be_new(store):
    store.offer(message("a", queue="mail"))

    with pytest.raises(CommandError, match=r"no queue 'mial'. Did you mean 'mail'\? .* add --new"):
        pause("mial")
    assert store.paused() == set()
    pause("mial", "--new")
    pause("mail")
    assert store.paused() == {"mial", "mail"}


def test_where_the_settings_name_the_queues_none_is_new(store, closed):
    with pytest.raises(CommandError, match="There is no queue 'mial'"):
        pause("mial", "--new")
    assert store.paused() == set()


def test_workers_are_started_for_a_new_queue_with_a_warning(store):
    store.offer(message("a", queue="mail"))
    err = StringIO()
    call_command("run_workers", "--queues", "mial", "--drain", "--no-cron", stderr=err)
    assert "Warning: no task and no message has the queue 'mial' so far. Did you mean 'mail'?" in err.getvalue()


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
