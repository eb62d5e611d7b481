"""Pausing and resuming a queue, whatever transaction it is done in."""

from __future__ import annotations

import pytest
from django.db import transaction

from delayedq.operations.pauses import pause, resume


@pytest.fixture
def without_autocommit(alias):
    transaction.set_autocommit(False, using=alias)
    yield
    transaction.rollback(using=alias)
    transaction.set_autocommit(True, using=alias)


def test_without_autocommit_a_queue_is_paused_and_resumed(store, alias, without_autocommit):
    assert pause("mail", "ann")
    transaction.commit(using=alias)
    assert store.paused() == {"mail"}

    assert resume("mail")
    transaction.commit(using=alias)
    assert store.paused() == set()
