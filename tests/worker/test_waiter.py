"""No wake-up is lost, wherever it comes from."""

from __future__ import annotations

import signal
import sys
import threading

import pytest

from delayedq.worker.loop import Waiter
from tests.worker.attempts import PATIENCE


def test_a_wake_up_before_the_wait_ends_it_at_once():
    waiter = Waiter()
    waiter.wake()
    assert waiter.wait(None)


def test_many_wake_ups_are_one():
    waiter = Waiter()
    for _ in range(3):
        waiter.wake()
    assert waiter.wait(PATIENCE)
    assert not waiter.wait(0)


@pytest.mark.parametrize("timeout", [0.001, 0.0, -1.0])
def test_a_wait_ends_with_its_timeout(timeout):
    assert not Waiter().wait(timeout)


def test_a_sleeper_is_woken_by_another_thread():
    waiter = Waiter()
    threading.Timer(0.02, waiter.wake).start()
    assert waiter.wait(None)


def test_no_wake_up_is_lost_however_the_threads_meet():
    """Each side waits for the other: one lost wake-up would stop them both."""
    ping, pong = Waiter(), Waiter()
    rounds, missed = 3_000, []

    def answer():
        for _ in range(rounds):
            if not ping.wait(PATIENCE):
                missed.append("ping")
            pong.wake()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(0.000_01)
    try:
        thread = threading.Thread(target=answer)
        thread.start()
        for _ in range(rounds):
            ping.wake()
            if not pong.wait(PATIENCE):
                missed.append("pong")
                break
        thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert missed == []


@pytest.fixture
def waking():
    """A waiter that SIGUSR1 wakes."""
    waiter = Waiter()
    before = signal.signal(signal.SIGUSR1, lambda *_: waiter.wake())
    yield waiter
    signal.signal(signal.SIGUSR1, before)


def test_a_signal_handler_wakes_a_sleeper(waking):
    main = threading.main_thread().ident
    threading.Timer(0.02, lambda: signal.pthread_kill(main, signal.SIGUSR1)).start()
    assert waking.wait(None)


@pytest.mark.parametrize("line", range(8))
def test_a_signal_at_any_line_of_a_wait_is_noticed_by_it_or_by_the_next(waking, line):
    """The handler runs in the waiting thread itself, wherever that is."""
    lines = iter(range(100))

    def trace(frame, event, _):
        if frame.f_code is Waiter.wait.__code__ and event == "line" and next(lines) == line:
            signal.raise_signal(signal.SIGUSR1)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        noticed = waking.wait(0)
    finally:
        sys.settrace(before)
    assert noticed or waking.wait(0) or next(lines) <= line


def test_a_signal_between_the_check_and_the_sleep_ends_the_sleep(waking):
    """Here at the call that is the last chance to notice it; a waiter that misses it sleeps until its timeout."""
    late = threading.Event()

    def give_up():
        late.set()
        waking.wake()

    def trace(frame, event, arg):
        if frame.f_code is Waiter.wait.__code__ and event == "c_call" and arg.__name__ == "acquire":
            sys.setprofile(None)
            signal.raise_signal(signal.SIGUSR1)

    guard = threading.Timer(2.0, give_up)
    guard.start()
    sys.setprofile(trace)
    try:
        assert waking.wait(PATIENCE)
    finally:
        sys.setprofile(None)
        guard.cancel()
        guard.join()
    assert not late.is_set()
