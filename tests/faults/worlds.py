"""Runs schedules on one database: sets up, lets the clients act, drains the queue, and judges what was answered."""

from __future__ import annotations

import random
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import NamedTuple
from unittest import mock

from django.db import connections

from delayedq import clock as chosen_clock
from delayedq.results import cancelling
from delayedq.store import base, store_for
from tests.faults.clients import Client
from tests.faults.flow_play import FlowPlay
from tests.faults.limit_play import LimitPlay
from tests.faults.queue_play import QueuePlay
from tests.faults.records import Clock, Records
from tests.faults.scenarios import JUMP, KEYS, numbered, parts, scenario_of
from tests.faults.scheduler import Scheduler, Stuck
from tests.faults.servers import SERVERS
from tests.store.given import LEASE, NOW

MOST_CLIENTS = 4
#: By the seed.
PLAYS = [QueuePlay, QueuePlay, LimitPlay, QueuePlay, QueuePlay, FlowPlay, QueuePlay, QueuePlay]
#: Of databases in the command line, where it is not that of Django.
NAMES = {"mysql": "mariadb"}
_names = count()


def _play_of(number):
    return PLAYS[parts(number)[0] % len(PLAYS)]


class Failure(NamedTuple):
    """What a schedule has shown."""

    number: int
    what: str
    records: list
    trace: list
    #: Its clients are still under way: no other schedule can be run.
    is_stuck: bool = False

    @property
    def kind(self):
        """What the shorter ones of it have in common."""
        return self.what.split()[:3]


class Decisions:
    """Who goes next, and which faults come. Some schedules change clients at random, others rarely."""

    def __init__(self, scenario, clock):
        self._draws, self._clock, self._last = scenario.draws, clock, None
        self._faults = dict(scenario.faults)
        self._stays = self._draws.choice([0.0, 0.3, 0.7, 0.9])

    def choose(self, ready):
        stays, draw = self._draws.random() < self._stays, self._draws.random()
        if not (stays and self._last in ready):
            self._last = ready[int(draw * len(ready))]
        return self._last

    def fault(self, step):
        fault = self._faults.get(step)
        if fault == JUMP:
            self._clock.pass_time(LEASE * 1.01)
            return None
        return fault


class Alone:
    """Stands for a client that nothing interrupts."""

    number, faults, is_lost = 9, 0, False

    def __init__(self, alias):
        self.alias = alias

    def pause(self, where):
        """Nobody else waits for it."""


class World:
    """A database and its clients, for one schedule after the other."""

    def __init__(self, alias):
        self.alias, self.keys, self.clock = alias, KEYS, Clock(NOW)
        vendor = connections[alias].vendor
        self.database = NAMES.get(vendor, vendor)
        self.server = SERVERS[vendor](alias, self._moment)
        self.server.dialect = store_for(alias).database.dialect
        self.clients = [Client(number, alias, self.server) for number in range(MOST_CLIENTS)]
        self.store = self.records = None
        #: The steps of the last schedule: who, where, and with which fault.
        self.trace = []
        self.queue, self._tokens = "", count(1)

    def close(self):
        for client in self.clients:
            client.close()
        self.server.close()

    def _moment(self):
        return self.clock()

    def token(self):
        return next(self._tokens)

    def size_of(self, number):
        """How many operations and faults the scenario has, of which some may be left out."""
        play = _play_of(number)(self)
        return scenario_of(numbered(parts(number)[0]), play.programs).size

    def run(self, number):
        """The Failure of this schedule, or None."""
        self._begin(number)
        play = _play_of(number)(self)
        scenario = scenario_of(number, play.programs)
        self.server.vary(scenario.draws)
        scheduler = Scheduler(self.clients, self.server, Decisions(scenario, self.clock))
        with self._in_its_time():
            try:
                self.trace = scheduler.trace
                play.actor(Alone(self.alias), self).do_all(scenario.before)
                scheduler.run([partial(self._act, play, program) for program in scenario.programs])
                play.end(play.actor(Alone(self.alias), self))
                wrong = play.wrong()
            except Stuck as stuck:
                return Failure(number, f"stuck {stuck}", self.records.all, scheduler.trace, is_stuck=True)
            except Exception as error:  # noqa: BLE001  whatever a store raises without a fault is one of its own
                wrong = [f"{type(error).__name__}: {error}"]
        return Failure(number, ", ".join(wrong), self.records.all, scheduler.trace) if wrong else None

    def _act(self, play, program, client):
        play.actor(client, self).do_all(program)

    def _begin(self, number):
        """Each schedule has a queue of its own: nothing is to be deleted."""
        random.seed(number)
        self.queue, self.clock, self._tokens = f"queue {next(_names)}", Clock(NOW), count(1)
        self.records = Records(self.clock)
        store_for.cache_clear()
        self.store = store_for(self.alias)
        self.store._notified = [float("inf")]

    @contextmanager
    def _in_its_time(self):
        with (
            chosen_clock.choose(self._moment),
            mock.patch.object(base, "time", self.clock),
            mock.patch.object(cancelling, "time", self.clock),
        ):
            yield
