"""The wake-up pipe, alone and with listeners of both kinds."""

from __future__ import annotations

import os
import threading

import pytest

from delayedq.store.database import WakeUpPipe

PATIENCE = 20.0


class Listener:
    """Readable at once, or asked every `interval` seconds."""

    def __init__(self, interval):
        self.interval = interval
        self.readable, self.writable = os.pipe()
        os.write(self.writable, b".")

    def fileno(self):
        return self.readable

    def close(self):
        os.close(self.readable)
        os.close(self.writable)


@pytest.fixture
def pipe():
    pipe = WakeUpPipe()
    yield pipe
    pipe.close()


@pytest.fixture(params=[None, 0.001], ids=["descriptor", "interval"])
def listener(request):
    listener = Listener(request.param)
    yield listener
    listener.close()


def test_any_number_of_wake_ups_end_one_wait(pipe):
    for _ in range(100_000):  # more than the pipe holds
        pipe.wake()
    while pipe.wait(0):
        pass
    pipe.wake()
    pipe.wake()
    assert pipe.wait(PATIENCE)
    assert not pipe.wait(0)


def test_another_thread_ends_a_wait(pipe):
    threading.Timer(0.02, pipe.wake).start()
    assert pipe.wait(PATIENCE)


def test_cleared_wake_ups_are_forgotten(pipe):
    pipe.wake()
    pipe.clear()
    pipe.clear()
    assert not pipe.wait(0)


def test_a_listener_ends_a_wait_and_that_is_no_wake_up(pipe, listener):
    assert not pipe.wait(PATIENCE, listener)


def test_a_wake_up_is_noticed_beside_a_listener(pipe, listener):
    pipe.wake()
    assert pipe.wait(PATIENCE, listener)
