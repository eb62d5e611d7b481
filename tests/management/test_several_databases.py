"""`manage.py delayedq` where the backends of TASKS have two databases."""

from __future__ import annotations

from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from delayedq.store import store_for
from tests.store.given import claim_one, message, settle, succeed

BACKEND = "delayedq.backend.DelayedQBackend"


@pytest.fixture
def stores(alias, settings):
    """The default one on SQLite, that of the backend "second" on PostgreSQL."""
    settings.TASKS = {
        "default": {"BACKEND": BACKEND, "OPTIONS": {"DATABASE": "default"}},
        "second": {"BACKEND": BACKEND, "QUEUES": ["night"], "OPTIONS": {"DATABASE": alias}},
    }
    return store_for("default"), store_for(alias)


pytestmark = pytest.mark.parametrize("alias", ["postgresql"], indirect=True)


def said(*arguments):
    out = StringIO()
    call_command("delayedq", *arguments, stdout=out)
    return out.getvalue()


VERBS = ["pause mail", "resume mail", "prune --older-than 1d", "list", "cancel --all --yes", "undo --list", "tail"]


@pytest.mark.parametrize("verb", VERBS)
def test_one_has_to_be_named(stores, verb):
    with pytest.raises(CommandError, match=r"\(default on 'default'; second on 'postgresql'\). Choose with --backend"):
        said(*verb.split())
    with pytest.raises(CommandError, match="TASKS has no backend 'third' of delayedq; it has default, second"):
        said(*verb.split(), "--backend", "third")


def test_a_queue_is_paused_where_it_is(stores):
    first, second = stores
    assert said("pause", "night", "--backend", "second") == "night is paused.\n"
    assert (first.paused(), second.paused()) == (set(), {"night"})
    with pytest.raises(CommandError, match=r"There is no queue 'night'.* Known: .*default"):
        said("pause", "night", "--backend", "default")
    assert said("resume", "night", "--backend", "second") == "night is resumed.\n"
    assert second.paused() == set()


def test_messages_are_shown_from_all_and_changed_where_they_are(stores):
    _, second = stores
    waiting = second.offer(message("a"))
    assert said("show", "a").startswith(f"#{waiting.id} ")
    with pytest.raises(CommandError, match="There is no live message with the id or key 'a'"):
        said("cancel", "a", "--yes", "--backend", "default")
    assert "Cancel: 1 message changed." in said("cancel", "a", "--yes", "--backend", "second")
    assert second.lanes() == []
    assert "There are no edits." in said("undo", "--list", "--backend", "default")


def test_history_is_pruned_and_explained_where_it_is(stores):
    _, second = stores
    second.offer(message("a"))
    settle(second, succeed(claim_one(second, now=None)), now=None)
    waiting = second.offer(message("b"))

    assert said("explain", "b").startswith(f"#{waiting.id} ")
    assert said("prune", "--older-than", "0s", "--backend", "default").startswith("0 ended")
    assert said("prune", "--older-than", "0s", "--backend", "second").startswith("1 ended")
