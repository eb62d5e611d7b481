"""The definition of a schedule as a checked value: an entry of `DELAYEDQ["CRON"]`, or of the database."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NamedTuple

from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.dispatch import receiver

from delayedq.compat import InvalidTask
from delayedq.conf import get_settings
from delayedq.core.instants import EPOCH
from delayedq.core.serialization import dumps
from delayedq.cron.expressions import Cron, Every, Within, as_zone
from delayedq.cron.placing import Tick
from delayedq.cron.ticks import Misfire, Overlap, config_hash, expires_at, jittered, later, tick_key
from delayedq.exceptions import DelayedQError, InvalidSchedule
from delayedq.limits.rules import OnFull
from delayedq.store import default_store
from delayedq.store.offers import check_key
from delayedq.tasks import registered, task_at
from delayedq.tasks.scheduling import Scheduled

if TYPE_CHECKING:
    from collections.abc import Mapping
    from enum import StrEnum

    from delayedq.store.base import Store
    from delayedq.store.protocol import Offer
    from delayedq.tasks import Task

# Checks of single values of a definition, and the path that an error names.


class Path(NamedTuple):
    """Where a definition, or one of its keys, stands, such as `DELAYEDQ['CRON']['report']`."""

    text: str
    key: str | None = None

    def at(self, key: str | None = None) -> Path:
        """Raise ImproperlyConfigured with the path for what is found wrong in a `with` block."""
        return Path(self.text, key)

    def __enter__(self) -> None:
        """No generator, which would take a quarter of the time to read a schedule."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, DelayedQError | InvalidTask | TypeError | ValueError):
            where = self.text if self.key is None else f"{self.text}[{self.key!r}]"
            raise ImproperlyConfigured(f"{where}: {error}") from error


