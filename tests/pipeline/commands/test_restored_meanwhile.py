"""Rows that are restored while their batch is deleted, or under another clock, are in the lake once."""

from __future__ import annotations

from datetime import timedelta

import pytest

from delayedq.pipeline.books import settled
from delayedq.pipeline.spark import archive
from tests.pipeline.archives import ONE_DATABASE, ONE_STORE, archived
from tests.pipeline.commands.test_archive_exact import Told, checked, restored
from tests.pipeline.given import NOW, history, ids

HOUR = timedelta(hours=1)


@pytest.fixture
def told(store, lake):
    return Told(store, lake)


@ONE_DATABASE
def test_what_is_restored_before_its_deletion_has_ended_is_in_the_lake_once(archiving, lake, told, monkeypatch, alias):
    history(20)
    delete = archive.delete

    def deleted_and_restored(*given):
        done = delete(*given)
        restored(told, 3, 4)
        return done

    with monkeypatch.context() as patch:
        patch.setattr(archive, "delete", deleted_and_restored)
        first = next(archiving().run(NOW))
    assert (first.deleted, ids(), settled()) == (20, {3, 4}, {})

    [second] = archiving().run(NOW)

    assert (second.deleted, second.added) == (2, 0)
    assert (archived(lake), ids()) == (list(range(1, 21)), set())
    assert set(settled()) == {1, 2}
    assert checked(told) == []


@ONE_STORE
def test_rows_are_in_the_lake_once_whatever_the_clocks_of_archives_say(archiving, lake, told, store, monkeypatch):
    """The clock of the first archive is ahead of that of the restore, and of the second one is behind it."""
    history(20)
    now = type(store).now
    with monkeypatch.context() as patch:
        patch.setattr(type(store), "now", lambda self: now(self) + HOUR)
        list(archiving().run(NOW))
    restored(told, 3, 4)
    monkeypatch.setattr(type(store), "now", lambda self: now(self) - HOUR)

    [done] = archiving().run(NOW)

    assert (done.deleted, done.added) == (2, 0)
    assert (archived(lake), ids()) == (list(range(1, 21)), set())
    assert set(settled()) == {1, 2}
    assert checked(told) == []
