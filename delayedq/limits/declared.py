"""Find the channel of a call of a task, and the limits that hold for it.

    @task(channel="customer_id", limit=Limit(concurrency=2))

channel: the name of the argument whose value is the channel of a message, or a function of the arguments that returns
it. Channels are served in fair turn. limit: a Limit, or a list of them: that of each channel if the task has channels,
else of the whole task. Those with a name are shared by all tasks that have them.

A task with a channel or a limit lines its messages up in channels, and so does one whose queue or path is in
DELAYEDQ["LIMITS"]. All others have nothing to do with this.
"""

from __future__ import annotations

from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID
from weakref import WeakValueDictionary

from delayedq.conf import get_settings
from delayedq.core.bounds import check_channel
from delayedq.core.signatures import parameter_names, signature_of
from delayedq.exceptions import INTERRUPTIONS, InvalidMessage
from delayedq.limits.requests import Rules
from delayedq.limits.rules import Limit, OnFull, Size
from delayedq.store.offers import check_channel_name
from delayedq.store.protocol import BARE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from delayedq.tasks.verbs import Task

UNLIMITED = Limit()
#: What can name a channel, as text; of a model instance, its primary key.
NAMING = (str, int, float, Decimal, UUID, date, time, timedelta, Enum)


class HasLimit(Protocol):
    @property
    def limit(self) -> Limit | None: ...


#: The bare queues with a limit that this process has made and still has, by their stored names.
made_with_limits: WeakValueDictionary[str, HasLimit] = WeakValueDictionary()

#: The name of the argument whose value is the channel; or what makes it from the arguments of a call.
type ChannelOption = str | Callable[..., object] | None


def check_limited(task: Task[..., Any], others: Iterable[Task[..., Any]]) -> None:
    """Check the options of a task that are about channels. Raises ValueError."""
    _check_channel(task)
    if task.channel is None and any(one.is_of_channels for one in limits_in(task.limit)):
        raise ValueError(
            "weight, share and order of a Limit are those of channels, and the task has none: see channel="
        )
    check_channel(task.channel_name or "")
    own = {one.name: one for one in limits_in(task.limit) if one.name}
    for other in others if own else ():
        for one in limits_in(other.limit):
            if own.get(one.name or "", one) != one and other.module_path != task.module_path:
                raise ValueError(f"the shared limit {one.name!r} is defined differently by {other.name}: {one!r}")


def _check_channel(task: Task[..., Any]) -> None:
    names = parameter_names(task.func, task.takes_context)
    if task.channel is not None and not callable(task.channel) and task.channel not in names:
        raise ValueError(
            f"channel is the name of an argument ({', '.join(names)}) or a function of them, not {task.channel!r}"
        )
    if iscoroutinefunction(task.channel):
        raise ValueError("channel is a sync function, because each offer calls it at once, not an async one")


def limits_in(option: object) -> tuple[Limit, ...]:
    """The limits of a task's option. Raises ValueError."""
    if option is None:
        return ()
    limits = tuple(option) if isinstance(option, list | tuple) else (option,)
    if not all(isinstance(one, Limit) for one in limits):
        raise ValueError(f"limit is a Limit, or a list of them, not {option!r}")
    if sum(one.name is None for one in limits) > 1:
        raise ValueError("limit has at most one Limit without a name")
    shared = [one.name for one in limits if one.name is not None]
    if twice := next((name for name in shared if shared.count(name) > 1), None):
        raise ValueError(f"limit has two Limits with the name {twice!r}: combine them in one Limit")
    return limits


def rules_of(task: Task[..., Any], queue: str) -> Rules:
    """The limits of the messages that this task has in this queue."""
    limits = limits_in(task.limit)
    own = next((one for one in limits if one.name is None), None)
    said = get_settings().LIMITS
    scopes = [(one.name, said.get(one.name, one)) for one in limits if one.name is not None]
    scopes += [(name, limit) for name, limit in configured(queue, task.module_path)]
    if own is not None and task.channel is None:
        scopes.append((task.module_path, own))
    scopes += [(queue, UNLIMITED), (task.module_path, UNLIMITED)]  # unless they are limited live
    return Rules(_merged(scopes), own if task.channel is not None else None)


def rules_of_bare(queue: str, limit: Limit | None) -> Rules:
    """The limits of the messages of a bare queue with this stored name; `limit`: that of each of its channels."""
    found = configured(queue, queue.partition(BARE)[0])
    return Rules(((queue, found[0][1] if found else UNLIMITED),), limit)


def rules_known(queue: str) -> Rules:
    """The same, as far as this process has made the queue: what it says of its channels is stored nowhere."""
    made = made_with_limits.get(queue)
    return rules_of_bare(queue, made.limit if made else None)


def _merged(scopes: Iterable[tuple[str, Limit]]) -> tuple[tuple[str, Limit], ...]:
    """One limit for each scope: the settings say more than the task."""
    merged: dict[str, Limit] = {}
    for name, limit in scopes:
        merged.setdefault(name, limit)
    return tuple(merged.items())


def configured(queue: str, path: str) -> list[tuple[str, Limit]]:
    """What DELAYEDQ["LIMITS"] says of a queue and a task."""
    limits: Mapping[str, Limit] = get_settings().LIMITS
    return [(name, limits[name]) for name in (queue, path) if name in limits]


def sizes_of(rules: Rules) -> tuple[Size, ...]:
    """How many messages these limits allow."""
    limits = [*rules.scopes, ("", rules.channel)]
    return tuple(
        Size(scope, limit.size, OnFull(limit.on_full)) for scope, limit in limits if limit is not None and limit.size
    )


def is_strict(task: Task[..., Any]) -> bool:
    """Whether a message of it that is to be tried again blocks its channel."""
    return any(one.is_strict for one in limits_in(task.limit))


def lines_up(task: Task[..., Any]) -> bool:
    """Whether its messages wait in channels."""
    if task.channel is not None or task.channel_name is not None or task.limit is not None:
        return True
    return bool(get_settings().LIMITS) and bool(configured(task.queue_name, task.module_path))


def channel_for(task: Task[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """The channel of a call. Raises InvalidMessage if it is none, is too long, or the function of the task fails."""
    if task.channel_name is not None:
        return task.channel_name
    if task.channel is None:
        return ""
    bound = signature_of(task.func, task.takes_context).bind(*args, **kwargs)
    bound.apply_defaults()
    try:
        value = task.channel(*args, **kwargs) if callable(task.channel) else bound.arguments[task.channel]
    except INTERRUPTIONS:
        raise
    except Exception as error:
        raise InvalidMessage(f"{task.name}: its channel can't be found: {type(error).__name__}: {error}.") from error
    channel = _text_of(task, value)
    check_channel_name(channel)
    return channel


def _text_of(task: Task[..., Any], value: object) -> str:
    """The name of a channel. Raises InvalidMessage for what is not the same text in each process."""
    if value is None and not callable(task.channel):
        return ""  # the argument was left out
    known = getattr(value, "pk", value)
    if known is None or not isinstance(known, NAMING):
        raise InvalidMessage(
            f"{task.name}: its channel can't be made from {repr(value)[:80]}: it takes a text, a number, a UUID, a "
            'date or time, an enum or a saved model instance; "" is a channel, too.'
        )
    return str(known)