def checked_choice[Choice: StrEnum](choices: type[Choice], given: object) -> Choice:
    """Raises InvalidSchedule with the valid choices, and the nearest one."""
    if isinstance(given, str) and given in list(choices):
        return choices(given)
    known = [choice.value for choice in choices]
    close = get_close_matches(str(given), known, 1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise InvalidSchedule(f"It is one of {', '.join(map(repr, known))}, not {given!r}.{hint}")


def checked_number(given: object, lowest: int, highest: int) -> int:
    """Raises InvalidSchedule. True is no number here, nor is 1.0."""
    if type(given) is not int or not lowest <= given <= highest:
        raise InvalidSchedule(f"It is a whole number from {lowest} to {highest}, not {given!r}.")
    return given


def checked_duration(given: object) -> timedelta | None:
    """Raises InvalidSchedule."""
    if given is not None and (not isinstance(given, timedelta) or given <= timedelta()):
        raise InvalidSchedule(f"It is a timedelta over zero, or None, not {given!r}.")
    return given


# Definitions


KEYS = (
    "task", "cron", "every", "anchor", "args", "kwargs", "queue_name", "priority", "timezone", "misfire",
    "starting_deadline", "overlap", "jitter", "start", "end", "max_runs", "enabled",
)  # fmt: skip

#: The limits of django.tasks.
LOWEST, HIGHEST = -100, 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """One schedule. `config_hash` changes with everything that changes its ticks or their messages."""

    name: str
    task: Task[..., Any]
    schedule: Cron | Every | Within
    offer: Offer
    config_hash: str
    misfire: Misfire = Misfire.ONCE
    starting_deadline: timedelta | None = None
    overlap: Overlap = Overlap.ALLOW
    jitter: timedelta = timedelta()
    max_runs: int | None = None
    enabled: bool = True

    def due_at(self, nominal_at: datetime) -> datetime:
        """When the tick at that instant is due: then, or later by its share of the jitter."""
        return jittered(self.name, nominal_at, self.jitter) if self.jitter else nominal_at

    def tick(self, nominal_at: datetime, *, last: bool = False) -> Tick:
        """The tick at that instant, with the message to be offered for it; after the `last` one comes no other."""
        due_at = self.due_at(nominal_at)
        about: dict[str, Any] = {}
        following = self.schedule.next_after(nominal_at) if self.misfire is Misfire.ONCE and not last else None
        if limit := expires_at(due_at, following, self.misfire, self.starting_deadline):
            about |= {"expires_at": _text(limit), "misfire": self.misfire.value}
        if self.overlap is not Overlap.ALLOW:
            about["overlap"] = self.overlap.value
        if self.overlap is Overlap.WAIT and self.starting_deadline is not None:
            about["starts_by"] = _text(later(due_at, self.starting_deadline))
        if about and due_at != nominal_at:
            about["due_at"] = _text(due_at)
        key = tick_key(self.name, self.config_hash, nominal_at)
        return Tick(nominal_at, self._message(nominal_at, about, key=key, scheduled_at=due_at))

    @property
    def store(self) -> Store:
        """That of the task's backend; the default one for backends of others, which have none."""
        return getattr(self.task.get_backend(), "store", None) or default_store()

    def run(self) -> Scheduled:
        """Offer its message now, outside of the schedule: no tick, and never missed."""
        store = self.store
        return Scheduled.of(store.offer(self._message(store.now(), {})))

    def _message(self, nominal_at: datetime, about: dict[str, Any], **fields: Any) -> Offer:
        cron = {"schedule": self.name, "nominal_at": _text(nominal_at), **about}
        return self.offer._replace(metadata=dumps({**(self.task.metadata or {}), "cron": cron}), **fields)


def _text(instant: datetime) -> str:
    return instant.astimezone(UTC).isoformat()


def definitions() -> dict[str, Definition]:
    """All of the settings, by name. Raises ImproperlyConfigured, naming the path of what is wrong."""
    return {name: read(name, given) for name, given in get_settings().CRON.items()}


def definitions_in(store: Store) -> dict[str, Definition]:
    """Those whose messages are placed in this store: that of the backend of their task."""
    return {name: found for name, found in definitions().items() if found.store.alias == store.alias}


def read_stored(name: str, given: Any) -> Definition:
    """One that is not from the settings. Raises InvalidSchedule, naming the schedule and the key that is wrong."""
    try:
        return _read(Path(f"Schedule {name!r}"), name, given)
    except ImproperlyConfigured as error:
        raise InvalidSchedule(str(error)) from error.__cause__


#: What was read of the settings before: thousands of schedules take seconds, and a process that is forked has it too.
_known: dict[str, tuple[Any, Definition]] = {}


@receiver(setting_changed)
def _forget(**_: object) -> None:
    _known.clear()


def read(name: object, given: Any) -> Definition:
    """One entry of the settings. Raises ImproperlyConfigured, naming the path of what is wrong."""
    if not isinstance(name, str) or get_settings().CRON.get(name) is not given:
        return _read(Path(f"DELAYEDQ['CRON'][{name!r}]"), name, given)
    if name not in _known or _known[name][0] is not given:
        _known[name] = given, _read(Path(f"DELAYEDQ['CRON'][{name!r}]"), name, given)
    return _known[name][1]


def _read(path: Path, name: object, given: Any) -> Definition:
    _check_shape(path, name, given)
    schedule = _schedule(path, str(name), given)
    task = _task(path, given)
    offer = _offer(path, task, given)
    policy = _policy(path, given)
    return Definition(
        name=str(name),
        task=task,
        schedule=schedule,
        offer=offer,
        config_hash=_hash(schedule, offer, policy),
        **policy,
    )


def _policy(path: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """The values that are checked one by one."""
    with path.at("misfire"):
        misfire = checked_choice(Misfire, given.get("misfire", Misfire.ONCE))
    with path.at("overlap"):
        overlap = checked_choice(Overlap, given.get("overlap", Overlap.ALLOW))
    with path.at("starting_deadline"):
        deadline = checked_duration(given.get("starting_deadline"))
    with path.at("jitter"):
        jitter = checked_duration(given.get("jitter"))
    with path.at("max_runs"):
        max_runs = checked_number(given["max_runs"], 1, 2**31 - 1) if given.get("max_runs") is not None else None
    with path.at("enabled"):
        enabled = given.get("enabled", True)
        if not isinstance(enabled, bool):
            raise InvalidSchedule(f"It is True or False, not {enabled!r}.")
    return {
        "misfire": misfire,
        "overlap": overlap,
        "starting_deadline": deadline,
        "jitter": jitter or timedelta(),
        "max_runs": max_runs,
        "enabled": enabled,
    }


def _check_shape(path: Path, name: object, given: object) -> None:
    with path.at():
        if not isinstance(name, str) or not name.strip():
            raise InvalidSchedule(f"The name of a schedule is a text that is not blank, not {name!r}.")
        check_key(tick_key(name, "0" * 32, datetime.min.replace(tzinfo=UTC)))
        if not isinstance(given, dict):
            raise InvalidSchedule(f"A schedule is a dict, not {given!r}.")
        if unknown := [key for key in given if key not in KEYS]:
            raise InvalidSchedule(f"{unknown[0]!r} is unknown; known are {', '.join(KEYS)}.{_hint(unknown[0], KEYS)}")
        if ("cron" in given) == ("every" in given):
            raise InvalidSchedule("A schedule has either 'cron' or 'every'.")
        if "every" in given and "timezone" in given:
            raise InvalidSchedule("'timezone' has no effect with 'every', which counts from an instant.")
        if "cron" in given and "anchor" in given:
            raise InvalidSchedule("'anchor' is what 'every' counts from; it has no effect with 'cron'.")
        if "task" not in given:
            raise InvalidSchedule("'task' is missing: the path of a registered task.")


def _schedule(path: Path, name: str, given: Mapping[str, Any]) -> Cron | Every | Within:
    schedule = _rule(path, name, given)
    start, end = given.get("start"), given.get("end")
    if start is None and end is None:
        return schedule
    with path.at("start" if end is None else "end"):
        return Within(schedule, start, end)


def _rule(path: Path, name: str, given: Mapping[str, Any]) -> Cron | Every:
    if "every" in given:
        with path.at("every"):
            every = Every(given["every"])
        with path.at("anchor"):
            return Every(every.period, given["anchor"]) if given.get("anchor") is not None else every
    with path.at("timezone"):
        zone = as_zone(given.get("timezone", django_settings.TIME_ZONE))
    with path.at("cron"):
        return Cron(given["cron"], zone, seed=name)


def _task(path: Path, given: Mapping[str, Any]) -> Task[..., Any]:
    with path.at("task"):
        if not isinstance(given["task"], str):
            raise InvalidSchedule(f"It is the path of a registered task, not {given['task']!r}.")
        if given["task"] not in registered and (hint := _hint(given["task"], registered)):
            raise InvalidSchedule(f"No task is registered as {given['task']!r}.{hint}")
        task = task_at(given["task"])
    with path.at("queue_name"):
        if "queue_name" in given:
            task = task.using(queue_name=_queue(task, given["queue_name"]))
    with path.at("priority"):
        if "priority" in given:
            task = task.using(priority=checked_number(given["priority"], LOWEST, HIGHEST))
    return task


def _queue(task: Task[..., Any], name: object) -> str:
    known = sorted(task.get_backend().queues)
    if not isinstance(name, str) or (known and name not in known):
        choice = f"one of {', '.join(known)}" if known else "a text"
        raise InvalidSchedule(f"The name of a queue is {choice}, not {name!r}.{_hint(name, known)}")
    return name


def _hint(given: object, known: Any) -> str:
    close = get_close_matches(str(given), list(known), 1)
    return f" Did you mean {close[0]!r}?" if close else ""


def _offer(path: Path, task: Task[..., Any], given: Mapping[str, Any]) -> Offer:
    args, kwargs = given.get("args", ()), given.get("kwargs", {})
    with path.at("args"):
        if not isinstance(args, list | tuple):
            raise InvalidSchedule(f"It is a list, not {args!r}.")
    with path.at("kwargs"):
        if not isinstance(kwargs, dict):
            raise InvalidSchedule(f"It is a dict, not {kwargs!r}.")
    with path.at("kwargs" if kwargs else "args"):
        offer = task.offer(args, kwargs, when=None)
    # A tick that finds no room is missed, whatever its limit says: there is no caller to raise an error to.
    sizes = (one._replace(on_full=OnFull.DROP) if one.on_full is OnFull.RAISE else one for one in offer.sizes)
    return offer._replace(sizes=tuple(sizes))


def _hash(schedule: Cron | Every | Within, offer: Offer, policy: Mapping[str, Any]) -> str:
    parts: list[Any] = [_when(schedule), offer.kind, offer.payload, offer.queue, offer.priority]
    overlap, jitter, max_runs = policy["overlap"], policy["jitter"], policy["max_runs"]
    if overlap is not Overlap.ALLOW or jitter or max_runs is not None:
        parts += [overlap, jitter.total_seconds(), max_runs]
    return config_hash(json.dumps(parts))


def _when(schedule: Cron | Every | Within) -> str:
    match schedule:
        case Within(inner, start, end):
            return f"{_when(inner)} from {start} to {end}"
        case Every(period, anchor):
            return f"every {period.total_seconds()}{'' if anchor == EPOCH else f' from {anchor}'}"
        case Cron(expression, zone):
            return f"{expression} {zone.key}"
