"""The steps of the demo: clear, start workers, replay, wait, stop, check."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING

from django.utils import timezone

from example_project.flights.replay import cases, traces, verdict, workers
from example_project.flights.replay.player import Player
from example_project.flights.replay.screen import Moment, Screen, summary
from example_project.flights.replay.timeline import Clock, last_reminder, read_record, timeline

if TYPE_CHECKING:
    from datetime import datetime

    from rich.console import Console

    from example_project.flights.replay.workers import Workers

PATIENCE = timedelta(seconds=15)
PAUSE = 0.03
SHOWN = 5


def run(console: Console, *, seconds: float, processes: int) -> list[str]:
    """Replay the recorded day in `seconds`; returns the faults found. Raises TooFast and WorkersStopped."""
    cases.clear()
    traces.clear()
    record = read_record()
    events, closes = timeline(record), last_reminder(record)
    # No cron: in the end the database must hold only what the replay wrote.
    with workers.running("--queues", "reminders", "--processes", str(processes), "--no-cron") as started:
        started.wait_until_ready()
        clock = Clock.spanning(events[0].at, closes, seconds, started=timezone.now())
        player = Player(clock, events)
        with Screen(console) as screen:
            _replay(player, started, screen, until=clock.real(closes) + PATIENCE)
    _report(console, player)
    return verdict.faults(record, clock)


def _replay(player: Player, started: Workers, screen: Screen, until: datetime) -> None:
    """Play the events; returns when the last reminder was delivered, at the latest at `until`."""
    while (now := timezone.now()) < until and (player.events or traces.live_reminders().exists()):
        started.check()
        player.step(now)
        screen.show(_moment(player, now))
        time.sleep(PAUSE)


def _moment(player: Player, now: datetime) -> Moment:
    last = traces.deliveries().select_related("flight").order_by("-id")[:SHOWN]
    return Moment(player.clock.recorded(now), _counts(player), list(last))


def _counts(player: Player) -> dict[str, int]:
    return {
        "scheduled": player.scheduled,
        "moved": player.moved,
        "cancelled": player.cancelled,
        "delivered": traces.deliveries().count(),
    }


def _report(console: Console, player: Player) -> None:
    late = verdict.lateness(delivery.late for delivery in traces.deliveries())
    console.print(summary(_counts(player), late))
