"""`manage.py delayedq pause` and `resume`, of a task and of all queues."""

from __future__ import annotations

from getpass import getuser
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from delayedq.models import PausedQueue, PausedTask
from tests.app.tasks import echo
from tests.store.given import message


def said(*words):
    out = StringIO()
    call_command("delayedq", *words, stdout=out)
    return out.getvalue().strip()


def test_a_task_is_paused_and_resumed(store):
    path = echo.module_path
    assert said("pause", "--task", path) == f"{path} is paused."
    assert said("pause", "--task", path) == f"{path} was already paused."
    assert PausedTask.objects.get().paused_by == getuser()
    assert said("resume", "--task", path) == f"{path} is resumed."
    with pytest.raises(CommandError, match="is not paused; paused: none"):
        said("resume", "--task", path)


def test_a_task_that_is_not_registered_is_not_paused_and_a_near_one_named(store):
    with pytest.raises(CommandError, match=r"Did you mean 'tests.app.tasks.echo'"):
        said("pause", "--task", "tests.app.tasks.ecko")
    assert not PausedTask.objects.exists()


def test_all_queues_are_paused_and_resumed(store):
    store.offer(message("a"))
    assert "mail" in said("pause", "--all")
    assert said("pause", "--all") == "Paused: none."
    assert "mail" in said("resume", "--all")
    assert not PausedQueue.objects.exists()


@pytest.mark.parametrize("words", [(), ("mail", "--all"), ("--task", "x", "--all")])
def test_one_of_them_is_named(store, words):
    with pytest.raises(CommandError):
        said("pause", *words)
