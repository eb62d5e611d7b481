"""A paused task: no claim, scan or peek sees its messages; all others go on as if they were not there."""

from __future__ import annotations

import pytest

from delayedq.exceptions import InvalidQueue
from delayedq.models import PausedTask
from delayedq.operations.pauses import pause_all, pause_task, resume_all, resume_task
from tests.store.given import KIND, LANE, NOW, at, claim, claim_one, keys, message, retry, settle


def test_nothing_of_a_paused_task_is_claimed_and_all_else_is(store):
    store.at(NOW).offer_many([message("a"), message("b", kind="tests.other"), message("c")])
    assert pause_task(KIND, "ann", store)
    assert not pause_task(KIND, store=store)

    assert keys(claim(store, 10)) == ["b"]
    assert PausedTask.objects.get().paused_by == "ann"
    assert resume_task(KIND, store)
    assert not resume_task(KIND, store)
    assert keys(claim(store, 10)) == ["a", "c"]


def test_a_limit_is_filled_from_behind_what_is_paused(store):
    store.at(NOW).offer_many([message(f"{number}") for number in range(5)])
    store.at(NOW).offer_many([message(key, kind="tests.other") for key in "ab"])
    pause_task(KIND, store=store)
    assert keys(claim(store, 2)) == ["a", "b"]


def test_scans_and_peeks_pass_over_it(store):
    store.at(NOW).offer_many([message("a"), message("b", kind="tests.other", scheduled_at=at(60))])
    pause_task(KIND, store=store)
    assert [head.first_at for head in store.at(NOW).scan()] == [at(60)]
    assert [head.first_at for head in store.at(NOW).peek([LANE])] == [at(60)]
    resume_task(KIND, store)
    assert [head.first_at for head in store.at(NOW).scan()] == [NOW]


def test_what_runs_finishes_and_is_not_tried_again(store):
    store.at(NOW).offer(message("a"))
    claimed = claim_one(store)
    pause_task(KIND, store=store)
    settle(store, retry(claimed, delay=0.0))
    assert claim(store, now=at(100)) == []


@pytest.mark.parametrize("kind", ["", " ", "x" * 201, "a\0b", "a|b"])
def test_what_is_no_path_is_refused(store, kind):
    with pytest.raises(InvalidQueue, match="by its path"):
        pause_task(kind, store=store)


def test_all_queues_are_paused_and_resumed_at_once_bare_ones_are_not(store):
    store.at(NOW).offer_many(
        [message("a"), message("b", queue="slow"), message("c", queue="bare|str", kind="bare|str")]
    )
    paused = pause_all("ann", store)
    assert {"mail", "slow", "default"} <= {*paused} == store.paused()
    assert pause_all("ann", store) == []
    assert claim(store, 10) == []
    assert resume_all(store) == paused
    assert keys(claim(store, 10)) == ["a"]
