"""`DELAYEDQ["CRON"]` as checked values."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.tasks.exceptions import InvalidTask

from delayedq.conf import get_settings
from delayedq.core.cron import Cron, Every, as_zone
from delayedq.core.serialization import dumps
from delayedq.core.ticks import Misfire, config_hash, tick_key
from delayedq.cron.placing import Tick
from delayedq.exceptions import DelayedQError, InvalidSchedule
from delayedq.store import default_store
from delayedq.store.offers import check_key
from delayedq.tasks import Scheduled, task_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from delayedq.store.protocol import Offer
    from delayedq.tasks import Task

KEYS = (
    "task", "cron", "every", "args", "kwargs", "queue_name", "priority",
    "timezone", "misfire", "starting_deadline", "enabled",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """One entry of `DELAYEDQ["CRON"]`. `config_hash` changes with whatever changes its ticks or their messages."""

    name: str
    task: Task[..., Any]
    schedule: Cron | Every
    offer: Offer
    config_hash: str
    misfire: Misfire = Misfire.ONCE
    starting_deadline: timedelta | None = None
    enabled: bool = True

    def tick(self, nominal_at: datetime) -> Tick:
        key = tick_key(self.name, self.config_hash, nominal_at)
        return Tick(nominal_at, self._message(nominal_at, key=key, scheduled_at=nominal_at))

    def run(self) -> Scheduled:
        """Offer its message now, outside of the schedule."""
        store = default_store()
        return Scheduled.of(store.offer(self._message(store.now())))

    def _message(self, nominal_at: datetime, **fields: Any) -> Offer:
        about = {"schedule": self.name, "nominal_at": nominal_at.astimezone(UTC).isoformat()}
        return self.offer._replace(metadata=dumps({**(self.task.metadata or {}), "cron": about}), **fields)


def definitions() -> dict[str, Definition]:
    """All of the settings, by name. Raises ImproperlyConfigured, naming the path of what is wrong."""
    return {name: read(name, given) for name, given in get_settings().CRON.items()}


def read(name: object, given: Any) -> Definition:
    """One entry. Raises ImproperlyConfigured, naming the path of what is wrong."""
    path = f"DELAYEDQ['CRON'][{name!r}]"
    _check_shape(path, name, given)
    schedule = _schedule(path, str(name), given)
    task = _task(path, given)
    offer = _offer(path, task, given)
    with _at(f"{path}['misfire']"):
        misfire = Misfire(given.get("misfire", Misfire.ONCE))
    with _at(f"{path}['starting_deadline']"):
        starting_deadline = _starting_deadline(given.get("starting_deadline"))
    if not isinstance(enabled := given.get("enabled", True), bool):
        raise ImproperlyConfigured(f"{path}['enabled']: It is True or False, not {enabled!r}.")
    return Definition(
        name=str(name),
        task=task,
        schedule=schedule,
        offer=offer,
        config_hash=_hash(schedule, offer),
        misfire=misfire,
        starting_deadline=starting_deadline,
        enabled=enabled,
    )


@contextmanager
def _at(path: str) -> Iterator[None]:
    try:
        yield
    except (DelayedQError, InvalidTask, TypeError, ValueError) as error:
        raise ImproperlyConfigured(f"{path}: {error}") from error


def _check_shape(path: str, name: object, given: object) -> None:
    with _at(path):
        if not isinstance(name, str) or not name.strip():
            raise InvalidSchedule(f"The name of a schedule is a text that is not blank, not {name!r}.")
        check_key(tick_key(name, "0" * 32, datetime.min.replace(tzinfo=UTC)))
        if not isinstance(given, dict):
            raise InvalidSchedule(f"A schedule is a dict, not {given!r}.")
        if unknown := [key for key in given if key not in KEYS]:
            raise InvalidSchedule(f"{unknown[0]!r} is unknown; known are {', '.join(KEYS)}.")
        if ("cron" in given) == ("every" in given):
            raise InvalidSchedule("A schedule has either 'cron' or 'every'.")
        if "every" in given and "timezone" in given:
            raise InvalidSchedule("'timezone' says nothing beside 'every', which counts from the Unix epoch.")
        if "task" not in given:
            raise InvalidSchedule("'task' is missing: the path of a registered task.")


def _schedule(path: str, name: str, given: Mapping[str, Any]) -> Cron | Every:
    if "every" in given:
        with _at(f"{path}['every']"):
            return Every(given["every"])
    with _at(f"{path}['timezone']"):
        zone = as_zone(given.get("timezone", django_settings.TIME_ZONE))
    with _at(f"{path}['cron']"):
        return Cron(given["cron"], zone, seed=name)


def _task(path: str, given: Mapping[str, Any]) -> Task[..., Any]:
    with _at(f"{path}['task']"):
        task = task_at(given["task"])
    for option in ("queue_name", "priority"):
        if option in given:
            with _at(f"{path}[{option!r}]"):
                task = task.using(**{option: given[option]})
    return task


def _offer(path: str, task: Task[..., Any], given: Mapping[str, Any]) -> Offer:
    args, kwargs = given.get("args", ()), given.get("kwargs", {})
    if not isinstance(args, list | tuple):
        raise ImproperlyConfigured(f"{path}['args']: It is a list, not {args!r}.")
    if not isinstance(kwargs, dict):
        raise ImproperlyConfigured(f"{path}['kwargs']: It is a dict, not {kwargs!r}.")
    with _at(f"{path}[{'kwargs' if kwargs else 'args'!r}]"):
        return task.offer(args, kwargs, when=None)


def _starting_deadline(given: object) -> timedelta | None:
    if given is not None and (not isinstance(given, timedelta) or given <= timedelta()):
        raise InvalidSchedule(f"It is a timedelta over zero, or None, not {given!r}.")
    return given


def _hash(schedule: Cron | Every, offer: Offer) -> str:
    match schedule:
        case Every(period):
            when = f"every {period.total_seconds()}"
        case Cron(expression, zone):
            when = f"{expression} {zone.key}"
    return config_hash(json.dumps([when, offer.kind, offer.payload, offer.queue, offer.priority]))
