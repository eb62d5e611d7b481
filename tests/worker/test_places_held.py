"""Real workers whose messages are taken from them while they run, and one of which is killed: no more run than may."""

from __future__ import annotations

import random
import signal
from datetime import timedelta
from itertools import islice

import pytest

from delayedq.models import ChannelMessage, FinishedMessage, Message
from delayedq.results.cancelling import cancel
from tests.app import tasks
from tests.worker.conftest import eventually
from tests.worker.test_channels_killed import kill, most_at_once
from tests.worker.test_fleet import children

pytestmark = pytest.mark.slow

CHANNELS, MESSAGES, TAKEN = 2, 24, 10
SECONDS = 0.4


def schedule(number, log, channel):
    tasks.write_down.schedule_in(timedelta(), f"tenant {channel}", str(log), SECONDS, key=str(number))


def running(log):
    """The messages that have begun and not ended, each once."""
    seen = set()
    while Message.objects.exists():
        lines = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
        ended = {line[-1] for line in lines if line[1] == "ended"}
        began = [int(line[-1]) for line in lines if line[1] == "began" and line[-1] not in ended | seen]
        one = Message.objects.leased().filter(pk__in=began).first()
        if one is not None:
            seen.add(str(one.pk))
        yield one


def taken(store, log):
    """Take messages from their attempts, one after the other."""
    for number, one in enumerate(one for one in running(log) if one is not None):
        what = number % 3
        if what == 0:
            yield cancel(store, [one.pk])[one.pk] == "stopped"
        elif what == 1:
            yield store.unschedule(one.kind, one.key)
        else:
            yield not schedule(one.key, log, random.randrange(CHANNELS))


def test_what_is_taken_from_attempts_makes_no_room_before_they_have_ended(store, workers, tmp_path):
    log = tmp_path / "log"
    for number in range(MESSAGES):
        schedule(number, log, number % CHANNELS)
    one = workers("--lease", "5", "--threads", "8", "--processes", "2", poll=0.5)
    each = taken(store, log)
    done = sum(islice(each, TAKEN // 2))
    process = eventually(lambda: next(iter(children(one)[1:]), None))
    killed = {process: kill(process)}
    done += sum(islice(each, TAKEN // 2))
    eventually(lambda: not Message.objects.exists(), timeout=100)
    eventually(lambda: not ChannelMessage.objects.exists())
    one.send(signal.SIGTERM)
    one.finish()

    assert done
    assert FinishedMessage.objects.filter(outcome="cancelled").exists()
    assert most_at_once(log.read_text().splitlines(), killed) == 2
