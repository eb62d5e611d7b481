"""`queue.cron`: ticks for a bare queue, installed by code. Semantics and key shapes are those of seed document 002.

Every process that serves the queue may install the same schedule: each tick is placed once, also if their clocks
differ. The definition that was installed last wins; it takes back the future ticks of the others.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

from django.db import connections

from delayedq.core.instants import EPOCH
from delayedq.cron.expressions import Every
from delayedq.cron.placing import Tick, lock, place, prune, refresh, take_back, ticks_of, together
from delayedq.cron.ticks import DailySchedule, daily_hash, periodic_hash, tick_key
from delayedq.exceptions import InvalidSchedule
from delayedq.models import HASH_LENGTH
from delayedq.store.offers import check_key, check_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from datetime import datetime, time
    from zoneinfo import ZoneInfo

    from delayedq.store.base import Store
    from delayedq.store.protocol import Offer

    #: From a key, a payload and its due time to the message of a queue.
    MakeOffer = Callable[[str, Any, datetime], Offer]

logger = logging.getLogger("delayedq")

#: `close` waits at most this many seconds for the round in progress.
CLOSING = 5.0


@dataclass(frozen=True, slots=True)
class CronMessage:
    """A payload for the tick at `schedule_at`, delivered then or at `schedule_at_actual`. Both are aware datetimes."""

    payload: Any
    schedule_at: datetime
    schedule_at_actual: datetime | None = None

    @property
    def due_at(self) -> datetime:
        """When its message is due (aware datetime)."""
        return self.schedule_at_actual or self.schedule_at


class CronService:
    """Made by `DelayedQueue.cron`. Its methods join the caller's transaction; threads that they start do not."""

    def __init__(self, store: Store, kind: str, make_offer: MakeOffer, clock: Callable[[], datetime]) -> None:
        self._store = store
        self._kind = kind
        self._make_offer = make_offer
        self._clock = clock

    def install_tick(
        self, config_hash: str, key_prefix: str, messages: Iterable[CronMessage], *, can_update: bool = False
    ) -> None:
        """Place these ticks, and take back the future ones that other hashes have under this prefix.

        Ticks that were placed before stay as they are; with `can_update`, those that have not begun get the payload
        and time given now. Raises InvalidSchedule for a blank hash or prefix, InvalidMessage for what can't be stored.
        """
        _check_names(config_hash, key_prefix)
        ticks = [self._tick(config_hash, key_prefix, message) for message in messages]
        now = self._clock()

        def update() -> None:
            schedule = lock(self._store, self._kind, key_prefix, EPOCH)
            placed = ticks_of(self._store, schedule)
            take_back(self._store, placed.exclude(config_hash=config_hash), "Its schedule has changed.", now)
            if can_update:
                refresh(self._store, placed.filter(config_hash=config_hash), ticks)
            place(self._store, schedule, config_hash, ticks)
            prune(self._store, schedule, now)
            schedule.save()

        together(self._store, update)

    def uninstall_tick(self, config_hash: str, key_prefix: str) -> None:
        """Take back the future ticks of exactly this hash and prefix."""
        _check_names(config_hash, key_prefix)
        now = self._clock()

        def update() -> None:
            schedule = lock(self._store, self._kind, key_prefix, EPOCH)
            own = ticks_of(self._store, schedule).filter(config_hash=config_hash)
            take_back(self._store, own, "Its schedule was uninstalled.", now)

        together(self._store, update)

    def install(
        self,
        config_hash: str,
        key_prefix: str,
        schedule_interval: timedelta,
        generate_many: Callable[[datetime], Iterable[CronMessage]],
    ) -> Installed:
        """Install what `generate_many(now)` returns, at once and then every `schedule_interval`, in a thread.

        The first round updates what other processes have placed. A round that fails is logged, and the next one tries
        again. Call `close()` on the result, or use it as a context manager, to stop; ticks already placed stay.

        Raises InvalidSchedule unless the interval is above zero.
        """
        _check_names(config_hash, key_prefix)
        if not isinstance(schedule_interval, timedelta) or schedule_interval <= timedelta():
            raise InvalidSchedule(f"A schedule interval is a timedelta over zero, not {schedule_interval!r}.")

        def install_round(*, first: bool) -> None:
            self.install_tick(config_hash, key_prefix, generate_many(self._clock()), can_update=first)

        return Installed(self._store, key_prefix, schedule_interval, install_round)

    def install_daily_schedule(
        self,
        key_prefix: str,
        zone: ZoneInfo,
        hours: Sequence[time],
        generator: Callable[[datetime], CronMessage],
        *,
        schedule_in_advance: timedelta = timedelta(days=1),
        schedule_interval: timedelta = timedelta(hours=1),
    ) -> Installed:
        """Daily at these local times; `generator` makes the message for each UTC time (DST rule: `cron.expressions`).

        Each round places the ticks of the next `schedule_in_advance`, and at least one. Raises InvalidSchedule.
        """
        schedule = DailySchedule(zone, tuple(hours), schedule_in_advance, schedule_interval)

        def generate_many(now: datetime) -> list[CronMessage]:
            return [generator(at) for at in schedule.next_times(now)]

        return self.install(daily_hash(zone.key, schedule.hours), key_prefix, schedule_interval, generate_many)

    def install_periodic_tick(
        self, key_prefix: str, period: timedelta, generator: Callable[[datetime], Any]
    ) -> Installed:
        """Every `period`, counted from the Unix epoch; `generator` makes the payload for each UTC time.

        A round, every quarter of the period (a second at least), places the next tick. Raises InvalidSchedule.
        """
        schedule = Every(period)

        def generate_many(now: datetime) -> list[CronMessage]:
            following = schedule.next_after(now)
            return [] if following is None else [CronMessage(generator(following), following)]

        interval = max(timedelta(seconds=1), period / 4)
        return self.install(periodic_hash(period), key_prefix, interval, generate_many)

    def _tick(self, config_hash: str, key_prefix: str, message: CronMessage) -> Tick:
        check_time(message.schedule_at)
        key = tick_key(key_prefix, config_hash, message.schedule_at)
        return Tick(message.schedule_at, self._make_offer(key, message.payload, message.due_at))


class Installed:
    """A schedule that a thread of this process keeps installed until it is closed."""

    def __init__(self, store: Store, name: str, interval: timedelta, install_round: Callable[..., None]) -> None:
        self._store = store
        self._name = name
        self._interval = interval.total_seconds()
        self._install_round = install_round
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"delayedq-cron-{name}", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop. Waits at most five seconds for a round in progress."""
        self._closed.set()
        self._thread.join(CLOSING)

    def _run(self) -> None:
        first = True
        while not self._closed.is_set():
            try:
                self._install_round(first=first)
                first = False
            except Exception:
                logger.exception("A round of the cron schedule %r failed; the next one tries again.", self._name)
            finally:
                connections[self._store.alias].close()
            self._closed.wait(min(self._interval, threading.TIMEOUT_MAX))


def _check_names(config_hash: str, key_prefix: str) -> None:
    for what, name in (("config hash", config_hash), ("key prefix", key_prefix)):
        if not isinstance(name, str) or not name.strip():
            raise InvalidSchedule(f"A {what} is a text that is not blank, not {name!r}.")
    check_key(key_prefix)
    if "/" in config_hash or len(config_hash) > HASH_LENGTH:
        raise InvalidSchedule(f"A config hash has at most {HASH_LENGTH} characters and no '/', unlike {config_hash!r}.")
