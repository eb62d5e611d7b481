"""Timeouts that meet what others swallow the errors of: hooks, receivers, functions of options."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta

import pytest
from django.test import override_settings

from delayedq import signals
from delayedq.compat import task_started
from delayedq.exceptions import TaskTimeout
from delayedq.hooks import with_added
from delayedq.limits.declared import channel_for
from delayedq.masking import Masking
from tests.app import tasks
from tests.worker.attempts import playing
from tests.worker.pools import working
from tests.worker.test_deadlines import HURRIED, LIMITED, spin


def interrupted(body=lambda: 7, task=HURRIED):
    """How an attempt ends whose time is soon over."""
    with working(1) as worker:
        (ended,) = worker.run(playing(body, task=task))
    return ended


class Around:
    """A context manager around attempts, which notes what it is left with."""

    def __init__(self):
        self.left_with = []

    def __enter__(self):
        pass

    def __exit__(self, kind, error, trace):
        self.left_with.append(kind)


@contextmanager
def slow_to_begin(attempt):
    spin()
    yield


@contextmanager
def slow_to_end(attempt):
    yield
    spin()


@pytest.mark.parametrize("slow", [slow_to_begin, slow_to_end])
def test_a_hook_that_is_interrupted_does_not_swallow_the_timeout_of_the_task(slow, caplog):
    outer, inner, began = Around(), Around(), []
    hooks = [lambda attempt: outer, slow, lambda attempt: inner]
    with override_settings(DELAYEDQ={"AROUND_ATTEMPTS": hooks}):
        late = interrupted(lambda: began.append(1), LIMITED)

    assert type(late.error) is TaskTimeout
    assert str(late.error) == "It took longer than 0:00:00.500000."
    assert outer.left_with == [TaskTimeout]
    assert (began, inner.left_with) == (([], []) if slow is slow_to_begin else ([1], [None]))
    assert "goes its way without it" not in caplog.text


def test_a_hook_that_is_left_with_the_timeout_may_raise_it_again(caplog):
    class Raising(Around):
        def __exit__(self, kind, error, trace):
            super().__exit__(kind, error, trace)
            raise error

    outer, raising = Around(), Raising()
    with override_settings(DELAYEDQ={"AROUND_ATTEMPTS": [lambda attempt: outer, lambda attempt: raising]}):
        assert type(interrupted(spin).error) is TaskTimeout
    assert outer.left_with == raising.left_with == [TaskTimeout]
    assert "goes its way without it" not in caplog.text


def test_a_receiver_that_is_interrupted_does_not_swallow_the_timeout_of_the_task():
    def receive(**_):
        spin()

    began = []
    task_started.connect(receive)
    try:
        late = interrupted(lambda: began.append(1))
    finally:
        task_started.disconnect(receive)
    assert type(late.error) is TaskTimeout
    assert began == []


def by_channel():
    channel_for(replace(tasks.remind, channel=lambda flight_id: spin()), (7,), {})


def by_receiver():
    def slow(**_):
        spin()

    signals.lease_lost.connect(slow)
    try:
        signals.tell(signals.lease_lost, "k", claimed=None)
    finally:
        signals.lease_lost.disconnect(slow)


def by_metadata():
    with override_settings(DELAYEDQ={"METADATA_FROM": [lambda task: spin()]}):
        with_added(None, tasks.remind)


def by_redaction():
    Masking("k", redact=lambda kind, name, value: spin()).value("a", 1)


@pytest.mark.parametrize("call", [by_channel, by_metadata, by_redaction, by_receiver])
def test_a_function_of_an_option_that_a_task_has_called_does_not_either(call):
    limited = replace(HURRIED, timeout=timedelta(seconds=0.2))  # not over before the function is called
    with working(1) as worker:
        (late,) = worker.run(playing(call, task=limited))
    assert type(late.error) is TaskTimeout
