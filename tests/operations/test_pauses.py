"""Pausing and resuming queues, whatever transaction it is done in, and whoever does so at the same moment."""

from __future__ import annotations

from functools import partial

import pytest
from django.db import transaction

from delayedq.operations.acts import pause_queues, resume_queues
from delayedq.operations.pauses import pause, resume
from tests.store.given import together


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


@pytest.mark.parametrize("round_", range(5))
def test_operators_may_pause_and_resume_the_same_queues_at_the_same_moment(store, round_):
    queues = [f"{round_} {number}" for number in range(4)]
    paused = together(*[partial(pause_queues, store, some) for some in [queues, queues[::-1]] * 2])
    assert sorted(name for some in paused for name in some) == queues

    resumed = together(*[partial(resume_queues, store, some) for some in [queues, queues[::-1]] * 2])
    assert sorted(name for some in resumed for name in some) == queues
    assert store.paused() == set()
